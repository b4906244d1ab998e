"""Streams, events and CUDA graphs of virtual GPUs, and races between streams."""
