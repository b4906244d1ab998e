"""Benchmarks: one file a question, run as `python -m benchmarks.NAME`."""
