"""The one way to open a join: by the name of an algorithm, or without one, and the planner picks it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from semistream.algorithms.registry import resolve
from semistream.cost.profile import CostProfile
from semistream.engine.join import SemiStreamJoin
from semistream.engine.protocol import Join
from semistream.errors import ConfigError
from semistream.master.base import Master
from semistream.master.open import MasterSource, open_master
from semistream.planner.auto import AutoJoin
from semistream.planner.explain import Explanation, explain
from semistream.planner.plan import Candidate, make_plan
from semistream.planner.policy import Policy
from semistream.planner.stream import StreamSample, StreamStatistics
from semistream.spec import DEFAULT_MEMORY, JoinRequest, On


def open_join(
    algorithm: str | None = None,
    *,
    master: MasterSource,
    on: On,
    how: str = "inner",
    select: Sequence[str] | None = None,
    memory: str | int = DEFAULT_MEMORY,
    suffix: str = "_right",
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
    `Master`; `on` names the key (one column, several, or {stream column: master column}); `select` the master columns
    wanted (all others are neither cached nor carried); `memory` the bytes the join may hold. With `stream_schema` the
    schemas are checked at once instead of at the first push. `options` belong to the algorithm; "auto" takes `direct`
    and `max_delay`, the longest time that a tuple may wait at full speed ("30s").

    `join.explain()` says what to expect; it knows the stream from `sample`, a batch of it, and the machine from
    `profile` (else the one that `semistream calibrate` stored, else a typical one). `policy` holds the planner's
    thresholds.
    """
    request = JoinRequest.make(
        on=on,
        how=how,
        select=select,
        memory=memory,
        algorithm=algorithm,
        suffix=suffix,
        max_delay=max_delay,
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
        join = (
            _auto(opened, request, sample, profile, policy)
            if request.is_auto
            else _named(opened, request, sample, profile)
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
    """Refuse an algorithm that is not known, and options that it does not take."""
    if not request.is_auto:
        if request.max_delay_s is not None:
            raise ConfigError(
                f"{request.algorithm} has no option 'max_delay'; it is for algorithm='auto', which picks one that "
                "keeps within it"
            )
        resolve(request.algorithm).checked(request.options)
        return
    unknown = next((name for name in request.options if name != "direct"), None)
    if unknown is not None:
        raise ConfigError(
            f"algorithm='auto' has no option {unknown!r}; it takes direct and max_delay, "
            "other options belong to an algorithm: name one"
        )
    if not isinstance(request.options.get("direct", False), bool):
        raise ConfigError(f"direct={request.options['direct']!r} is out of range; allowed are True and False")


def _auto(
    master: Master,
    request: JoinRequest,
    sample: pa.RecordBatch | None,
    profile: CostProfile | None,
    policy: Policy | None,
) -> AutoJoin:
    return AutoJoin(
        master,
        request.spec,
        request.memory_bytes,
        sample=sample,
        profile=profile,
        max_delay_s=request.max_delay_s,
        direct=request.options.get("direct", False),
        policy=policy,
    )


def _named(
    master: Master, request: JoinRequest, sample: pa.RecordBatch | None, profile: CostProfile | None
) -> SemiStreamJoin:
    join = SemiStreamJoin(resolve(request.algorithm), master, request.spec, request.memory_bytes, request.options)
    join.explainer = lambda opened: _explain_named(opened, request, sample, profile)
    return join


def _explain_named(
    join: SemiStreamJoin, request: JoinRequest, sample: pa.RecordBatch | None, profile: CostProfile | None
) -> Explanation:
    """The named algorithm beside those that the planner would weigh."""
    schema = join.stream_schema
    if schema is None and sample is not None:
        schema = sample.schema
    if schema is None:
        raise ConfigError("the stream's schema is not known yet; push a batch first, or open the join with sample=")
    stream: StreamStatistics | None = None
    if sample is not None:
        learnt = StreamSample(join.master, join.spec, schema)
        learnt.add(sample)
        learnt.probe(sample, join.budget.total)
        stream = learnt.statistics()
    direct = join.options.direct
    plan = make_plan(
        join.master, join.spec, schema, join.budget.total, stream, profile=profile, direct=direct, sizes=False
    )
    mine = plan.of(join.name)
    if mine is None:
        raise ConfigError(f"there is no prediction for {join.name} here: {plan.refused.get(join.name, 'unknown')}")
    sizes = {name: value for name, value in request.options.items() if name != "direct"}
    if sizes:
        found = mine.situation.predict(join.name, plan.profile, sizes)
        mine = Candidate(join.name, found, mine.situation, sizes)
    return explain(join, plan, mine)
