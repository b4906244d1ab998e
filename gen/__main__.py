"""`python -m gen` is the `gen` command."""

from gen.cli import main

main()
