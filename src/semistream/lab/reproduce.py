"""Measure chosen figures into an out folder, so that a report can be written from it and a broken run goes on.

out/profile.json            unit costs of this machine
out/data/                   generated master data; may be removed
out/raw/about.json          scale, seed and what else all results here have in common
out/raw/runs.jsonl          every run of an operator
out/raw/figures/<id>.json   the points of a finished figure
out/raw/points.parquet      all points, tidy
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from semistream.cost.profile import machine_info
from semistream.errors import ConfigError, StoreError
from semistream.lab.figure import Figure, Point
from semistream.lab.figures.papers import figure_name
from semistream.lab.laboratory import Lab
from semistream.lab.measure.runs import versions

POINTS_FILE = "points.parquet"
ABOUT_FILE = "about.json"
SCHEMA = pa.schema(
    [
        ("figure", pa.string()),
        ("way", pa.string()),
        ("series", pa.string()),
        ("x", pa.float64()),
        ("y", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("n", pa.int64()),
        ("settings", pa.string()),
        ("seed", pa.int64()),
        ("versions", pa.string()),
        ("machine", pa.string()),
    ]
)


def reproduce(lab: Lab, figures: Sequence[Figure], begun: Callable[[Figure], None] | None = None) -> Path:
    """Measure these figures, those apart that the out folder has already; all its points as one Parquet file."""
    raw = lab.out / "raw"
    (raw / "figures").mkdir(parents=True, exist_ok=True)
    _same_experiment(raw / ABOUT_FILE, lab)
    finished = {figure_name(path.stem) for path in (raw / "figures").glob("*.json")}
    for figure in figures:
        if begun is not None:
            begun(figure)
        if figure.id in finished:
            continue
        started = time.monotonic()
        points = [asdict(point) for point in figure.run(lab)]
        spent = time.monotonic() - started
        _write(
            figure_file(lab.out, figure.id),
            {"figure": figure.id, "seconds": spent, "versions": versions(), "points": points},
        )
        write_points(lab.out)
    return write_points(lab.out)


def figure_file(out: Path, figure: str) -> Path:
    return out / "raw" / "figures" / f"{figure}.json"


def _same_experiment(path: Path, lab: Lab) -> None:
    """One out folder holds results of one scale, one seed and one archive of weather reports."""
    about = {
        "scale": lab.scale.name,
        "rows": lab.scale.rows,
        "seed": lab.seed,
        "weather": None if lab.weather_dir is None else lab.weather_dir.name,
        "machine": machine_info(),
    }
    if path.exists():
        kept = json.loads(path.read_text(encoding="utf-8"))
        for name in ("scale", "rows", "seed", "weather"):
            if kept[name] != about[name]:
                raise ConfigError(
                    f"{lab.out} holds results with {name} {kept[name]!r}, not {about[name]!r}; choose another out "
                    "folder"
                )
        return
    _write(path, about)


def write_points(out: Path) -> Path:
    """All points of the finished figures, tidy; the file is put in its place when it is complete."""
    about = json.loads((out / "raw" / ABOUT_FILE).read_text(encoding="utf-8"))
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    for path in sorted((out / "raw" / "figures").glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        for point in found["points"]:
            row = {
                **point,
                "figure": figure_name(point["figure"]),
                "settings": json.dumps(point["settings"], sort_keys=True),
                "seed": about["seed"],
                "versions": json.dumps(found["versions"], sort_keys=True),
                "machine": json.dumps(about["machine"], sort_keys=True),
            }
            for name in SCHEMA.names:
                columns[name].append(row[name])
    target = out / "raw" / POINTS_FILE
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    pq.write_table(pa.table(columns, schema=SCHEMA), scratch)
    scratch.replace(target)
    return target


def read_points(out: Path) -> dict[str, list[Point]]:
    """The points in an out folder, by figure."""
    path = out / "raw" / POINTS_FILE
    if not path.exists():
        raise StoreError(f"{path} does not exist: run `semistream reproduce --out {out}` first")
    found: dict[str, list[Point]] = {}
    for row in pq.read_table(path, columns=SCHEMA.names[:9]).to_pylist():
        found.setdefault(row["figure"], []).append(Point(**{**row, "settings": json.loads(row["settings"])}))
    return found


def _write(path: Path, content: Any) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps(content, sort_keys=True) + "\n", encoding="utf-8")
    scratch.replace(path)
