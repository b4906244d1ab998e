"""Several tokens in a step, and still the same text: what is drafted, and how many drafts a step reads."""
