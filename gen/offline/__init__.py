"""Many prompts: as they come, one after the other, and as jobs on many devices that survive their own processes."""
