"""`semistream explain`: which algorithm suits a join, what to expect of it, and why not another."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pyarrow as pa
import typer

from semistream.cli.arguments import (
    DEFAULT_BATCH_ROWS,
    AsJson,
    AsOfColumn,
    How,
    Memory,
    Profile,
    Reads,
    StreamFormat,
    StreamPath,
    StreamTypes,
    ValidColumns,
    key_names,
    names,
    require,
    valid_names,
)
from semistream.cli.calibrate import profile_named
from semistream.cli.notices import compile_notice, note, reported
from semistream.errors import ConfigError
from semistream.spec import DEFAULT_HOW, JoinRequest

if TYPE_CHECKING:
    from semistream.cli.streams import Stream
    from semistream.master.base import Master
    from semistream.planner.explain import Measured
    from semistream.planner.plan import Candidate, JoinPlan

_WHOLE = "reading S and joining, one after the other; nothing was written"
#: tuples of a stream that a plan is made from
_SAMPLE_ROWS = 200_000


def explain(
    stream: StreamPath,
    master: Annotated[Path, typer.Option(help="Master data: a page store, or Parquet.")],
    on: Annotated[str, typer.Option(metavar="K[,K2]", help="Key columns; S=R where the names differ.")],
    how: How = DEFAULT_HOW,
    select: Annotated[str | None, typer.Option(metavar="A,B", help="Master columns wanted (default: all).")] = None,
    as_of: AsOfColumn = None,
    valid: ValidColumns = None,
    algorithm: Annotated[str, typer.Option(help="`auto`, or a name that `semistream algorithms` lists.")] = "auto",
    memory: Memory = "64MB",
    batch_rows: Annotated[int, typer.Option(help="Stream tuples per batch.")] = DEFAULT_BATCH_ROWS,
    micro_batches: Annotated[bool, typer.Option(help="Every batch is finished by itself, as on Spark.")] = False,
    max_delay: Annotated[str | None, typer.Option(metavar="30s", help="The longest a tuple may wait.")] = None,
    horizon: Annotated[
        int | None, typer.Option(metavar="N", help="Tuples that the stream will have (default: those of the files).")
    ] = None,
    stream_format: StreamFormat = None,
    stream_schema: StreamTypes = None,
    reads: Reads = "auto",
    profile: Profile = None,
    run: Annotated[bool, typer.Option("--run", help="Run the join too, and show measured beside predicted.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say which operator suits a join, what to expect of it, and why not another."""
    with reported():
        if batch_rows < 1:
            raise ConfigError(f"--batch-rows {batch_rows} is too small; it must be at least 1")
        if horizon is not None and horizon < 1:
            raise ConfigError(f"--horizon {horizon} is too small; it must be at least 1")
        request = JoinRequest.make(
            on=key_names(on),
            how=how,
            select=None if select is None else names(select, "--select"),
            as_of=as_of,
            valid=valid_names(as_of, valid),
            memory=memory,
            algorithm=algorithm,
            max_delay=max_delay,
            reads=reads,
        )
        spec = request.spec
        require(stream, "stream")
        require(master, "master data")
        with compile_notice():
            from semistream.algorithms.registry import resolve
            from semistream.cli.streams import expected_rows, open_stream
            from semistream.master.open import open_master
            from semistream.master.reading import choose_reading
            from semistream.planner.explain import Explanation, to_text
            from semistream.planner.plan import make_plan
            from semistream.planner.policy import Policy
            from semistream.planner.stream import StreamSample
        wanted = None if request.is_auto else resolve(algorithm).name
        source = open_stream(
            stream,
            dict(spec.pairs),
            master,
            memory_bytes=request.memory_bytes,
            format_name=stream_format,
            types=stream_schema,
        )
        costs = profile_named(profile)
        with closing(open_master(master, spec.master_on)) as opened:
            if not opened.has_index and wanted is None:
                note("R has no index, which many algorithms need; `semistream join` builds a page store by itself")
            sample = StreamSample(opened, spec, source.schema)
            for batch in source.batches(list(source.schema.names), 0, batch_rows, threads=False):
                if not sample.seen:
                    sample.probe(batch, request.memory_bytes)
                sample.add(batch)
                if sample.seen >= _SAMPLE_ROWS:
                    break
            n_rows = expected_rows(source)
            ahead = Policy().ahead() if n_rows is None else n_rows
            reading = choose_reading(opened, request.reads, request.memory_bytes)
            plan = make_plan(
                opened,
                spec,
                source.schema,
                request.memory_bytes,
                sample.statistics(),
                profile=costs,
                batch=batch_rows if n_rows is None else min(batch_rows, max(n_rows, 1)),
                micro_batches=micro_batches,
                max_delay_s=request.max_delay_s,
                direct=reading.direct,
                horizon=max(horizon or ahead, 1),
            )
            chosen = plan.choice if wanted is None else plan.of(wanted)
            if chosen is None:
                raise ConfigError(f"{wanted} cannot do this join: {plan.refused[str(wanted)]}")
            measured = _measured(opened, request, source, batch_rows, plan, chosen) if run else None
    typer.echo(to_text(Explanation(plan, chosen, reading, measured, history=spec.history), as_json))


def _measured(
    master: Master, request: JoinRequest, source: Stream, batch_rows: int, plan: JoinPlan, chosen: Candidate
) -> Measured | None:
    """What a run of the chosen algorithm over all of the stream shows, and how long it took with reading S."""
    from semistream.cli.opening import open_named
    from semistream.planner.explain import Measured

    situation = chosen.situation
    # As it was planned, though the memory may have changed since.
    reads = "direct" if situation.r.direct else "mapped"
    named = replace(request, algorithm=chosen.algorithm, options=chosen.options, max_delay_s=None, reads=reads)
    with open_named(master, named, source.schema) as join:
        started = time.perf_counter()
        for batch in source.batches(list(source.schema.names), 0, batch_rows, threads=True):
            _spend(join.push(batch))
            if not chosen.carried:
                _spend(join.drain())
        _spend(join.drain())
        seconds = time.perf_counter() - started
        seen = Measured.of(join, plan, situation.workload.batch)
        if seen is None:
            return None
        return replace(seen, whole_rate_per_s=seen.tuples / seconds, whole=_WHOLE)


def _spend(outputs: Iterator[pa.RecordBatch]) -> None:
    for _ in outputs:
        pass
