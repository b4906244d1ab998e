"""The common beginnings of prompts are read once: in a batch, and from request to request."""
