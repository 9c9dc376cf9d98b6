"""A figure has to reach its bar, or to stay below it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from semistream.lab.measure.bars import Line, table_of


@pytest.mark.parametrize(
    ("figure", "bar", "at_most", "verdict"),
    [
        (1.0, None, False, ""),
        (1.2, 1.2, False, "pass"),
        (1.1, 1.2, False, "short"),
        (1.05, 1.05, True, "pass"),
        (1.06, 1.05, True, "short"),
    ],
)
def test_a_verdict_is_about_the_bar(figure: float, bar: float | None, at_most: bool, verdict: str) -> None:
    assert Line("part", "what", figure, figure, figure, bar, at_most=at_most).verdict == verdict


def test_the_table_shows_which_way_a_bar_is_meant() -> None:
    lines = [Line("p", "a / b", 1.5, 1.4, 1.6, 1.2), Line("p", "passes", 1.5, 1.5, 1.5, 1.05, at_most=True)]
    out = io.StringIO()
    Console(file=out, width=120).print(table_of(lines))
    faster, passes = (line for line in out.getvalue().splitlines() if "│ p " in line)
    assert all(text in faster for text in ("1.40 – 1.60", "≥ 1.2", "pass"))
    assert all(text in passes for text in ("≤ 1.05", "short"))
