"""The command line. It joins nothing itself: it reads, hands over to an operator, and writes."""

from semistream.cli.allocator import use_system_allocator
from semistream.cli.process import is_over, is_own

__all__ = ["main"]


def main() -> None:
    """Entry point of the `semistream` command."""
    # Before anything else imports Arrow, and so not at the top of this file.
    use_system_allocator()
    is_own()
    from semistream.cli.app import main as run_command

    try:
        run_command()
    finally:
        is_over()
