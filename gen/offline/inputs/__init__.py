"""What a job reads: files of rows that are read from any place on, and what a row asks for."""
