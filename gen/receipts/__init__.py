"""Receipts: texts with all that made them, and what can be shown with them: that a model still makes the same."""
