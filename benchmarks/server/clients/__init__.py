"""What programs do with client libraries: a function for each gives its tries by name, in an environment with it."""
