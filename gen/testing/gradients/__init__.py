"""Backward passes: which gradient lies where, and what autograd refuses."""
