"""Calls of users: what they ask, read into requests, and what they get back: values, completions, streams."""
