"""Docstrings hold doctests as Python writes them; Markdown wants fences around them. Griffe calls this."""

from __future__ import annotations

import textwrap
from typing import Any

import griffe


class FencedDoctests(griffe.Extension):
    """Puts the doctests of every docstring in fences, so that the site shows them as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring and ">>> " in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with its paragraphs that begin with a prompt in fences."""
    paragraphs = textwrap.dedent(text).split("\n\n")
    return "\n\n".join(f"```pycon\n{part}\n```" if part.startswith(">>> ") else part for part in paragraphs)
