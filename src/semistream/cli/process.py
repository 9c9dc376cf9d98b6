"""What the command does with the process it has to itself, and must not do in anybody else's.

A test, or a program that calls the command's functions, shares its process with others: there nothing changes.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder

_own = False


def is_own() -> None:
    """Say that this process was started for the command.

    Imports make some hundred thousand objects that stay: to look for garbage among them takes a tenth of their time.
    """
    global _own
    _own = True
    gc.set_threshold(100_000, 50, 50)


def is_over() -> None:
    """Say that the command has done its work.

    Before it ends, the interpreter looks for garbage among all objects, several times; that takes a fifth of a second
    and helps nobody.
    """
    if _own:
        gc.freeze()


def leave_pandas_out() -> None:
    """Let pandas seem absent to this process: Arrow imports it, a quarter of a second and 25 MB, with its first array.

    It only wants to know whether an array is of that kind. For a command that joins in its own process none is.
    """
    if _own and "pandas" not in sys.modules:
        sys.meta_path.insert(0, _Absent())


class _Absent(MetaPathFinder):
    """Finds that pandas is not installed."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
