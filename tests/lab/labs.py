"""Small labs: R of thirty thousand tuples, unit costs given so that nothing is calibrated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from semistream.lab.laboratory import Lab, Scale
from semistream.lab.papers_clock import papers_clock

TINY = Scale("tiny", 30_000)


def tiny_lab(out: Path, data: Path, *, seed: int = 1, say: Callable[[str], None] | None = None) -> Lab:
    return Lab(out, scale=TINY, seed=seed, profile=papers_clock(), data=data, say=say)
