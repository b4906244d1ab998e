"""A job's inputs: files of rows that can be read from any place on, and the request of each row."""
