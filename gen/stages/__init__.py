"""The stages, which change logits between the model and the search: penalties, users' processors, constraints."""
