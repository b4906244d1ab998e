"""Storages of virtual tensors; saving, loading, pickling and copying, all of which keep devices."""
