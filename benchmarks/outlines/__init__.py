"""Outlines 0.0.46: its own tests and its generation, with its samplers and with `gen`'s."""
