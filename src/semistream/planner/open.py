"""The one way to open a join: by the name of an algorithm, or "auto" and the planner picks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, overload

import pyarrow as pa

from semistream.cost.profile import CostProfile
from semistream.cost.registry import predict_join
from semistream.errors import ConfigError
from semistream.master.open import MasterSource, open_master
from semistream.operators.base import SemiStreamJoin
from semistream.operators.registry import open_join as open_named
from semistream.planner.auto import AutoJoin
from semistream.planner.explain import Explanation, explain
from semistream.planner.plan import AUTO, Candidate, make_plan
from semistream.planner.stream import StreamFacts, StreamSample
from semistream.spec import JoinSpec, parse_bytes, parse_seconds

On = str | Sequence[str] | Mapping[str, str]


@overload
def open_join(  # type: ignore[overload-overlap]
    algorithm: Literal["auto"],
    *,
    master: MasterSource,
    on: On,
    how: str = ...,
    select: Sequence[str] | None = ...,
    memory: str | int = ...,
    suffix: str = ...,
    stream_schema: pa.Schema | None = ...,
    sample: pa.RecordBatch | None = ...,
    profile: CostProfile | None = ...,
    max_delay: str | float | None = ...,
    direct: bool = ...,
) -> AutoJoin: ...


@overload
def open_join(
    algorithm: str,
    *,
    master: MasterSource,
    on: On,
    how: str = ...,
    select: Sequence[str] | None = ...,
    memory: str | int = ...,
    suffix: str = ...,
    stream_schema: pa.Schema | None = ...,
    sample: pa.RecordBatch | None = ...,
    profile: CostProfile | None = ...,
    **options: Any,
) -> SemiStreamJoin: ...


def open_join(
    algorithm: str,
    *,
    master: MasterSource,
    on: On,
    how: str = "inner",
    select: Sequence[str] | None = None,
    memory: str | int = "64MB",
    suffix: str = "_right",
    stream_schema: pa.Schema | None = None,
    sample: pa.RecordBatch | None = None,
    profile: CostProfile | None = None,
    **options: Any,
) -> SemiStreamJoin | AutoJoin:
    """Open a semi-stream join.

    `algorithm` is a name (`semistream algorithms`), or "auto": then the planner looks at the first batch, picks the
    operator and revises that when the stream turns out otherwise.

    `master` is the path of a page store or of Parquet data, an Arrow table, or an opened `Master`; `on` names the
    key (one column, several, or {stream column: master column}); `select` the master columns wanted (all others
    are neither cached nor carried); `memory` the bytes the join may hold. With `stream_schema` the schemas are
    checked at once instead of at the first push. `options` belong to the algorithm: see its class; "auto" takes
    `direct` and `max_delay`, the longest time that a tuple may wait at full speed ("30s").

    `join.explain()` says what to expect; it knows the stream from `sample`, a batch of it, and the machine from
    `profile` (else the one that `semistream calibrate` stored, else a typical one).
    """
    if algorithm == AUTO:
        return _open_auto(master, on, how, select, memory, suffix, stream_schema, sample, profile, **options)
    join = open_named(
        algorithm,
        master=master,
        on=on,
        how=how,
        select=select,
        memory=memory,
        suffix=suffix,
        stream_schema=stream_schema,
        **options,
    )
    join.explainer = partial(_explain_named, sample=sample, profile=profile, options=options)
    return join


def _open_auto(
    master: MasterSource,
    on: On,
    how: str,
    select: Sequence[str] | None,
    memory: str | int,
    suffix: str,
    stream_schema: pa.Schema | None,
    sample: pa.RecordBatch | None,
    profile: CostProfile | None,
    *,
    direct: bool = False,
    max_delay: str | float | None = None,
    **options: Any,
) -> AutoJoin:
    if options:
        raise ConfigError(
            f"algorithm='auto' has no option {next(iter(options))!r}; it takes direct and max_delay, "
            "other options belong to an algorithm: name one"
        )
    spec, budget = JoinSpec.make(on, how, select, suffix), parse_bytes(memory)
    delay = None if max_delay is None else parse_seconds(max_delay)
    opened = open_master(master, spec.master_on)
    try:
        join = AutoJoin(opened, spec, budget, sample=sample, profile=profile, max_delay_s=delay, direct=direct)
    except BaseException:
        if opened is not master:
            opened.close()
        raise
    join.owns_master = opened is not master
    try:
        if stream_schema is not None and join.output_schema is None:
            join.start(stream_schema)
    except BaseException:
        join.close()
        raise
    return join


def _explain_named(
    join: SemiStreamJoin,
    *,
    sample: pa.RecordBatch | None,
    profile: CostProfile | None,
    options: Mapping[str, Any],
) -> Explanation:
    """The named algorithm beside those that the planner would weigh."""
    schema = join._schema if join._schema is not None else None if sample is None else sample.schema
    if schema is None:
        raise ConfigError("the stream's schema is not known yet; push a batch first, or open the join with sample=")
    facts: StreamFacts | None = None
    if sample is not None:
        learnt = StreamSample(join.master, join.spec, schema)
        learnt.add(sample)
        learnt.probe(sample, join.budget.total)
        facts = learnt.facts()
    plan = make_plan(
        join.master, join.spec, schema, join.budget.total, facts, profile=profile, direct=join._direct, sizes=False
    )
    mine = plan.of(join.name)
    if mine is None:
        raise ConfigError(f"there is no prediction for {join.name} here: {plan.refused.get(join.name, 'unknown')}")
    sizes = {
        name: float(value)
        for name, value in options.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    if sizes:
        setting = mine.setting.with_options(**sizes)
        mine = Candidate(join.name, predict_join(join.name, setting, plan.profile), setting)
    return explain(join, plan, mine)
