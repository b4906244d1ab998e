"""The embedded demo model: weights and tokenizer. `training/demo` in the repository made them."""
