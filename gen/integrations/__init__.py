"""gen inside of other libraries: its draws in transformers' generate, its samplers and exllamav2 in Outlines 0.0.46."""
