"""`semistream reproduce`: the papers' figures, measured here, and a report that sets them beside what was claimed."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from semistream.cli.notices import compile_notice, note, notes, reported
from semistream.errors import ConfigError

if TYPE_CHECKING:
    from semistream.lab.figure import Figure, Verdict
    from semistream.lab.progress import Forecast


def reproduce(
    figure: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Only this figure, such as ssbj-5a; may be repeated.")
    ] = None,
    scale: Annotated[str, typer.Option(help="R of 1, 10 or 100 million tuples: small, medium or paper.")] = "small",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for data, raw results and report.")] = Path(
        "reproduced"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Seed of all generated data.")] = 1,
    profile: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Unit costs of this machine (default: measured once, kept in DIR)."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for generated master data (default: in the out folder).")
    ] = None,
    weather_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Monthly files of NDP-026B (default: made-up reports).")
    ] = None,
    data_limit: Annotated[
        float | None,
        typer.Option(
            metavar="GB",
            min=0.001,
            help="Keep stores of master data below this size: remove those that no later figure needs, and build "
            "others again. In a folder given with --data only stores built meanwhile are removed.",
        ),
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the figures and measure nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure the papers' figures and write a report. A run that was broken off goes on where it stopped.

    Give the command twice at the same time, and both share the work: they warm up side by side, and measure in turn.
    """
    with reported():
        with compile_notice():
            from semistream.cost.profile import CostProfile
            from semistream.lab.figures.registry import chosen
            from semistream.lab.laboratory import Lab, scale_named
            from semistream.lab.reproduce import read_points, unfinished
            from semistream.lab.reproduce import reproduce as measure
        figures = chosen(figure)
        if show_list:
            _show([{"figure": one.id, "title": one.title, "claim": one.claim} for one in figures], as_json)
            return
        started = time.monotonic()
        known = None if profile is None else CostProfile.load(profile)
        # Before hours of work, not after them.
        write_report = _report_writer()
        with _watched(len(figures)) as (say, begun, left):
            lab = Lab(
                out,
                scale=scale_named(scale),
                seed=seed,
                profile=known,
                weather_dir=weather_dir,
                data=data,
                data_limit=None if data_limit is None else int(data_limit * 1e9),
                say=say,
            )
            with lab:
                measure(lab, figures, begun, left)
        elsewhere = unfinished(out, figures)
        if elsewhere:
            note(f"another process is still at {', '.join(elsewhere)}; it writes the report when it is done")
            return
        points = read_points(out)
        report = write_report(out)
        rows: list[dict[str, object]] = []
        for one in figures:
            verdict = one.judge(points.get(one.id, []))
            rows.append({"figure": one.id, **_as_json(verdict)})
        if as_json:
            seconds = round(time.monotonic() - started, 3)
            typer.echo(json.dumps({"report": str(report), "seconds": seconds, "figures": rows}, indent=2))
        else:
            _show([{name: row[name] for name in ("figure", "marks", "measured")} for row in rows], False)
            typer.echo(f"report: {report}")


def _as_json(verdict: Verdict) -> dict[str, object]:
    """A verdict as JSON values, and its marks as a word per clock: direction, size, trend."""
    sign = {True: "+", False: "-", None: "."}
    marks = {way: [marks.direction, marks.size, marks.trend] for way, marks in verdict.marks.items()}
    return {
        "outcome": verdict.outcome,
        "marks": " ".join(f"{way} {''.join(sign[mark] for mark in found)}" for way, found in marks.items()),
        "parts": {
            way: {
                "direction": found.direction,
                "size": found.size,
                "trend": found.trend,
                "sizes": list(found.sizes),
                "points_not_at_rest": found.unrested,
                "pace": round(found.pace, 3),
                "points_without_pace": found.unpaced,
            }
            for way, found in verdict.marks.items()
        },
        "measured": verdict.measured,
        "why": verdict.why,
        "notes": list(verdict.notes),
    }


def _report_writer() -> Callable[[Path], Path]:
    """Pictures need matplotlib, which is an extra."""
    try:
        import matplotlib  # noqa: F401

        from semistream.lab.report.html import write_report
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise ConfigError(
            "the report needs the package matplotlib, which is not installed; run: pip install 'semistream[report]'"
        ) from error
    return write_report


@contextlib.contextmanager
def _watched(
    total: int,
) -> Iterator[tuple[Callable[[str], None], Callable[[Figure], None], Callable[[Forecast], None]]]:
    """A bar of figures with what is being run and the time that is left; a line each where nobody watches."""
    known: list[Forecast] = []

    def left(forecast: Forecast) -> None:
        known.append(forecast)

    def remaining() -> str:
        from semistream.lab.progress import spoken

        seconds = known[-1].seconds_left() if known else None
        return "" if seconds is None else f"about {spoken(seconds)} left"

    if not notes.is_terminal:
        number = 0

        def begun_line(figure: Figure) -> None:
            nonlocal number
            number += 1
            note("; ".join(filter(None, (f"figure {number} of {total}, {figure.id}: {figure.title}", remaining()))))

        yield (lambda _: None), begun_line, left
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=notes, transient=True) as progress:
        task = progress.add_task("", total=total)
        now = [""]
        done = [-1]

        def say(what: str) -> None:
            progress.update(task, description=" · ".join(filter(None, (now[0], what, remaining()))))

        def begun(figure: Figure) -> None:
            now[0] = figure.id
            done[0] += 1
            progress.update(task, completed=done[0])
            say("")

        yield say, begun, left


def _show(rows: list[dict[str, str]] | list[dict[str, object]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table(*(rows[0] if rows else ()), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console().print(table, markup=False)
