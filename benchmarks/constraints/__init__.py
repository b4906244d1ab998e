"""Constraints: which JSON Schemas each engine reaches, and what holding a text to its type costs."""
