"""How the demo model was made: its corpus, tokenizer, training and evaluation; `gen/models/demo` has the result."""
