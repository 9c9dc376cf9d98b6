"""`semistream calibrate`, `tune` and `explain`: what operations cost here, the best sizes, and why which operator."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import typer
from rich.console import Console
from rich.table import Table

from semistream.cli.arguments import key_names, names, require
from semistream.cli.notices import compile_notice, notes, reported
from semistream.errors import ConfigError
from semistream.spec import JoinSpec, parse_bytes, parse_seconds

if TYPE_CHECKING:
    from semistream.cost.profile import CostProfile
    from semistream.cost.tune import Comparison, Tuning
    from semistream.master.base import Master

DEFAULT_BATCH_ROWS = 65_536
#: tuples of a stream that a plan is made from
_SAMPLE_ROWS = 200_000
_GRID_POINTS = 5
#: of an empirical run: tuples before anything is counted, and in all, unless the options say otherwise
_WARM_PART, _TUNE_TUPLES = 0.5, 400_000

Master_ = Annotated[Path, typer.Option("--master", help="Master data: a page store, or Parquet.")]
On = Annotated[str, typer.Option("--on", metavar="K[,K2]", help="Key columns; S=R where the names differ.")]
Memory = Annotated[str, typer.Option("--memory", help="The budget of bytes.")]
BatchRows = Annotated[int, typer.Option("--batch-rows", help="Stream tuples per batch.")]
Direct = Annotated[bool, typer.Option("--direct", help="Read past the page cache (O_DIRECT).")]
Profile = Annotated[
    str | None, typer.Option("--profile", metavar="FILE", help="A profile, or `papers` (default: this machine's).")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def calibrate(
    out: Annotated[Path | None, typer.Option(help="Where to store the profile (default: the cache folder).")] = None,
    folder: Annotated[Path | None, typer.Option(help="Folder on the disk that is to be measured.")] = None,
    seconds: Annotated[float, typer.Option(help="No round of runs begins after this many seconds.")] = 150.0,
    as_json: AsJson = False,
) -> None:
    """Measure what operations cost on this machine, and store it as the profile that predictions use."""
    with reported():
        if seconds <= 0:
            raise ConfigError(f"--seconds {seconds} is too short; it must be above 0")
        if folder is not None:
            require(folder, "folder")
        with compile_notice():
            from semistream.cost.calibrate import calibrate as measure
        with notes.status("measuring") as status:
            profile = measure(folder=folder, seconds=seconds, say=lambda what: status.update(f"measuring {what}"))
        place = profile.save(out)
    if as_json:
        typer.echo(json.dumps(profile.to_json(), indent=1))
        return
    _print_profile(profile)
    notes.print(f"stored in {place}", markup=False)


def _print_profile(profile: CostProfile) -> None:
    from semistream.cost.profile import SYMBOLS

    table = Table("unit", "what", "ns", "95 % interval", box=None, pad_edge=False)
    for symbol, what in SYMBOLS.items():
        cost = profile.units[symbol]
        table.add_row(symbol, what, f"{cost.seconds * 1e9:,.1f}", f"{cost.low * 1e9:,.1f} – {cost.high * 1e9:,.1f}")
    for mode, io in profile.io.items():
        seek, speed = io.seek_s, io.bytes_per_s
        table.add_row(
            "c_I/O",
            f"{mode} read: seek, and its bandwidth in MB/s",
            f"{seek.seconds * 1e9:,.0f}, {speed.seconds / 1e6:,.0f}",
            f"{seek.low * 1e9:,.0f} – {seek.high * 1e9:,.0f}, {speed.low / 1e6:,.0f} – {speed.high / 1e6:,.0f}",
        )
    Console().print(table)


def _profile(given: str | None) -> CostProfile:
    from semistream.cost.profile import CostProfile, paper_profile, profile_of_machine

    if given is None:
        found = profile_of_machine()
        if found.name == "typical":
            notes.print("this machine is not calibrated; a typical profile is used (run `semistream calibrate`)")
        return found
    return paper_profile() if given == "papers" else CostProfile.load(given)


# ---------------------------------------------------------------------------------------------- explain


def explain(
    stream: Annotated[Path, typer.Option(help="The stream: a Parquet file, or a folder of them.")],
    master: Master_,
    on: On,
    how: Annotated[str, typer.Option(help="inner, left, semi or anti.")] = "inner",
    select: Annotated[str | None, typer.Option(metavar="A,B", help="Master columns wanted (default: all).")] = None,
    algorithm: Annotated[str, typer.Option(help="`auto`, or a name that `semistream algorithms` lists.")] = "auto",
    memory: Memory = "64MB",
    batch_rows: BatchRows = DEFAULT_BATCH_ROWS,
    micro_batches: Annotated[bool, typer.Option(help="Every batch is finished by itself, as on Spark.")] = False,
    max_delay: Annotated[str | None, typer.Option(metavar="30s", help="The longest a tuple may wait.")] = None,
    direct: Direct = False,
    profile: Profile = None,
    run: Annotated[bool, typer.Option("--run", help="Run the join too, and show measured beside predicted.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say which operator suits a join, what to expect of it, and why not another."""
    with reported():
        if batch_rows < 1:
            raise ConfigError(f"--batch-rows {batch_rows} is too small; it must be at least 1")
        keys = key_names(on)
        spec = JoinSpec.make(keys, how, None if select is None else names(select, "--select"))
        budget = parse_bytes(memory)
        delay = None if max_delay is None else parse_seconds(max_delay)
        require(stream, "stream")
        require(master, "master data")
        with compile_notice():
            from semistream.master.open import open_master
            from semistream.master.parquet import ParquetFiles
            from semistream.operators.registry import open_join, resolve
            from semistream.planner.explain import Explanation, Measured, to_text
            from semistream.planner.plan import AUTO, make_plan
            from semistream.planner.stream import StreamSample
        wanted = None if algorithm == AUTO else resolve(algorithm).name
        source = ParquetFiles(stream)
        costs = _profile(profile)
        opened = open_master(master, spec.master_on)
        try:
            sample = StreamSample(opened, spec, source.schema)
            for batch in source.batches(list(source.schema.names), 0, batch_rows, threads=False):
                if not sample.seen:
                    sample.probe(batch, budget)
                sample.add(batch)
                if sample.seen >= _SAMPLE_ROWS:
                    break
            plan = make_plan(
                opened,
                spec,
                source.schema,
                budget,
                sample.facts(),
                profile=costs,
                batch=min(batch_rows, max(source.n_rows, 1)),
                micro_batches=micro_batches,
                max_delay_s=delay,
                direct=direct,
            )
            chosen = plan.choice if wanted is None else plan.of(wanted)
            if chosen is None:
                raise ConfigError(f"{wanted} cannot do this join: {plan.refused[str(wanted)]}")
            measured = None
            if run:
                options: dict[str, Any] = {**chosen.options, "direct": direct}
                with open_join(
                    chosen.algorithm,
                    master=opened,
                    on=keys,
                    how=how,
                    select=spec.select,
                    memory=budget,
                    stream_schema=source.schema,
                    **options,
                ) as join:
                    for batch in source.batches(list(source.schema.names), 0, batch_rows, threads=True):
                        _spend(join.push(batch))
                        if not chosen.carried:
                            _spend(join.drain())
                    _spend(join.drain())
                    measured = Measured.of(join, plan, chosen.setting.batch)
            explanation = Explanation(plan, chosen, measured)
        finally:
            opened.close()
    typer.echo(to_text(explanation, as_json))


