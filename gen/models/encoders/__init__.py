"""Encoder models, which make a vector of a text."""
