"""Constraints: which JSON Schemas each engine accepts, and what it costs to hold a text to its type."""
