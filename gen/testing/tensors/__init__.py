"""Tensors that compute on the CPU and say that they are on a virtual GPU."""
