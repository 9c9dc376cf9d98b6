"""Measure chosen figures into an out folder, so that a report can be written from it and a broken run goes on.

out/profile.json            unit costs of this machine
out/data/                   generated master data; may be removed
out/raw/about.json          scale, seed and what else all results here have in common
out/raw/runs.jsonl          every run of an operator
out/raw/figures/<id>.json   the points of a finished figure, and what they would be with other unit costs
out/raw/points.parquet      all points, tidy
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
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
from semistream.lab.measure.runs import NotRemembered, versions
from semistream.lab.papers_clock import variants
from semistream.lab.progress import Forecast, Foreseen, foresee, work_of

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


#: what every swept point has in common with the point it is a variant of
_OF_THE_RUN = frozenset({"scale", "seed", "algorithm", "source", "options", "direct", "d", "h_R", "h_S", "hit_share"})


def reproduce(
    lab: Lab,
    figures: Sequence[Figure],
    begun: Callable[[Figure], None] | None = None,
    left: Callable[[Forecast], None] | None = None,
) -> Path:
    """Measure these figures, those apart that the out folder has already; all its points as one Parquet file.

    `begun` is told when a figure begins, and `left` is given what knows how long the rest will take. Processes with the
    same out folder divide the figures; who finds none left comes back, though others may still be at theirs.
    """
    raw = lab.out / "raw"
    (raw / "figures").mkdir(parents=True, exist_ok=True)
    with lab.together.writing():
        _same_experiment(raw / ABOUT_FILE, lab)
    foreseen = {figure.id: foresee(figure, lab) for figure in figures}
    forecast = Forecast(work_of(figures, foreseen, 2.0 * lab.rows), _finished(raw))
    if left is not None:
        left(forecast)
    counted: set[str] = set()
    while True:
        figure, finished = _take(lab, figures, foreseen), _finished(raw)
        forecast.finished(finished)
        # Those that are there are told of as well: whoever counts them has all in the end.
        for one in (*(one for one in figures if one.id in finished), *([figure] if figure else [])):
            if begun is not None and one.id not in counted:
                counted.add(one.id)
                begun(one)
        if figure is None:
            return _points_of_all(lab)
        forecast.begin(figure.id)
        if lab.shelf is not None:
            lab.shelf.ahead = [foreseen[one.id].stores for one in figures if one.id not in finished]
            lab.shelf.clear(lab.let_go)
        started = time.monotonic()
        points = list(figure.run(lab))
        content = {
            "figure": figure.id,
            "seconds": time.monotonic() - started,
            "versions": versions(),
            "points": [asdict(point) for point in points],
            "sweep": _sweep(lab, figure, points),
        }
        _write(figure_file(lab.out, figure.id), content)
        lab.together.leave(figure.id)
        _points_of_all(lab)


def _take(lab: Lab, figures: Sequence[Figure], foreseen: Mapping[str, Foreseen]) -> Figure | None:
    """The first figure that is neither finished nor begun by another process; None if there is none left.

    Better one that asks for no run of those that others are at: two processes would wait for each other there.
    """
    with lab.together.choosing():
        finished = _finished(lab.out / "raw")
        mine = [one for one in figures if one.id not in finished and lab.together.take(one.id)]
        theirs = [one for one in figures if one.id not in finished and one not in mine]
        busy = {run for one in theirs for run in foreseen[one.id].runs}
        taken = next((one for one in mine if busy.isdisjoint(foreseen[one.id].runs)), mine[0] if mine else None)
        for one in mine:
            if one is not taken:
                lab.together.leave(one.id)
    return taken


def _points_of_all(lab: Lab) -> Path:
    with lab.together.writing():
        return write_points(lab.out)


def unfinished(out: Path, figures: Sequence[Figure]) -> list[str]:
    """Figures that the out folder lacks: none, or those that another process is at."""
    finished = _finished(out / "raw")
    return [figure.id for figure in figures if figure.id not in finished]


def _finished(raw: Path) -> dict[str, float]:
    """Seconds of the figures that the out folder has."""
    found = (json.loads(path.read_text(encoding="utf-8")) for path in (raw / "figures").glob("*.json"))
    return {figure_name(one["figure"]): float(one["seconds"]) for one in found}


def _sweep(lab: Lab, figure: Figure, points: Sequence[Point]) -> dict[str, list[dict[str, Any]]]:
    """The points of the papers' clock with each of its unit costs changed, from the runs that there are."""
    found: dict[str, list[dict[str, Any]]] = {}
    if not any(point.way == "papers" for point in points):
        return found
    for name, profile in variants(lab.profiles["papers"]).items():
        try:
            swept = [point for point in figure.run(lab.repriced(profile)) if point.way == "papers"]
        except NotRemembered:
            # A figure that prices while it runs cannot be priced again.
            return {}
        found[name] = [
            {**asdict(point), "settings": {k: v for k, v in point.settings.items() if k not in _OF_THE_RUN}}
            for point in swept
        ]
    return found


def read_sweep(out: Path) -> dict[str, dict[str, list[Point]]]:
    """The points of each finished figure by the variant of the papers' clock that they are priced with."""
    found = {}
    for path in sorted((out / "raw" / "figures").glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        swept = {name: [Point(**point) for point in points] for name, points in content.get("sweep", {}).items()}
        if swept:
            found[figure_name(content["figure"])] = swept
    return found


def figure_file(out: Path, figure: str) -> Path:
    return out / "raw" / "figures" / f"{figure}.json"


def _same_experiment(path: Path, lab: Lab) -> None:
    """One out folder holds results of one scale, one seed and one archive of weather reports."""
    about: dict[str, Any] = {
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
        cpus, ours = kept["machine"]["cpus"], about["machine"]["cpus"]
        if cpus != ours:
            raise ConfigError(
                f"{lab.out} holds results of {cpus} CPUs, and this process may use {ours}: their times cannot be "
                f"compared. Give it {cpus} CPUs (taskset), or choose another out folder"
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
