"""Embeddings: encoder models, and the vectors that they make of texts."""
