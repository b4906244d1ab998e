"""A worker: holds the model on one device, and makes the parts of a job one after the other."""
