"""The command line. It joins nothing itself: it reads, hands over to an operator, and writes."""

from semistream.cli.app import main

__all__ = ["main"]
