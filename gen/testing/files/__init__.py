"""Storages of virtual tensors, and what is saved, loaded, pickled and copied: all keep their devices."""
