"""Figures of every kind with points that nobody measured, and results of them on disk."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from semistream.lab.figure import Axis, Figure, Marks, Outcome, Point, Printed, Verdict, Way

NASTY = "<b>faster</b> & \"cheaper\" than 'that'"
RATE = Axis("service rate", "tuples/s", log=True)


def _no_run(_: Any) -> Iterator[Point]:
    return iter(())


#: what two clocks say of the first figure: a third of the claimed factors, and runs that were not at rest
MARKS: dict[Way, Marks] = {
    "counts": Marks(True, False, True, (0.3, 0.4), "numbers"),
    "wall": Marks(False, None, None, unrested=2),
}


def _figure(
    name: str,
    kind: str,
    x: Axis,
    y: Axis,
    outcome: Outcome,
    title: str = "",
    marks: dict[Way, Marks] | None = None,
    printed: tuple[Printed, ...] = (),
) -> Figure:
    def judge(points: Sequence[Point]) -> Verdict:
        return Verdict(outcome, f"{len(points)} points", NASTY if outcome != "held" else "", marks or {}, ("A note.",))

    title = title or f"A figure of kind {kind}"
    return Figure(name, title, x, y, f"The claim of {name}.", _no_run, judge, kind, printed=printed)


LINES = _figure(
    "ssbj-5a",
    "lines",
    Axis("memory", "% of R"),
    RATE,
    "partly",
    title=NASTY,
    marks=MARKS,
    printed=(Printed(1.0, 7.0, "ssbj", "meshjoin"), Printed(10.0, 8.0, "ssbj", "meshjoin")),
)
SHARED = _figure("ssj-6b", "lines", Axis("size of R", "tuples", log=True), RATE, "held")
BARS = _figure("peers-batch", "bars", Axis("contestant"), RATE, "not")
GROUPS = _figure("opcachejoin-4a", "bars", Axis("size of R", "tuples"), Axis("service rate", "tuples/s"), "held")
BOX = _figure("sscj-5a", "box", Axis("size of R", "tuples"), Axis("waiting time", "s", log=True), "held")
SURFACE = _figure(
    "oxhybridjoin-5a", "surface", Axis("disk buffer d", "tuples", log=True), Axis("service rate", "tuples/s"), "held"
)
EMPTY = _figure("oxhybridjoin-7", "lines", Axis("size of R", "tuples"), RATE, "held")
FIGURES = (LINES, SHARED, BARS, GROUPS, BOX, SURFACE, EMPTY)
WAYS: tuple[Way, ...] = ("papers", "machine", "wall")
ALGORITHMS = ("meshjoin", "ssj", "ssbj", "hybridjoin", "cachejoin")
PEERS = ("sweepjoin", "ssbj", "duckdb parquet", "duckdb table", "polars scan", "lru look-up", "sqlite look-up")


def points() -> list[Point]:
    """Some points for every figure but `EMPTY`, one of them without a value."""
    found = []

    def add(figure: Figure, way: Way, series: str, x: float, y: float, spread: float = 0.05, **settings: Any) -> None:
        low, high = y * (1 - spread), y * (1 + spread)
        found.append(Point(figure.id, way, series, x, y, low, high, 5, {"scale": "small", **settings}))

    for turn, way in enumerate(WAYS):
        for number, name in enumerate(ALGORITHMS):
            for x in (1, 2, 4, 6, 8, 10):
                add(LINES, way, name, x, 10 ** (3 + turn) * (1 + number) * x**0.5, 0.08 if way == "wall" else 0.0)
    for name in (*ALGORITHMS, "ssbj predicted"):
        for x in (1e6, 1e7, 1e8):
            add(SHARED, "papers", name, x, 4e9 / x * (1 + len(name) / 5))
    for number, name in enumerate(PEERS):
        add(BARS, "wall", name, 0, 5e6 / 3**number, peak_mb=100 * number)
    found.append(
        Point(BARS.id, "wall", "spark native", 0, float("nan"), float("nan"), float("nan"), 0, {"note": NASTY})
    )
    for name in ("cachejoin", "pcachejoin", "opcachejoin"):
        for x in (1e6, 2e6, 5e6):
            add(GROUPS, "papers", name, x, 1e5 * len(name) / (x / 1e6) ** 0.3)
            add(BOX, "machine", name, x, 0.01 * len(name), quantiles=[0.001, 0.02, 0.05, 0.2, 1.5])
    for d in (64, 128, 256, 512, 1024):
        for share in (0.1, 0.3, 0.5, 0.7, 0.9):
            add(
                SURFACE,
                "papers",
                "oxhybridjoin",
                d,
                1e5 / (1 + (d / 256 - 1) ** 2 + share),
                z=share * 1e4,
                z_label="h_R",
            )
    return found


def write_points(out: Path, given: Sequence[Point]) -> Path:
    """As a run of the experiments leaves them behind."""
    rows = [
        {
            "figure": p.figure,
            "way": p.way,
            "series": p.series,
            "x": p.x,
            "y": p.y,
            "low": p.low,
            "high": p.high,
            "n": p.n,
            "settings": json.dumps(dict(p.settings)),
            "seed": 7,
            "versions": json.dumps({"semistream": "0.1.0", "numpy": "2.3"}),
            "machine": "2 cores, x86_64",
        }
        for p in given
    ]
    path = out / "raw" / "points.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path
