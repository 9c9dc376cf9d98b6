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
    from semistream.lab.figure import Figure


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
    show_list: Annotated[bool, typer.Option("--list", help="List the figures and measure nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure the papers' figures and write a report. A run that was broken off goes on where it stopped."""
    with reported():
        with compile_notice():
            from semistream.cost.profile import CostProfile
            from semistream.lab.figures.registry import chosen
            from semistream.lab.laboratory import Lab, scale_named
            from semistream.lab.reproduce import read_points
            from semistream.lab.reproduce import reproduce as measure
        figures = chosen(figure)
        if show_list:
            _show([{"figure": one.id, "title": one.title, "claim": one.claim} for one in figures], as_json)
            return
        started = time.monotonic()
        known = None if profile is None else CostProfile.load(profile)
        # Before hours of work, not after them.
        write_report = _report_writer()
        with _watched(len(figures)) as (say, begun):
            lab = Lab(
                out,
                scale=scale_named(scale),
                seed=seed,
                profile=known,
                weather_dir=weather_dir,
                data=data,
                say=say,
            )
            with lab:
                measure(lab, figures, begun)
        points = read_points(out)
        report = write_report(out)
        rows: list[dict[str, object]] = []
        for one in figures:
            verdict = one.judge(points.get(one.id, []))
            rows.append(
                {"figure": one.id, "outcome": verdict.outcome, "measured": verdict.measured, "why": verdict.why}
            )
        if as_json:
            seconds = round(time.monotonic() - started, 3)
            typer.echo(json.dumps({"report": str(report), "seconds": seconds, "figures": rows}, indent=2))
        else:
            _show([{name: row[name] for name in ("figure", "outcome", "measured")} for row in rows], False)
            typer.echo(f"report: {report}")


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
def _watched(total: int) -> Iterator[tuple[Callable[[str], None], Callable[[Figure], None]]]:
    """A bar of figures with what is being run; a line each where nobody watches."""
    if not notes.is_terminal:

        def begun_line(figure: Figure) -> None:
            note(f"figure {figure.id}: {figure.title}")

        yield (lambda _: None), begun_line
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=notes, transient=True) as progress:
        task = progress.add_task("", total=total)
        now = [""]
        done = [-1]

        def say(what: str) -> None:
            progress.update(task, description=f"{now[0]} {what}")

        def begun(figure: Figure) -> None:
            now[0] = figure.id
            done[0] += 1
            progress.update(task, completed=done[0], description=figure.id)

        yield say, begun


def _show(rows: list[dict[str, str]] | list[dict[str, object]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table(*(rows[0] if rows else ()), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console().print(table, markup=False)
