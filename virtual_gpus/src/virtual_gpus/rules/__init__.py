"""What CUDA allows, computes and refuses, with the source of each rule."""
