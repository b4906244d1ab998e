"""Substitutes for torch's own functions, methods and kernels while there are virtual GPUs."""
