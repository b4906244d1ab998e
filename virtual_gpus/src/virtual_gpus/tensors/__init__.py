"""Tensors that compute on the CPU and report a virtual GPU as their device."""
