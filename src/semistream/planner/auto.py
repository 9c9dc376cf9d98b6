"""`algorithm="auto"`: a join that looks at its stream, picks its operator, and changes its mind when proved wrong.

    first batch -> sample -> plan -> open the best operator -> push ... -> trial of the closest -> the best of them
        -> push ... -> check -> (drain, open a better one) -> ...

A check compares the hit rate, the share of matches and the service rate with what the plan said. Where one of them is
off the plan is made again from a fresh sample, and what an operator really achieved counts more than its formula. A
change costs a drain and an empty cache, so it must promise a quarter more.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from semistream.algorithms.registry import ALGORITHMS
from semistream.cost.profile import CostProfile
from semistream.engine.chunk import JoinStats
from semistream.engine.join import SemiStreamJoin
from semistream.engine.lifecycle import JoinLife
from semistream.engine.snapshot import Snapshot
from semistream.engine.stream_shape import StreamShape
from semistream.errors import BudgetError, ConfigError, SemiStreamError
from semistream.master.base import Master, require_columns
from semistream.parts.arena import beyond_machine, within_machine
from semistream.parts.budget import MemoryReport
from semistream.planner.check import other_counts, other_rate, other_skew, warm_up
from semistream.planner.explain import Explanation, explain
from semistream.planner.least import least_budget
from semistream.planner.plan import Candidate, JoinPlan, make_plan
from semistream.planner.policy import Policy
from semistream.planner.stream import StreamSample, StreamStatistics
from semistream.planner.trial import Trial
from semistream.spec import AUTO, JoinSpec

#: bytes that a key takes in the sample while it is counted, and the least a sample can do with
_SAMPLE_BYTES_PER_KEY = 64
_LEAST_SAMPLE_BYTES = 16 * _SAMPLE_BYTES_PER_KEY
#: how often a budget is raised, by one part in as many, until the plan agrees that it is enough
_LEAST_TRIES = 32
_USUAL_BATCH = 65_536


class AutoJoin(JoinLife):
    """A semi-stream join (see `SemiStreamJoin`) whose operator is chosen by the planner."""

    name = AUTO

    def __init__(
        self,
        master: Master,
        spec: JoinSpec,
        budget_bytes: int,
        *,
        sample: pa.RecordBatch | None = None,
        profile: CostProfile | None = None,
        max_delay_s: float | None = None,
        direct: bool = False,
        policy: Policy | None = None,
    ) -> None:
        super().__init__()
        self.master, self.spec = master, spec
        self.owns_master = False
        self._total = within_machine(budget_bytes)
        self._policy = Policy() if policy is None else policy
        self._sample_bytes = self._policy.sample_bytes(budget_bytes, _LEAST_SAMPLE_BYTES)
        self._given, self._profile, self._max_delay_s, self._direct = sample, profile, max_delay_s, direct
        self._join: SemiStreamJoin | None = None
        self._shape: StreamShape | None = None
        self._plan: JoinPlan | None = None
        self._chosen: Candidate | None = None
        self._sample: StreamSample | None = None
        #: opened without having seen the stream
        self._provisional = True
        self._is_restored = False
        self._batch = 0
        self._batches = 0
        #: batches after which the caller drained
        self._drained = 0
        self._trial: Trial | None = None
        self._earlier = JoinStats()
        self._earlier_seconds = 0.0
        self._peak = 0
        self._revisions: list[str] = []
        #: what operators achieved, as a part of what was predicted
        self._achieved: dict[str, float] = {}
        self._check_at = self._check_gap = self._policy.first_check
        self._since = JoinStats()
        self._since_seconds = 0.0
        if sample is not None:
            self.start(sample.schema)

    # ------------------------------------------------------------------------------------- the stream

    def _shape_for(self, schema: pa.Schema) -> StreamShape:
        if self._shape is None:
            self.start(schema)
        assert self._shape is not None
        return self._shape

    def _push(self, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        filled = [batch for batch in batches if batch.num_rows] or batches[:1]
        self._look_at(filled[0], sum(batch.num_rows for batch in filled))
        for batch in filled:
            join, trial = self._operator(), self._trial
            yield from join.push(batch)
            shown = trial is not None and trial.is_shown(join)
            if trial is not None and shown and (trial.begun or join.stats.tuples_in >= self._policy.first_check):
                yield from self._try(trial)
            elif join.stats.tuples_in >= self._check_at and not (trial is not None and trial.begun):
                yield from self._check()

    def advance(self) -> Iterator[pa.RecordBatch]:
        """Work on what waits when no tuple arrives: one turn of the operator's main loop."""
        with self._turn:
            self._require_idle()
            return self._take_on("advance", iter(()) if self._join is None else self._join.advance())

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Finish every waiting tuple. A caller that does so after every batch gets a plan for micro-batches."""
        with self._turn:
            self._require_idle()
            return self._take_on("drain", self._drain())

    def _drain(self) -> Iterator[pa.RecordBatch]:
        if self._join is not None:
            yield from self._join.drain()
        self._drained = min(self._drained + 1, self._batches)

    def start(self, schema: pa.Schema) -> None:
        """Fix the stream's schema; the operator may still change when the first batch is seen."""
        with self._turn:
            self._require_idle()
            if self._join is not None:
                raise SemiStreamError("this join has its stream's schema already; open a new one for another")
            try:
                self._begin(schema)
            except BudgetError as error:
                if isinstance(error.__cause__, MemoryError):
                    raise beyond_machine(self._total, str(error.__cause__) or "out of memory") from error
                least = self._least_total(schema)
                if least is None:
                    raise
                raise BudgetError(
                    f"no operator can do this join with {self._total} bytes; it needs at least {least} bytes",
                    minimum_bytes=least,
                ) from error

    def _begin(self, schema: pa.Schema) -> None:
        require_columns(schema, self.spec.stream_on, "the stream")
        try:
            self._start(schema)
        except ConfigError:
            if self._sample_bytes <= _LEAST_SAMPLE_BYTES:
                raise
            # So small a budget has no room to learn much in.
            self._sample_bytes = _LEAST_SAMPLE_BYTES
            self._start(schema)

    def _least_total(self, schema: pa.Schema) -> int | None:
        """A budget that is enough, about the smallest: what an operator needs, or a little more if the plan says so."""
        least = least_budget(self.master, self.spec, schema, direct=self._direct)
        if least is None:
            return None
        total = max(least + _LEAST_SAMPLE_BYTES, self._total + 1)
        for _ in range(_LEAST_TRIES):
            try:
                self._planned(schema, total - _LEAST_SAMPLE_BYTES, sizes=False)
            except ConfigError:
                total += total // _LEAST_TRIES
            else:
                return total
        return None

    def _start(self, schema: pa.Schema) -> None:
        capacity = self._sample_bytes // _SAMPLE_BYTES_PER_KEY
        self._sample = StreamSample(self.master, self.spec, schema, capacity=capacity)
        if self._given is not None:
            self._learn(self._given)
        self._open(self._planned(schema, self._join_bytes), schema)
        self._shape = StreamShape(schema)

    def _look_at(self, batch: pa.RecordBatch, rows: int) -> None:
        """The first push decides; later ones are sampled now and then, for the next check.

        A push has so many rows; of those that come in several batches the first is looked at.
        """
        assert self._sample is not None
        schema = batch.schema
        self._batches += 1
        if batch.num_rows and self._provisional:
            # What was opened so far rested on an assumption, and nothing is in it.
            self._provisional = False
            self._batch = rows
            if self._sample.seen < batch.num_rows:
                self._learn(batch)
                self._open(self._planned(schema, self._join_bytes), schema)
            assert self._plan is not None
            self._trial = Trial(self._plan, self._policy)
        elif self._batches == 2 and self._in_micro_batches:
            self._open(self._planned(schema, self._join_bytes), schema)
        elif self._batches % self._policy.sampled_batches == 0:
            self._sample.add(batch)
        self._batch = max(self._batch, rows)

    @property
    def _join_bytes(self) -> int:
        """What is left of the budget for the operator."""
        return max(self._total - self._sample_bytes, 1)

    @property
    def _in_micro_batches(self) -> bool:
        """Whether every batch but the present one was finished by itself."""
        return 0 < self._batches - 1 <= self._drained

    def _learn(self, batch: pa.RecordBatch) -> None:
        assert self._sample is not None
        self._sample.add(batch)
        self._sample.probe(batch, self._total, self._policy.probed_tuples)

    # --------------------------------------------------------------------------------------- the plan

    def _planned(self, schema: pa.Schema, budget: int, *, sizes: bool = True) -> JoinPlan:
        assert self._sample is not None
        stream = StreamStatistics.assumed(self.master.n_rows) if self._plan is None else self._plan.stream
        if self._sample.seen >= (self._policy.sample_says if stream.seen else 1):
            stream = self._sample.statistics()
        return make_plan(
            self.master,
            self.spec,
            schema,
            budget,
            stream,
            profile=self._profile,
            batch=self._batch or _USUAL_BATCH,
            micro_batches=self._in_micro_batches,
            max_delay_s=None if self._in_micro_batches else self._max_delay_s,
            direct=self._direct,
            sizes=sizes,
            policy=self._policy,
        )

    def _open(self, plan: JoinPlan, schema: pa.Schema) -> None:
        """Open the best candidate that the budget really allows; nobody waits in the operator that goes."""
        refused: BudgetError | None = None
        for candidate in plan.candidates:
            if self._join is None or self._chosen is None or not _same(candidate, self._chosen):
                # Before the other one is opened, for there is one budget.
                self._retire()
                try:
                    self._join = self._opened(candidate, schema)
                except BudgetError as error:
                    refused = error
                    continue
            self._plan, self._chosen = plan, candidate
            return
        raise refused or SemiStreamError("the plan has no candidate")

    def _opened(self, candidate: Candidate, schema: pa.Schema) -> SemiStreamJoin:
        options: dict[str, Any] = {**candidate.options, "direct": self._direct}
        join = SemiStreamJoin(ALGORITHMS[candidate.algorithm], self.master, self.spec, self._join_bytes, options)
        try:
            join.start(schema)
        except BaseException:
            join.close()
            raise
        return join

    def _retire(self) -> None:
        if self._join is None:
            return
        self._earlier = self._earlier + self._join.stats
        self._earlier_seconds += self._join.seconds
        self._peak = max(self._peak, self._join.memory.peak_bytes)
        self._join.close()
        self._join = None
        self._since, self._since_seconds = JoinStats(), 0.0

    def _try(self, trial: Trial) -> Iterator[pa.RecordBatch]:
        """Go on with the trial: the next operator that takes part or, after the last, the best of them."""
        join, chosen = self._operator(), self._chosen
        assert chosen is not None
        schema = self._stream_schema
        plan = trial.plan if trial.begun else self._planned(schema, self._join_bytes)
        known = next((each for each in plan.candidates if _same(each, chosen)), chosen)
        self._achieved[chosen.algorithm] = trial.achieved(known, self._batch)
        if not trial.begun:
            trial.begin(plan, chosen, self._expected)
        following = trial.next()
        ranked = sorted(trial.plan.candidates, key=self._expected, reverse=True)
        if following is None:
            self._trial = None
            ranked.sort(key=lambda each: each.algorithm not in self._achieved)
            if len(self._achieved) > 1:
                self._revisions.append(self._outcome(ranked[0].algorithm))
        else:
            ranked.insert(0, following)
        if not _same(ranked[0], chosen):
            yield from join.drain()
        self._open(replace(trial.plan, candidates=tuple(ranked)), schema)
        self._check_at = self._operator().stats.tuples_in + self._check_gap

    def _outcome(self, best: str) -> str:
        parts = ", ".join(f"{name} {part:.2f}" for name, part in self._achieved.items())
        return f"a trial, parts of the predicted speed: {parts}; {best} is the best"

    def _expected(self, candidate: Candidate) -> float:
        return candidate.rate_per_s * self._part(candidate)

    def _check(self) -> Iterator[pa.RecordBatch]:
        """Compare what happened since the last check with the plan; where they differ, plan anew."""
        join, chosen, sample = self._operator(), self._chosen, self._sample
        assert chosen is not None
        assert sample is not None
        now = copy.copy(join.stats)
        window = now - self._since
        seconds = join.seconds - self._since_seconds
        policy = self._policy
        warm = now.tuples_in - window.tuples_in >= warm_up(chosen, policy)
        self._since, self._since_seconds = now, join.seconds
        self._check_gap = min(self._check_gap * policy.check_growth, policy.last_check)
        self._check_at = now.tuples_in + self._check_gap
        # Once measured, an operator is held against what it achieved.
        rate = chosen.rate_per_s * self._achieved.get(chosen.algorithm, 1.0)
        assert self._plan is not None
        off = other_skew(sample, self._plan, policy)
        if off is None and warm:
            off = other_counts(chosen, window, policy, self._keeps_count) or other_rate(window, seconds, rate, policy)
        if off is None:
            return
        self._check_gap = policy.first_check
        self._check_at = now.tuples_in + self._check_gap
        if window.finished:
            unmatched = window.unmatched if self._keeps_count else int(window.finished * self._plan_absent)
            sample.matched(window.finished, unmatched, window.rows_out if self.spec.carries_master else 0)
        if warm and seconds > 0:
            self._achieved[chosen.algorithm] = window.tuples_in / seconds / chosen.rate_per_s
        schema = self._stream_schema
        plan = self._planned(schema, self._join_bytes)
        corrected = sorted(plan.candidates, key=self._expected, reverse=True)
        best = corrected[0]
        mine = next((each for each in corrected if each.algorithm == chosen.algorithm), None)
        if sample.seen >= policy.sample_says:
            sample.forget()
        if mine is not None and self._expected(best) < policy.better * self._expected(mine):
            self._plan, self._chosen = plan, replace(mine, options=chosen.options)
            self._revisions.append(f"{off}; {chosen.algorithm} stays the best")
            return
        self._revisions.append(f"{off}; {best.algorithm} instead of {chosen.algorithm}")
        yield from join.drain()
        self._open(replace(plan, candidates=tuple(corrected)), schema)
        self._check_at = self._check_gap

    def _part(self, candidate: Candidate) -> float:
        """What to expect of an operator beside its formula; one that never ran is taken to be off as the others are."""
        if not self._achieved:
            return 1.0
        usual = math.exp(sum(math.log(part) for part in self._achieved.values()) / len(self._achieved))
        return self._achieved.get(candidate.algorithm, usual)

    @property
    def _keeps_count(self) -> bool:
        """Inner joins do not count what matched nothing where they need not know."""
        return self.spec.how != "inner"

    @property
    def _plan_absent(self) -> float:
        return self._plan.stream.absent if self._plan is not None else 0.0

    # ----------------------------------------------------------------------------- what it says of itself

    def _operator(self) -> SemiStreamJoin:
        if self._join is None:
            raise SemiStreamError("this join has not begun; push a batch first")
        return self._join

    @property
    def _stream_schema(self) -> pa.Schema:
        assert self._shape is not None
        return self._shape.schema

    @property
    def algorithm(self) -> str | None:
        """The operator at work; None before the first batch."""
        return None if self._chosen is None else self._chosen.algorithm

    @property
    def on_trial(self) -> bool:
        """Whether the operator is still to be found by trial."""
        return self._join is None or self._trial is not None

    @property
    def output_schema(self) -> pa.Schema | None:
        return None if self._join is None else self._join.output_schema

    @property
    def waiting(self) -> int:
        """Tuples that wait."""
        return 0 if self._join is None else self._join.waiting

    @property
    def stats(self) -> JoinStats:
        """What the join did so far, in counts, whichever operators did it."""
        return self._earlier + self._join.stats if self._join is not None else copy.copy(self._earlier)

    @property
    def seconds(self) -> float:
        """Time spent in `push`, `drain` and `advance`."""
        return self._earlier_seconds + (self._join.seconds if self._join is not None else 0.0)

    @property
    def memory(self) -> MemoryReport:
        """Bytes by component; the sample of the stream is one."""
        own = {"stream sample": self._sample_bytes}
        if self._join is None:
            return MemoryReport(self._total, self._sample_bytes, self._sample_bytes, own, own)
        held = self._join.memory
        peak = max(self._peak, held.peak_bytes) + self._sample_bytes
        return MemoryReport(
            self._total,
            held.bytes_now + self._sample_bytes,
            peak,
            {**own, **held.now},
            {**own, **held.peak},
            held.largest_piece_bytes,
        )

    def explain(self) -> Explanation:
        """Why this operator, what was predicted and, after a run, what was measured."""
        if self._plan is None or self._chosen is None or self._join is None:
            raise SemiStreamError("nothing is planned yet; push a batch first, or open the join with sample=")
        return explain(self._join, self._plan, self._chosen, tuple(self._revisions))

    # -------------------------------------------------------------------------------- snapshot, closing

    def snapshot(self) -> Snapshot:
        """What a restart needs, the chosen operator among it."""
        with self._turn:
            self._require_idle()
            if self._join is None or self._chosen is None:
                return Snapshot({"algorithm": AUTO, "master_version": self.master.version}, None)
            taken = self._join.snapshot()
            return Snapshot({**taken.state, "options": dict(self._chosen.options)}, taken.tuples)

    def restore(self, snapshot: Snapshot) -> None:
        """Go on where a snapshot was taken, with the operator it was taken from."""
        with self._turn:
            self._require_idle()
            if snapshot.tuples is None:
                return
            if self._is_restored or self.stats.tuples_in:
                raise SemiStreamError("restore one snapshot into a fresh join, before its first push")
            schema = snapshot.stream_schema
            if self._join is None:
                self.start(schema)
            assert self._plan is not None
            algorithm, options = str(snapshot.state.get("algorithm")), dict(snapshot.state.get("options", {}))
            priced = self._plan.of(algorithm)
            if priced is None:
                raise SemiStreamError(
                    f"the snapshot was taken with {algorithm}, which cannot do this join here: "
                    f"{self._plan.refused.get(algorithm, 'it is unknown')}; open the join as it was then"
                )
            as_then = replace(priced, options=options)
            self._open(replace(self._plan, candidates=(as_then, *self._plan.candidates)), schema)
            self._is_restored = True
            self._operator().restore(snapshot)
            self._provisional = False

    def _release(self) -> None:
        try:
            if self._join is not None:
                self._join.close()
        finally:
            if self.owns_master:
                self.master.close()


def _same(a: Candidate, b: Candidate) -> bool:
    return (a.algorithm, dict(a.options)) == (b.algorithm, dict(b.options))
