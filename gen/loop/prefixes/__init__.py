"""What prompts begin with alike is read once: in a batch, and from request to request."""
