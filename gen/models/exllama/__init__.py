"""exllamav2 and exllamav3: quantised checkpoints on their own kernels."""
