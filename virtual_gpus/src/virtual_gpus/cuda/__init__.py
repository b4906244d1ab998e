"""torch.cuda for virtual GPUs: devices, memory, random numbers, streams and their races, graphs, several GPUs."""
