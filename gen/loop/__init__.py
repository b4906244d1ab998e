"""The decode loop: requests become rows of a batch, and each step takes the rows from logits to tokens and texts.

runner, engine_thread        many requests in the caller's thread, through errors; requests that join an engine's thread
row_pool, memory             where a batch's rows come from; how much room they may have
scheduler, jobs, slots       which requests wait, which text is in which row, what a step has given to each
decoder                      a step: the model, the stages, the search, the next token
history                      the tokens so far, for stages
searches/                    how the next token is chosen, and the key of each draw
speculation/                 drafts of the next tokens, which a step reads beside the newest one
prefixes/                    common beginnings of prompts, which are read once
replay/                      a step that is recorded on a CPU, or captured as a CUDA graph
results/                     the way to the host: the ring, texts, stop strings, values
"""
