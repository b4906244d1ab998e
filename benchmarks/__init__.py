"""Benchmarks: one file a question, run as `python -m benchmarks.NAME`; where a question needs several, a folder."""
