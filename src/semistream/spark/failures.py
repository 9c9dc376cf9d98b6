"""What is wrong, out of the pages of plans and stack traces that Spark puts around it."""

from __future__ import annotations

import re

from semistream.errors import SemiStreamError

_LONGEST_MESSAGE = 600
_TRACE = "Traceback (most recent call last):"
#: the first line after a trace that is not indented: a class of errors, and what it says
_RAISED = re.compile(r"^([A-Za-z_][\w.]*(?:: .*)?)$", re.MULTILINE)
#: what a Python that could not start left on its standard error
_NOT_STARTED = re.compile(r"Error from python worker:\n((?:  .*\n?)+)")


def brief(error: BaseException) -> str:
    """The part of an error that tells a user what to do.

    An error of ours raised in a worker reaches the driver as a text inside other errors' texts.
    """
    text = str(error)
    ours = re.findall(r"^(?:.*\s)?semistream\.[a-z_.]+\.\w+(?:Error|Warning): (.+)$", text, re.MULTILINE)
    if ours:
        return str(ours[-1])
    if isinstance(error, SemiStreamError):
        return text
    return _short(_in_python(text) or _opening(text) or type(error).__name__)


def _in_python(text: str) -> str | None:
    """The last line of a Python trace: the cause, under pages of where it happened."""
    silent = _NOT_STARTED.search(text)
    if silent is not None:
        return f"a Python worker could not start: {silent[1].strip().splitlines()[-1].strip()}"
    _, found, after = text.rpartition(_TRACE)
    raised = _RAISED.search(after) if found else None
    return None if raised is None else f"Python failed with {raised[1]}"


def _opening(text: str) -> str:
    opening = re.split(r"\n\s*\n|JVM stacktrace|SQLSTATE|=== Streaming Query ===|\n\tat ", text)[0]
    return " ".join(opening.split())


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}…"
