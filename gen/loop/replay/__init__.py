"""Runs a step again at less cost: recorded on a CPU, captured as a CUDA graph on CUDA."""
