"""`semistream tune`: the best sizes of an algorithm, by its formula and by real runs."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import typer
from rich.console import Console
from rich.table import Table

from semistream.cli.arguments import AsJson, Memory, Profile, Reads, key_names, require
from semistream.cli.calibrate import profile_named
from semistream.cli.notices import compile_notice, notes, reported
from semistream.errors import ConfigError
from semistream.spec import JoinRequest, JoinSpec, checked_reads, parse_bytes

if TYPE_CHECKING:
    from semistream.cost.profile import CostProfile
    from semistream.cost.situation import Situation
    from semistream.cost.tune import Tuning
    from semistream.engine.join import SemiStreamJoin
    from semistream.lab.calibrate.tune_runs import Comparison
    from semistream.master.base import Master

#: of an empirical run: tuples before anything is counted, and in all, unless the options say otherwise
_WARM_PART, _TUNE_TUPLES = 0.5, 400_000


def tune(
    algorithm: Annotated[str, typer.Argument(help="A name that `semistream algorithms` lists.")],
    memory: Memory = "64MB",
    master: Annotated[Path | None, typer.Option(help="Master data: a page store, or Parquet.")] = None,
    stream: Annotated[
        Path | None, typer.Option(help="The stream: Parquet, CSV, TSV or JSON lines; else one is generated.")
    ] = None,
    on: Annotated[str | None, typer.Option(metavar="K[,K2]", help="Key columns, with --master.")] = None,
    rows: Annotated[int, typer.Option(help="Size of a generated R, without --master.")] = 200_000,
    skew: Annotated[float, typer.Option(help="Zipf exponent of a generated stream.")] = 1.0,
    tuples: Annotated[int, typer.Option(help="Stream tuples of each real run.")] = _TUNE_TUPLES,
    runs: Annotated[bool, typer.Option(help="Real runs with many sizes beside the formula.")] = True,
    reads: Reads = "auto",
    profile: Profile = None,
    plot: Annotated[Path | None, typer.Option(help="Draw rates over sizes into this file (svg or png).")] = None,
    as_json: AsJson = False,
) -> None:
    """Find the best sizes (cache, buffers) of an algorithm, by its formula and by real runs, and compare the two.

    What happens is counted, and priced at the costs of the profile: so a busy machine changes no rate.
    """
    with reported():
        with compile_notice():
            from semistream.algorithms.registry import resolve
            from semistream.cost.situation import Situation
            from semistream.cost.tune import tune as analyse
            from semistream.master.reading import choose_reading
            from semistream.planner.stream import StreamSample
        chosen = resolve(algorithm)
        if tuples < 1000:
            raise ConfigError(f"--tuples {tuples} is too few; give at least 1000")
        if (master is None) != (stream is None) or (master is None) != (on is None):
            raise ConfigError("--master, --stream and --on belong together; without them a workload is generated")
        checked_reads(reads)
        budget, costs = parse_bytes(memory), profile_named(profile)
        with (
            _given(master, stream, on, tuples, budget)
            if master and stream and on
            else _generated(rows, skew, tuples, by_frequency=chosen.wants_frequency_order) as work
        ):
            spec = JoinSpec.make(work.keys)
            reading = choose_reading(work.master, reads, budget)
            first = next(iter(work.batches()))
            sample = StreamSample(work.master, spec, first.schema)
            sample.probe(first, budget)
            for batch in work.batches():
                sample.add(batch)
            situation = Situation.of(
                work.master,
                spec,
                first.schema,
                budget,
                sample.statistics().keys,
                direct=reading.direct,
                batch=first.num_rows,
            )
            started = time.perf_counter()
            analytic = analyse(chosen.name, situation, costs)
            seconds = time.perf_counter() - started
            notes.print(f"the formula was asked about {len(analytic.surface)} combinations of sizes in {seconds:.1f} s")
            compared: Comparison | None = None
            if runs and chosen.knobs:
                request = JoinRequest(spec, budget, chosen.name, reads=reading.name)
                with notes.status("running with many sizes"):
                    compared = _on_grid(work, request, situation, analytic, costs)
        if plot is not None:
            _draw(analytic if compared is None else compared.empirical, plot)
    if as_json:
        typer.echo(json.dumps(_tuning_json(analytic, compared), indent=2))
    else:
        _print_tuning(analytic, compared)


@dataclass(frozen=True)
class _Workload:
    """R, the key, and a function that gives the same `tuples` of S, in batches, every time."""

    master: Master
    keys: dict[str, str]
    tuples: int
    batches: Callable[[], Iterator[pa.RecordBatch]]


@contextmanager
def _given(master: Path, stream: Path, on: str, tuples: int, budget: int) -> Iterator[_Workload]:
    from semistream.cli.streams import open_stream
    from semistream.master.open import open_master

    require(stream, "stream")
    require(master, "master data")
    keys = key_names(on)
    source = open_stream(stream, keys, master, memory_bytes=budget)

    def batches() -> Iterator[pa.RecordBatch]:
        left = tuples
        for batch in source.batches(list(source.schema.names), 0, min(20_000, tuples // 10), threads=False):
            yield batch.slice(0, left)
            left -= batch.num_rows
            if left <= 0:
                return

    with closing(open_master(master, list(keys.values()))) as opened:
        yield _Workload(opened, keys, tuples, batches)


@contextmanager
def _generated(rows: int, skew: float, tuples: int, *, by_frequency: bool) -> Iterator[_Workload]:
    if rows < 1000:
        raise ConfigError(f"--rows {rows} is too few; give at least 1000")
    from semistream.lab.forms import path_of
    from semistream.lab.sources import Synthetic
    from semistream.lab.workloads.relation import KEY, SyntheticStream
    from semistream.master.open import open_master

    source = Synthetic(rows, skew, order="frequency" if by_frequency else "key", page_rows=64)

    def batches() -> Iterator[pa.RecordBatch]:
        stream = SyntheticStream(rows, skew, source.seed)
        return stream.batches(0, tuples, batch_rows=min(20_000, tuples // 10))

    with (
        tempfile.TemporaryDirectory(prefix="semistream-tune-") as folder,
        closing(open_master(path_of(source, "pages", Path(folder)), (KEY,))) as opened,
    ):
        yield _Workload(opened, {KEY: KEY}, tuples, batches)


def _on_grid(
    work: _Workload, request: JoinRequest, situation: Situation, analytic: Tuning, costs: CostProfile
) -> Comparison:
    """The best point of real runs over a grid, beside the analytic one."""
    from semistream.cli.opening import open_named
    from semistream.lab.calibrate.tune_runs import compare, grid_of, tune_empirically

    schema = next(iter(work.batches())).schema

    def open_with(options: Mapping[str, Any]) -> SemiStreamJoin:
        return open_named(work.master, replace(request, options={**request.options, **options}), schema)

    grid, warm = grid_of(request.algorithm, situation), int(work.tuples * _WARM_PART)
    empirical = tune_empirically(request.algorithm, open_with, work.batches, grid, costs, warm=warm)
    return compare(analytic, empirical, open_with, work.batches, costs, warm=warm)


def _draw(tuning: Tuning, path: Path) -> None:
    try:
        from semistream.lab.report.surface import plot_surface
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise ConfigError("--plot needs matplotlib; run: pip install 'semistream[report]'") from error
    plot_surface(tuning, path)
    notes.print(f"drawn: {path}", markup=False)


def _point_json(point: Any) -> dict[str, Any]:
    return {"options": dict(point.options), "d": point.d, "h_R": point.h_R, "rate_per_s": point.rate_per_s}


def _tuning_json(analytic: Tuning, compared: Comparison | None) -> dict[str, Any]:
    tuning: dict[str, Any] = {"algorithm": analytic.algorithm, "analytic": _point_json(analytic.best)}
    if compared is not None:
        tuning |= {
            "empirical": _point_json(compared.empirical.best),
            "reached_per_s": compared.reached_per_s,
            "deviation": {"d": compared.d, "h_R": compared.h_R, "rate": compared.rate},
            "surface": [_point_json(point) for point in compared.empirical.surface],
        }
    return tuning


def _print_tuning(analytic: Tuning, compared: Comparison | None) -> None:
    table = Table(analytic.algorithm, "R per load", "R in the cache", "tuples/s", "options", box=None, pad_edge=False)
    rows = [("by formula", analytic.best, analytic.best.rate_per_s)]
    if compared is not None:
        rows.append(("best of all real runs", compared.empirical.best, compared.empirical.best.rate_per_s))
        rows.append(("by formula, in a real run", analytic.best, compared.reached_per_s))
    for label, point, rate in rows:
        options = ", ".join(f"{name}={_size(value)}" for name, value in point.options.items()) or "the defaults"
        table.add_row(label, f"{point.d:,.0f} tuples", f"{point.h_R:,.0f} tuples", f"{rate:,.0f}", options)
    # As wide as it has to be: an option that is cut cannot be copied.
    Console(width=1000, highlight=False).print(table, soft_wrap=True)
    if compared is not None:
        typer.echo(f"what the formula chose reaches {1 - compared.rate:.1%} of the best real run")
    typer.echo("rates are for the join alone with a cache at rest: what was counted, at the costs of the profile")


def _size(value: float) -> str:
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.4g}"
