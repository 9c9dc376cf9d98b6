"""Figures and the bars they are held against, as a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table


@dataclass
class Line:
    """One figure and the bar it is held against: it must reach it, or with `at_most` not pass it."""

    part: str
    what: str
    figure: float
    low: float
    high: float
    bar: float | None
    note: str = ""
    detail: dict[str, Any] = field(default_factory=dict)
    at_most: bool = False

    @property
    def verdict(self) -> str:
        if self.bar is None:
            return ""
        return "pass" if (self.figure <= self.bar if self.at_most else self.figure >= self.bar) else "short"


def table_of(lines: Iterable[Line]) -> Table:
    """All figures, their spread, and whether they reach their bars."""
    table = Table("part", "what", title="ratios: median of the turns, smallest – largest")
    for heading in ("ratio", "spread", "bar", ""):
        table.add_column(heading, justify="right")
    table.add_column("")
    colours = {"pass": "[green]pass[/]", "short": "[bold red]short[/]", "": ""}
    for line in lines:
        spread = "" if line.low == line.high else f"{line.low:.2f} – {line.high:.2f}"
        bar = "" if line.bar is None else f"{'≤' if line.at_most else '≥'} {line.bar:g}"
        table.add_row(line.part, line.what, f"{line.figure:.2f}", spread, bar, colours[line.verdict], line.note)
    return table
