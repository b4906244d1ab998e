"""What the process gives: its memory and threads, its streams on GPUs, forks, and calls beside the caller's modes."""