def _spend(outputs: Iterator[pa.RecordBatch]) -> None:
    for _ in outputs:
        pass


# ------------------------------------------------------------------------------------------------- tune


def tune(
    algorithm: Annotated[str, typer.Argument(help="A name that `semistream algorithms` lists.")],
    memory: Memory = "64MB",
    master: Annotated[Path | None, typer.Option(help="Master data: a page store, or Parquet.")] = None,
    stream: Annotated[Path | None, typer.Option(help="The stream, Parquet; else one is generated.")] = None,
    on: Annotated[str | None, typer.Option(metavar="K[,K2]", help="Key columns, with --master.")] = None,
    rows: Annotated[int, typer.Option(help="Size of a generated R, without --master.")] = 200_000,
    skew: Annotated[float, typer.Option(help="Zipf exponent of a generated stream.")] = 1.0,
    tuples: Annotated[int, typer.Option(help="Stream tuples of each real run.")] = _TUNE_TUPLES,
    runs: Annotated[bool, typer.Option(help="Real runs over a grid beside the analysis.")] = True,
    direct: Direct = False,
    profile: Profile = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the surface into this file (svg or png).")] = None,
    as_json: AsJson = False,
) -> None:
    """Find the best sizes of an operator, by its formula and by real runs over a grid, and compare the two.

    Rates are those of the cost clock with the profile: exact counts, no noise.
    """
    with reported():
        with compile_notice():
            from semistream.cost.setting import Setting
            from semistream.cost.tune import KNOBS, compare, option_values, tune_empirically
            from semistream.cost.tune import tune as analyse
            from semistream.operators.registry import open_join, resolve
            from semistream.planner.stream import StreamSample
        name = resolve(algorithm).name
        if tuples < 1000:
            raise ConfigError(f"--tuples {tuples} is too few; give at least 1000")
        if (master is None) != (stream is None) or (master is None) != (on is None):
            raise ConfigError("--master, --stream and --on belong together; without them a workload is generated")
        budget, costs = parse_bytes(memory), _profile(profile)
        with _workload(name, master, stream, on, rows, skew, tuples) as (opened, keys, batches):
            spec = JoinSpec.make(keys)
            first = next(iter(batches()))
            sample = StreamSample(opened, spec, first.schema)
            sample.probe(first, budget)
            for batch in batches():
                sample.add(batch)
            setting = Setting.of(
                opened, spec, first.schema, budget, sample.facts().keys, direct=direct, batch=first.num_rows
            )
            started = time.perf_counter()
            analytic = analyse(name, setting, costs)
            notes.print(f"analysed {len(analytic.surface)} points in {time.perf_counter() - started:.1f} s")
            compared: Comparison | None = None
            if runs and KNOBS[name]:

                def open_with(options: Any) -> Any:
                    sizes: dict[str, Any] = {**option_values(options), "direct": direct}
                    return open_join(name, master=opened, on=keys, memory=budget, stream_schema=first.schema, **sizes)

                grid = {
                    knob.name: knob.points(setting, knob.low(setting), knob.high(setting), _GRID_POINTS)
                    if place < 2
                    else [setting.M * 0.02]
                    for place, knob in enumerate(KNOBS[name])
                }
                warm = int(tuples * _WARM_PART)
                with notes.status("running the grid"):
                    empirical = tune_empirically(name, open_with, batches, grid, costs, warm=warm)
                    compared = compare(analytic, empirical, open_with, batches, costs, warm=warm)
        if plot is not None:
            _draw(analytic if compared is None else compared.empirical, plot)
    if as_json:
        typer.echo(json.dumps(_tuning_json(analytic, compared), indent=2))
    else:
        _print_tuning(analytic, compared)


