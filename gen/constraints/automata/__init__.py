"""Automata: patterns and sets of texts over characters, and as bytes."""
