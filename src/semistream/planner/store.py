"""Whether to make a page store of R before a join: what it takes, and what an index is worth over the stream.

Parquet in place has no index, so the planner would weigh only algorithms that scan. Here it also prices those that look
R up, on the store that could be built, and asks whether the time they save pays for the build. A store is kept, and the
next join with the same R finds it: a build counts as if it were used a few times (`Policy.store_uses`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pyarrow as pa

from semistream.algorithms.registry import ALGORITHMS
from semistream.cost.profile import CostProfile, profile_of_machine
from semistream.cost.situation import Situation, master_facts
from semistream.engine.facts import MasterFacts, StreamFacts
from semistream.errors import BudgetError
from semistream.master.base import Master
from semistream.planner.plan import Candidate, make_plan, ranked
from semistream.planner.policy import Policy
from semistream.planner.stream import StreamSample
from semistream.predict.counts import Workload
from semistream.spec import JoinSpec

#: A build decodes R, sorts it in runs that are written, merges these and writes pages: about as long as decoding it so
#: many times.
_BUILD_PASSES = 4.0


@dataclass(frozen=True)
class StoreWorth:
    """The best join of R in place and the best one of a store of it, in seconds over the whole stream."""

    #: None where no algorithm can do it within the budget
    in_place: str | None
    in_place_s: float
    indexed: str | None
    indexed_s: float
    build_s: float
    #: joins that a build is shared by
    uses: float

    @property
    def pays(self) -> bool:
        return self.build_s / self.uses + self.indexed_s < self.in_place_s


def worth_of_store(
    master: Master,
    spec: JoinSpec,
    sample: pa.RecordBatch,
    budget: int,
    *,
    policy: Policy,
    profile: CostProfile | None = None,
) -> StoreWorth:
    """Weigh a store for R, which has no index yet, with a batch of the stream to judge by."""
    profile = profile_of_machine() if profile is None else profile
    learnt = StreamSample(master, spec, sample.schema)
    learnt.add(sample)
    stream = learnt.statistics()
    horizon = policy.ahead()
    placed: Candidate | None
    try:
        placed = make_plan(
            master, spec, sample.schema, budget, stream, profile=profile, sizes=False, policy=policy
        ).choice
    except BudgetError:
        placed = None
    facts = master_facts(master, spec)
    stored = Situation(
        MasterFacts.stored(facts),
        StreamFacts.of(sample.schema, spec, master.coder.is_key),
        budget,
        Workload(stream.keys, max(sample.num_rows, 1), False, spec.how),
    )
    best = _best(stored, profile, horizon, policy)
    build_s = _BUILD_PASSES * profile.io["parquet"].seconds(0, facts.n_pages, facts.bytes)
    return StoreWorth(
        None if placed is None else placed.algorithm,
        math.inf if placed is None else horizon / placed.rate_per_s,
        None if best is None else best.algorithm,
        math.inf if best is None else horizon / best.rate_per_s,
        build_s,
        policy.store_uses,
    )


def _best(situation: Situation, profile: CostProfile, horizon: float, policy: Policy) -> Candidate | None:
    found: list[Candidate] = []
    for name, algorithm in ALGORITHMS.items():
        # An order by frequency would be another store, of use for this stream alone.
        if algorithm.is_weighed and algorithm.needs_index and not algorithm.wants_frequency_order:
            try:
                found.append(Candidate.of(name, situation, profile, {}))
            except BudgetError:
                continue
    return ranked(found, profile, horizon, policy)[0] if found else None
