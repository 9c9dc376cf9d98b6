"""The one way to open a join: by the name of an algorithm, or without one, and the planner picks it.

The planner is imported when it is asked: a join whose algorithm is named needs none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semistream.algorithms.registry import resolve
from semistream.engine.join import SemiStreamJoin
from semistream.engine.protocol import Join
from semistream.errors import ConfigError
from semistream.master.base import Master
from semistream.master.open import MasterSource, open_master
from semistream.master.reading import Reading, choose_reading
from semistream.spec import AUTO, DEFAULT_HOW, DEFAULT_MEMORY, JoinRequest, On, checked_reads

if TYPE_CHECKING:
    from semistream.cost.profile import CostProfile
    from semistream.planner.auto import AutoJoin
    from semistream.planner.explain import Explanation
    from semistream.planner.policy import Policy
    from semistream.planner.stream import StreamStatistics


def open_join(
    algorithm: str | None = None,
    *,
    master: MasterSource,
    on: On,
    how: str = DEFAULT_HOW,
    select: Sequence[str] | None = None,
    memory: str | int = DEFAULT_MEMORY,
    reads: str = AUTO,
    suffix: str = "_right",
    as_of: str | None = None,
    valid: Sequence[str] | None = None,
    stream_schema: pa.Schema | None = None,
    sample: pa.RecordBatch | None = None,
    profile: CostProfile | None = None,
    policy: Policy | None = None,
    max_delay: str | float | None = None,
    **options: Any,
) -> Join:
    """Open a semi-stream join.

    `algorithm` is a name (`semistream algorithms`). Without one, or with "auto", the planner looks at the first batch,
    picks the algorithm and revises that when the stream turns out otherwise.

    `master` is the path of a page store or of Parquet data, Arrow data in memory (a table, a frame), or an opened
    `Master`; `on` names the key (one column, several, or {stream column: master column}); `how` is "left" (every tuple
    of the stream stays), "inner", "semi" or "anti"; `select` names the master columns wanted (all others are neither
    cached nor carried); `memory` the bytes the join may hold. With `stream_schema` the
    schemas are checked at once instead of at the first push. `options` belong to the algorithm; "auto" takes
    `max_delay`, the longest time that a tuple may wait at full speed ("30s").

    With `as_of` and `valid` only those master rows of a key match that were valid at the tuple's time: `as_of` names
    the stream's column with that time, `valid` R's columns since when a row is valid and from when on no longer, for
    example `as_of="event_time", valid=("valid_from", "valid_to")`: valid_from <= event_time < valid_to, where a null
    valid_from is since ever and a null valid_to is still. A tuple without a time matches nothing.

    `reads` says how pages of R are read: "mapped", through the page cache; "direct", past it (a page store only);
    "auto", whichever suits the size of R and the memory of the machine (`join.explain()` says which and why).

    `join.explain()` says what to expect; it knows the stream from `sample`, a batch of it, and the machine from
    `profile` (else the one that `semistream calibrate` stored, else a typical one). `policy` holds the planner's
    thresholds, and the `horizon`: how many tuples the stream will have, or is expected to have.
    """
    request = JoinRequest.make(
        on=on,
        how=how,
        select=select,
        memory=memory,
        algorithm=algorithm,
        suffix=suffix,
        as_of=as_of,
        valid=valid,
        max_delay=max_delay,
        reads=reads,
        options=options,
    )
    return open_request(master, request, stream_schema=stream_schema, sample=sample, profile=profile, policy=policy)


def open_request(
    master: MasterSource,
    request: JoinRequest,
    *,
    stream_schema: pa.Schema | None = None,
    sample: pa.RecordBatch | None = None,
    profile: CostProfile | None = None,
    policy: Policy | None = None,
) -> SemiStreamJoin | AutoJoin:
    """Open what was asked for; `open_join` says what the arguments are."""
    check_request(request)
    opened = open_master(master, request.spec.master_on)
    try:
        reading = choose_reading(opened, request.reads, request.memory_bytes)
        join = (
            _auto(opened, request, reading, sample, profile, policy)
            if request.is_auto
            else _named(opened, request, reading, sample, profile, policy)
        )
    except BaseException:
        if opened is not master:
            opened.close()
        raise
    # An opened Master is its owner's to close.
    join.owns_master = opened is not master
    try:
        if stream_schema is not None and join.output_schema is None:
            join.start(stream_schema)
    except BaseException:
        join.close()
        raise
    return join


def check_request(request: JoinRequest) -> None:
    """Refuse an algorithm that is not known, options that it does not take, and an unknown way to read R."""
    checked_reads(request.reads)
    if not request.is_auto:
        if request.max_delay_s is not None:
            raise ConfigError(
                f"{request.algorithm} has no option 'max_delay'; it is for algorithm='auto', which picks one that "
                "keeps within it"
            )
        resolve(request.algorithm).checked(request.options)
        return
    unknown = next(iter(request.options), None)
    if unknown is not None:
        raise ConfigError(
            f"algorithm='auto' has no option {unknown!r}; it takes max_delay, other options belong to an algorithm: "
            "name one"
        )


def _auto(
    master: Master,
    request: JoinRequest,
    reading: Reading,
    sample: pa.RecordBatch | None,
    profile: CostProfile | None,
    policy: Policy | None,
) -> AutoJoin:
    from semistream.planner.auto import AutoJoin

    return AutoJoin(
        master,
        request.spec,
        request.memory_bytes,
        sample=sample,
        profile=profile,
        max_delay_s=request.max_delay_s,
        reading=reading,
        policy=policy,
    )


def _named(
    master: Master,
    request: JoinRequest,
    reading: Reading,
    sample: pa.RecordBatch | None,
    profile: CostProfile | None,
    policy: Policy | None,
) -> SemiStreamJoin:
    algorithm, options = resolve(request.algorithm), request.options
    join = SemiStreamJoin(algorithm, master, request.spec, request.memory_bytes, options, direct=reading.direct)
    join.explainer = lambda opened: _explain_named(opened, request, reading, sample, profile, policy)
    return join


def _explain_named(
    join: SemiStreamJoin,
    request: JoinRequest,
    reading: Reading,
    sample: pa.RecordBatch | None,
    profile: CostProfile | None,
    policy: Policy | None,
) -> Explanation:
    """The named algorithm beside those that the planner would weigh."""
    from semistream.planner.explain import explain
    from semistream.planner.plan import Candidate, make_plan
    from semistream.planner.stream import StreamSample

    schema = join.stream_schema
    if schema is None and sample is not None:
        schema = sample.schema
    if schema is None:
        raise ConfigError("the stream's schema is not known yet; push a batch first, or open the join with sample=")
    stream: StreamStatistics | None = None
    if sample is not None:
        learnt = StreamSample(join.master, join.spec, schema)
        learnt.add(sample)
        learnt.probe(sample, join.budget.total, direct=join.direct)
        stream = learnt.statistics()
    plan = make_plan(
        join.master,
        join.spec,
        schema,
        join.budget.total,
        stream,
        profile=profile,
        direct=join.direct,
        sizes=False,
        policy=policy,
    )
    mine = plan.of(join.name)
    if mine is None:
        raise ConfigError(f"there is no prediction for {join.name} here: {plan.refused.get(join.name, 'unknown')}")
    if request.options:
        mine = Candidate.of(join.name, mine.situation, plan.profile, request.options, plan.horizon)
    return explain(join, plan, mine, reading)
