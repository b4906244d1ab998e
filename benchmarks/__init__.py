"""Benchmarks: one file, or one folder of files, for each question, run as `python -m benchmarks.NAME`."""
