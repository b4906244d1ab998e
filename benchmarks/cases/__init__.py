"""Random calls, each compared with an oracle."""
