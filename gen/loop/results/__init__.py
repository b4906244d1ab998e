"""The results of a batch: tokens on their way to the host, and the texts that they become."""
