"""Many prompts: iterated as they come, or run as jobs on many devices; jobs survive the end of their processes."""
