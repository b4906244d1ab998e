"""The backends of samplers: the CPU, torch on any device, Triton. All give the same results."""
