"""What comes out of a batch: tokens on their way to the host, and the texts they become."""
