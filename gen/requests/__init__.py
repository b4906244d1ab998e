"""Reads what the user asked for: prompts, images and settings are checked and become one request for each prompt."""
