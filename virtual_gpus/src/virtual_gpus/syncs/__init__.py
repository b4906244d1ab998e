"""Where the host waits for the device, on virtual GPUs and on real ones."""
