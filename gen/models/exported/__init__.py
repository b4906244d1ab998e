"""Programs of torch.export, which need no Python code of the model's."""
