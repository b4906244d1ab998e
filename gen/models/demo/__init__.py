"""The embedded demo model: weights, tokenizer, and the scripts that made them."""
