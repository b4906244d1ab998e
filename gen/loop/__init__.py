"""The one loop: requests become rows of a batch, and each step takes these from logits to tokens and texts.

run_all, engine_thread       many requests in the caller's thread; requests that come to a thread of their own
runner, row_pool, memory     one batch through errors; where its rows come from; how much room they may have
batch, jobs, slots           who waits, who is in which row, what a step has given to whom
row_set                      a step: the model, the stages, the search, the next token
draw_keys, history           the key of each draw; the tokens so far, for stages
searches/                    how the next token is chosen
replay/                      a step that is recorded on a CPU, or captured as a CUDA graph
results/                     the way to the host: the ring, texts, stop strings, values
"""
