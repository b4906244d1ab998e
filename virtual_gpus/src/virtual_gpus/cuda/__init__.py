"""torch.cuda for virtual GPUs: devices, memory, random numbers, copies, typed tensors."""
