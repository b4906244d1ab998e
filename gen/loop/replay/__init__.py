"""A step that was run before is run again at less cost: recorded on a CPU, captured on CUDA."""
