"""`algorithm="auto"` on Spark.

    first task of an executor -> sample of its first batch -> plan -> file -> all tasks of the executor

The plan is a small file in the executor's own folder, numbered, first writer wins, so all worker processes of an
executor use the same operator and share its cache. After a task its process compares the hit rate with the plan; where
that is off, it plans anew and, if another operator promises a quarter more, leaves a plan with the next number. Any
operator is exact, and each finishes its tuples in the micro-batch, so a change between two tasks changes no row.

Where tuples may wait (`max_delay`) what waits belongs to an operator: the driver plans once, before anything is known
of the stream, and the checkpoint remembers the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path

import pyarrow as pa

from semistream.algorithms.registry import ALGORITHMS
from semistream.errors import BudgetError, StoreError
from semistream.planner.plan import JoinPlan, make_plan
from semistream.planner.stream import StreamSample
from semistream.sealed import put_file, read_sealed, sealed
from semistream.spark.dimension import DEFAULT_ALGORITHM, Dimension
from semistream.spark.records import remember
from semistream.spec import JoinSpec


@dataclass(frozen=True)
class Chosen:
    """A plan as it stands in its file."""

    number: int
    algorithm: str
    hit_rate: float
    h_R: float
    rate_per_s: float


class Planner:
    """The plans of one dimension on one executor, as a worker process sees them."""

    def __init__(self, dimension: Dimension, folder: Path) -> None:
        self.dimension = dimension
        self._folder = folder
        self._stem = f"plan-{dimension.identity[:16]}-"
        self._asked = 0
        #: the operator that this process used last
        self.used: Dimension | None = None

    def settle(self, first: pa.RecordBatch | None) -> tuple[Dimension, Chosen | None]:
        """The dimension with an operator; planned from the task's first batch if nobody has planned yet."""
        found = self._newest()
        if found is None:
            if first is None:
                return self.dimension.with_algorithm(stand_in(self.dimension)), None
            found = self._publish(1, self._plan(first))
        return self.dimension.with_algorithm(found.algorithm), found

    def review(self, chosen: Chosen, first: pa.RecordBatch, hits: float, asked: float) -> None:
        """After a task: plan anew where the cache does not do what was predicted."""
        self._asked += int(asked)
        policy = self.dimension.policy
        # Before the cache is warm its hits say nothing.
        if not asked or self._asked < max(policy.first_check, policy.warm_up(chosen.h_R)):
            return
        if abs(hits / asked - chosen.hit_rate) <= policy.hit_points:
            return
        self._asked = 0
        newest = self._newest()
        if newest is None or newest.number != chosen.number:
            return
        plan = self._plan(first)
        mine = plan.of(chosen.algorithm)
        if mine is None or plan.choice.rate_per_s >= policy.better * mine.rate_per_s:
            self._publish(chosen.number + 1, plan)

    def _plan(self, batch: pa.RecordBatch) -> JoinPlan:
        dimension = self.dimension
        request = dimension.request
        with closing(dimension.open_master(dimension.version)) as master:
            schema, stream = batch.schema, None
            if set(request.spec.stream_on) <= set(schema.names):
                sample = StreamSample(master, request.spec, schema)
                sample.add(batch)
                sample.probe(batch, request.memory_bytes // dimension.tasks, dimension.policy.probed_tuples)
                stream = sample.statistics()
            else:
                # The key comes from an earlier dimension, and nothing is known of it.
                schema = _keys_only(master.schema, request.spec)
            plan = make_plan(
                master,
                request.spec,
                schema,
                _budget(dimension),
                stream,
                batch=max(batch.num_rows, 1),
                micro_batches=True,
                direct=dimension.reading(master).direct,
                sizes=False,
                policy=dimension.policy,
            )
        return workable(dimension, plan)

    def _newest(self) -> Chosen | None:
        """The newest plan that can be read: like the caches beside it a plan is soft."""
        found = {}
        for path in self._folder.glob(f"{self._stem}*"):
            tail = path.name.removeprefix(self._stem)
            if tail.isdigit():
                found[int(tail)] = path
        for number in sorted(found, reverse=True):
            with suppress(OSError, ValueError, TypeError, StoreError):
                chosen = Chosen(**read_sealed(found[number])[0])
                if chosen.algorithm in ALGORITHMS:
                    return replace(chosen, number=number)
        return None

    def _publish(self, number: int, plan: JoinPlan) -> Chosen:
        best = plan.choice
        found = best.prediction
        mine = Chosen(number, best.algorithm, found.hit_rate, found.symbols.get("h_R", 0.0), best.rate_per_s)
        with suppress(OSError, StoreError):
            self._folder.mkdir(parents=True, exist_ok=True)
            put_file(self._folder / f"{self._stem}{number:06d}", sealed(asdict(mine))[0], replace=False)
        newest = self._newest()
        return mine if newest is None else newest


def peeked(batches: Iterator[pa.RecordBatch]) -> tuple[pa.RecordBatch | None, Iterator[pa.RecordBatch]]:
    """The first batch with rows, and all batches."""
    seen: list[pa.RecordBatch] = []
    for batch in batches:
        seen.append(batch)
        if batch.num_rows:
            return batch, chain(seen, batches)
    return None, iter(seen)


def stand_in(dimension: Dimension) -> str:
    """An algorithm for a task that gets no rows, and for checks before anything is known: any that can run."""
    with closing(dimension.open_master(dimension.version)) as master:
        if master.has_index:
            return DEFAULT_ALGORITHM
    return next(each.name for each in ALGORITHMS.values() if not each.needs_index and each.shares_cache)


def planned_with_delay(dimension: Dimension, schema: pa.Schema, folder: Path) -> str | None:
    """The scan algorithm that carries tuples over, or None where finishing every batch by itself is faster.

    What a checkpoint was begun with it goes on with.
    """
    path = folder / "plan"
    if not path.exists():
        with closing(dimension.open_master(dimension.version)) as master:
            plan = make_plan(
                master,
                dimension.request.spec,
                schema,
                _budget(dimension),
                micro_batches=True,
                max_delay_s=dimension.request.max_delay_s,
                direct=dimension.reading(master).direct,
                sizes=False,
                policy=dimension.policy,
            )
        best = plan.choice
        found = remember(path, {"algorithm": best.algorithm if best.carried else None})
    else:
        found = remember(path, {})
    algorithm = found.get("algorithm")
    return None if algorithm is None else str(algorithm)


def workable(dimension: Dimension, plan: JoinPlan) -> JoinPlan:
    """The plan from its first candidate on that a worker's part of the budget really allows."""
    for place, candidate in enumerate(plan.candidates):
        try:
            dimension.with_algorithm(candidate.algorithm).open(dimension.version).close()
        except BudgetError:
            continue
        return replace(plan, candidates=plan.candidates[place:])
    return plan


def _keys_only(master: pa.Schema, spec: JoinSpec) -> pa.Schema:
    return pa.schema([pa.field(here, master.field(there).type) for here, there in spec.pairs])


def _budget(dimension: Dimension) -> Callable[[str], int]:
    """What a worker process can use with an algorithm: its own part, and the cache that all of them share."""

    def of(algorithm: str) -> int:
        named = dimension.with_algorithm(algorithm)
        return named.shared_bytes + named.private_bytes

    return of
