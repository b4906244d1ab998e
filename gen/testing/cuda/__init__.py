"""What torch.cuda has, as virtual GPUs answer it: devices, memory, random numbers, copies, typed tensors."""
