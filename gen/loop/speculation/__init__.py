"""Several tokens a step, and never another text: what is drafted, and how many drafts a step reads."""
