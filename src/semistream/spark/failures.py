"""What is wrong, out of the pages of plans and stack traces that Spark puts around it."""

from __future__ import annotations

import re

from semistream.errors import SemiStreamError

_LONGEST_MESSAGE = 600


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
    text = re.split(r"\n\s*\n|JVM stacktrace|SQLSTATE|=== Streaming Query ===|\n\tat ", text)[0]
    text = " ".join(text.split()) or type(error).__name__
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}…"
