"""What a run of the experiments left behind, read back: the points, and what they have in common."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from semistream.lab.figure import Point
from semistream.lab.reproduce import POINTS_FILE, read_points, read_sweep


@dataclass(frozen=True)
class Results:
    """Points by figure, and what they were measured on and with: every value that occurs."""

    points: Mapping[str, list[Point]]
    about: Mapping[str, list[str]]
    #: points of the papers' clock with other unit costs, by figure and what was changed
    swept: Mapping[str, Mapping[str, list[Point]]] = field(default_factory=dict)


def read_results(out: Path) -> Results:
    """The points of an out folder."""
    points = read_points(out)
    scales = {str(p.settings["scale"]): None for mine in points.values() for p in mine if "scale" in p.settings}
    table = pq.read_table(out / "raw" / POINTS_FILE, columns=["seed", "machine", "versions"])
    about = {name: [_spelt(value) for value in table.column(name).unique().to_pylist()] for name in table.column_names}
    return Results(points, {"scale": list(scales), **about}, read_sweep(out))


def _spelt(value: object) -> str:
    """A JSON object as "name value, name value"; anything else as it is."""
    try:
        given = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return str(value)
    if isinstance(given, dict):
        return ", ".join(f"{name} {part}" for name, part in given.items())
    return str(value)
