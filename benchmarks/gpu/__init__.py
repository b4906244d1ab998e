"""What a machine with CUDA shows of gen, in under ten minutes and without a network: `make gpu`."""
