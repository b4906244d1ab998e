"""What the user asked for: prompts and images read, settings checked, one request a prompt."""
