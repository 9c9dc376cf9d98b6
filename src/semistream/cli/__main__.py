"""`python -m semistream.cli`, for where the command itself is not on the path."""

from semistream.cli import main

main()
