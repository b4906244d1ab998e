"""What samplers compute with: the CPU, torch on any device, Triton. All have one meaning."""
