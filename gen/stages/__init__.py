"""What changes the logits between the model and the search: penalties and bans, and the user's own processors."""
