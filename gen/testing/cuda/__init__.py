"""Parts of torch.cuda that virtual GPUs answer for: memory, copies between devices, typed tensors, processes."""
