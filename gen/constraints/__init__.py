"""What a text must be: patterns, choices, JSON schemas and types, as automata over bytes on the device."""