@contextmanager
def _workload(
    algorithm: str, master: Path | None, stream: Path | None, on: str | None, rows: int, skew: float, tuples: int
) -> Iterator[tuple[Master, dict[str, str], Any]]:
    """R, the key, and a function that gives the same batches of S every time."""
    from semistream.master.open import open_master

    if master is not None and stream is not None and on is not None:
        from semistream.master.parquet import ParquetFiles

        require(stream, "stream")
        require(master, "master data")
        keys = key_names(on)
        source = ParquetFiles(stream)

        def given() -> Iterator[pa.RecordBatch]:
            left = tuples
            for batch in source.batches(list(source.schema.names), 0, min(20_000, tuples // 10), threads=False):
                yield batch.slice(0, left)
                left -= batch.num_rows
                if left <= 0:
                    return

        opened = open_master(master, list(keys.values()))
        try:
            yield opened, keys, given
        finally:
            opened.close()
        return
    if rows < 1000:
        raise ConfigError(f"--rows {rows} is too few; give at least 1000")
    import numpy as np

    from semistream.master.build import build_pages
    from semistream.operators.registry import OPERATORS
    from semistream.workloads.relation import KEY, MASTER_SCHEMA, master_batches, stream_batches
    from semistream.workloads.zipf import key_probabilities

    def generated() -> Iterator[pa.RecordBatch]:
        return stream_batches(tuples, rows, skew, seed=2, batch_rows=min(20_000, tuples // 10))

    with tempfile.TemporaryDirectory(prefix="semistream-tune-") as folder:
        reader = pa.RecordBatchReader.from_batches(MASTER_SCHEMA, master_batches(rows, seed=1))
        layout: dict[str, Any] = {}
        if OPERATORS[algorithm].wants_frequency_order:
            frequency = (np.arange(rows, dtype=np.int64), key_probabilities(rows, skew, 2))
            layout = {"order": "frequency", "frequency": frequency}
        build_pages(reader, Path(folder) / "r", on=KEY, page_rows=64, **layout)
        opened = open_master(Path(folder) / "r", (KEY,))
        try:
            yield opened, {KEY: KEY}, generated
        finally:
            opened.close()


def _draw(tuning: Tuning, path: Path) -> None:
    try:
        from semistream.report.surface import plot_surface
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
    table = Table(analytic.algorithm, "d, tuples", "h_R, tuples", "tuples/s", "options", box=None, pad_edge=False)
    rows = [("analytic", analytic.best, analytic.best.rate_per_s)]
    if compared is not None:
        rows.append(("best of the grid", compared.empirical.best, compared.empirical.best.rate_per_s))
        rows.append(("analytic, in a real run", analytic.best, compared.reached_per_s))
    for label, point, rate in rows:
        options = ", ".join(f"{name}={value:,.4g}" for name, value in point.options.items()) or "the usual"
        table.add_row(label, f"{point.d:,.0f}", f"{point.h_R:,.0f}", f"{rate:,.0f}", options)
    console = Console()
    console.print(table)
    if compared is not None:
        console.print(
            f"deviation of the analysis: d {compared.d:+.1%}, h_R {compared.h_R:+.1%}, service rate "
            f"{-compared.rate:+.1%} (papers, of d and h_R: 0.33 – 2.5 %)"
        )
