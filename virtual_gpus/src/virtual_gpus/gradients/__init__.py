"""Backward passes: the devices of gradients, and what autograd refuses."""
