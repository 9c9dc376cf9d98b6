"""`algorithm="auto"`: a join that looks at its stream, picks its operator, and changes its mind when proved wrong.

    first batch -> sample -> plan -> open the best operator -> push ... -> trial of the closest -> the best of them
        -> push ... -> check -> (drain, open a better one) -> ...

A check compares the hit rate, the share of matches and the service rate with what the plan said for an operator of that
age. Where one of them is off the plan is made again from a fresh sample, and what an operator really achieved counts
more than its formula. All is weighed by what is still to come: another operator begins with an empty cache, the one at
work goes on with what it has learnt, and a change must promise a quarter more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from semistream.algorithms.registry import ALGORITHMS
from semistream.cost.profile import CostProfile
from semistream.engine.chunk import JoinStats
from semistream.engine.join import SemiStreamJoin
from semistream.engine.lifecycle import JoinLife
from semistream.engine.snapshot import Snapshot
from semistream.engine.stream_shape import StreamShape
from semistream.errors import BudgetError, ConfigError, SemiStreamError, StoreError
from semistream.master.base import Master, require_columns
from semistream.master.reading import MAPPED, Reading
from semistream.parts.arena import beyond_machine, within_machine
from semistream.parts.budget import MemoryReport
from semistream.planner.check import Watch, other_rate, other_stream
from semistream.planner.explain import Explanation, explain
from semistream.planner.least import least_budget
from semistream.planner.plan import Candidate, JoinPlan, make_plan
from semistream.planner.policy import Policy
from semistream.planner.prospect import Experience, Prospect, same
from semistream.planner.stream import StreamSample, StreamStatistics
from semistream.planner.succession import Succession
from semistream.planner.trial import Trial, worth_trying
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
        reading: Reading = MAPPED,
        policy: Policy | None = None,
    ) -> None:
        super().__init__()
        self.master, self.spec = master, spec
        self.owns_master = False
        self._total = within_machine(budget_bytes)
        self._policy = Policy() if policy is None else policy
        self._sample_bytes = self._policy.sample_bytes(budget_bytes, _LEAST_SAMPLE_BYTES)
        self._given, self._profile, self._max_delay_s, self._reading = sample, profile, max_delay_s, reading
        self._operators = Succession()
        self._shape: StreamShape | None = None
        self._plan: JoinPlan | None = None
        self._chosen: Candidate | None = None
        self._sample: StreamSample | None = None
        #: opened without having seen the stream
        self._provisional = True
        #: the plan was made of the first batch
        self._is_known = False
        self._is_restored = False
        self._batch = 0
        self._batches = 0
        #: tuples since one was sampled
        self._unsampled = 0
        #: batches after which the caller drained
        self._drained = 0
        self._trial: Trial | None = None
        self._revisions: list[str] = []
        self._experience = Experience()
        self._watch = Watch(self._policy)
        #: what the last plan took to make
        self._planning_s = 0.0
        if sample is not None:
            self.start(sample.schema)

    # ------------------------------------------------------------------------------------- the stream

    def _shape_for(self, batches: list[pa.RecordBatch]) -> StreamShape:
        if self._shape is None:
            first, rows = _filled(batches)[0], sum(batch.num_rows for batch in batches)
            given = self._given
            if given is None and rows:
                # Nothing needs to be assumed of a stream whose first batch is there.
                self._given, self._batch = first, rows
            try:
                self.start(first.schema)
            except BaseException as error:
                self._given, self._batch = given, 0
                if isinstance(error, StoreError):
                    # R cannot be read; another batch would not change that.
                    self._fail(error)
                raise
            self._is_known = self._given is first
        assert self._shape is not None
        return self._shape

    def _push(self, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        filled = _filled(batches)
        self._look_at(filled[0], sum(batch.num_rows for batch in filled))
        for batch in filled:
            join, trial = self._operator(), self._trial
            yield from join.push_checked(batch)
            shown = trial is not None and trial.is_shown(join)
            if trial is not None and shown and (trial.begun or join.stats.tuples_in >= self._policy.first_check):
                yield from self._try(trial)
            elif self._watch.is_due(join) and not (trial is not None and trial.begun):
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
        least = least_budget(self.master, self.spec, schema, direct=self._reading.direct)
        if least is None:
            return None
        total = max(least + _LEAST_SAMPLE_BYTES, self._total + 1)
        for _ in range(_LEAST_TRIES):
            try:
                self._planned(schema, total - _LEAST_SAMPLE_BYTES, rough=True)
            except ConfigError:
                total += total // _LEAST_TRIES
            else:
                return total
        return None

    def _start(self, schema: pa.Schema) -> None:
        capacity = self._sample_bytes // _SAMPLE_BYTES_PER_KEY
        # A small budget has room for few keys beside an operator: hardly enough to see a skew. None is open yet.
        first = max(min(self._total // _SAMPLE_BYTES_PER_KEY, self._policy.first_sample), capacity)
        self._sample = StreamSample(self.master, self.spec, schema, capacity=first)
        if self._given is not None:
            self._learn(self._given)
        plan = self._planned(schema, self._join_bytes, rough=self._given is None)
        self._sample.limit(capacity)
        self._open(plan, schema)
        self._shape = StreamShape(schema)

    def _look_at(self, batch: pa.RecordBatch, rows: int) -> None:
        """The first push, of `rows` rows, decides; of later ones the first batch is sampled now and then."""
        assert self._sample is not None
        schema = batch.schema
        self._batches += 1
        if batch.num_rows and self._provisional:
            # What was opened so far rested on an assumption, and nothing is in it.
            self._provisional = False
            self._batch = rows
            if not self._is_known and self._sample.seen < batch.num_rows:
                self._learn(batch)
                self._open(self._planned(schema, self._join_bytes), schema)
            self._trial = self._new_trial()
        elif self._batches == 2 and self._in_micro_batches and not self._policy.micro_batches:
            self._open(self._planned(schema, self._join_bytes), schema)
            self._trial = self._new_trial()
        elif self._is_to_be_sampled(rows):
            self._sample.add(batch)
        self._batch = max(self._batch, rows)

    def _is_to_be_sampled(self, rows: int) -> bool:
        """Asked for every push, of `rows` rows: whether the last sample is long enough ago."""
        self._unsampled += rows
        policy, keys = self._policy, self._sample_bytes // _SAMPLE_BYTES_PER_KEY
        if self._batches % policy.sampled_batches or self._unsampled < policy.sampled_tuples_per_key * keys:
            return False
        self._unsampled = 0
        # Nobody would ask: there is no time for another plan.
        return self._prospect.seconds_left >= policy.plan_from_s

    @property
    def _join_bytes(self) -> int:
        """What is left of the budget for the operator."""
        return max(self._total - self._sample_bytes, 1)

    @property
    def _in_micro_batches(self) -> bool:
        """Whether every batch is finished by itself: the caller said so, or did so with all but the present one."""
        return self._policy.micro_batches or 0 < self._batches - 1 <= self._drained

    def _learn(self, batch: pa.RecordBatch) -> None:
        assert self._sample is not None
        self._sample.add(batch)
        self._sample.probe(batch, self._total, self._policy.probed_tuples, direct=self._reading.direct)

    # --------------------------------------------------------------------------------------- the plan

    def _planned(
        self, schema: pa.Schema, budget: int, *, rough: bool = False, sizes: int = 1, for_trial: bool = False
    ) -> JoinPlan:
        """`rough`: as long as nothing is known of the stream sizes and young caches are not worth the time."""
        assert self._sample is not None
        stream = StreamStatistics.assumed(self.master.n_rows) if self._plan is None else self._plan.stream
        if self._sample.seen >= (self._policy.sample_says if stream.seen else 1):
            stream = self._sample.statistics()
        started = time.perf_counter()
        plan = make_plan(
            self.master,
            self.spec,
            schema,
            budget,
            stream,
            profile=self._profile,
            batch=self._batch or _USUAL_BATCH,
            micro_batches=self._in_micro_batches,
            max_delay_s=None if self._in_micro_batches else self._max_delay_s,
            direct=self._reading.direct,
            sizes=0 if rough else sizes,
            policy=self._policy,
            horizon=math.inf if rough else self._ahead,
            for_trial=for_trial,
        )
        self._planning_s = time.perf_counter() - started
        return plan

    def _has_time_to_plan(self, ahead_s: float, share: float) -> bool:
        """Whether another plan takes no more than this share of the time that is still to come."""
        return ahead_s >= max(self._policy.plan_from_s, self._planning_s / share)

    @property
    def _ahead(self) -> float:
        """Tuples that are still to come, as far as anybody knows."""
        return self._policy.ahead(self.stats.tuples_in)

    @property
    def _prospect(self) -> Prospect:
        """What is still to come, for the operator at work and for all others."""
        assert self._chosen is not None
        return Prospect(self._experience, self._ahead, self._chosen, self._operator().stats.tuples_in)

    def _open(self, plan: JoinPlan, schema: pa.Schema) -> None:
        """Open the best candidate that the budget really allows; nobody waits in the operator that goes."""
        refused: BudgetError | None = None
        for candidate in plan.candidates:
            if self._join is None or self._chosen is None or not same(candidate, self._chosen):
                # Before the other one is opened, for there is one budget.
                if self._join is not None:
                    self._operators.retire()
                    self._watch.begin()
                try:
                    self._operators.join = self._opened(candidate, schema)
                except BudgetError as error:
                    refused = error
                    continue
            self._plan, self._chosen = plan, candidate
            return
        raise refused or SemiStreamError("the plan has no candidate")

    def _opened(self, candidate: Candidate, schema: pa.Schema) -> SemiStreamJoin:
        algorithm, options, direct = ALGORITHMS[candidate.algorithm], candidate.options, self._reading.direct
        join = SemiStreamJoin(algorithm, self.master, self.spec, self._join_bytes, options, direct=direct)
        try:
            join.start(schema)
        except BaseException:
            join.close()
            raise
        return join

    def _try(self, trial: Trial) -> Iterator[pa.RecordBatch]:
        """Go on with the trial: the next operator that takes part or, after the last, the best of them."""
        join, chosen = self._operator(), self._chosen
        assert chosen is not None
        schema = self._stream_schema
        ahead_s = self._prospect.seconds_left
        again = not trial.begun and self._has_time_to_plan(ahead_s, self._policy.trial_plan_share)
        sizes = self._policy.most_tried if ahead_s >= self._policy.all_sizes_from_s else 1
        plan = trial.plan
        if again:
            plan = self._planned(schema, self._join_bytes, sizes=sizes, for_trial=True).keeping(chosen, self._policy)
        known = next((each for each in plan.candidates if same(each, chosen)), chosen)
        achieved = self._experience.parts
        trial.learn(known, self._batch, achieved)
        if not trial.begun:
            trial.begin(plan, replace(self._prospect, running=known), self._batch, achieved)
        following = trial.next()
        ranked = sorted(trial.plan.candidates, key=self._prospect.rate, reverse=True)
        if following is None:
            trial.repeat([each for each in ranked if each.algorithm in achieved], self._prospect)
            following = trial.next()
        if following is None:
            self._trial = None
            ranked.sort(key=lambda each: each.algorithm not in achieved)
            if len(achieved) > 1:
                self._revisions.append(f"a trial, {self._experience.text()}; {ranked[0].algorithm} is the best")
        else:
            ranked.insert(0, following)
        if not same(ranked[0], chosen):
            yield from join.drain()
        self._open(replace(trial.plan, candidates=tuple(ranked)), schema)
        self._watch.wait(self._operator())

    def _check(self) -> Iterator[pa.RecordBatch]:
        """Compare what happened since the last check with the plan; where they differ, plan anew."""
        join, chosen, sample = self._operator(), self._chosen, self._sample
        assert chosen is not None
        assert sample is not None
        assert self._plan is not None
        policy, experience = self._policy, self._experience
        # Inner joins do not count what matched nothing where they need not know, and where rows are valid for a time
        # a tuple without a match says nothing of its key.
        counts = self.spec.how != "inner" and self.spec.as_of is None
        window = self._watch.look(join)
        changed = other_stream(window, chosen, self._plan, sample, experience, policy, counts_unmatched=counts)
        off = changed or other_rate(window, chosen, experience, policy)
        left_s = self._prospect.seconds_left
        if off is None:
            if left_s >= policy.plan_from_s:
                self._maybe_try_others()
            return
        if not self._has_time_to_plan(left_s, policy.new_plan_share):
            return
        if changed is not None:
            self._watch.hurry(join)
        done = window.done
        if done.finished and self.spec.as_of is None:
            unmatched = done.unmatched if counts else int(done.finished * self._plan.stream.absent)
            sample.matched(done.finished, unmatched, done.rows_out if self.spec.carries_master else 0)
        schema = self._stream_schema
        has_time = not chosen.options or self._prospect.seconds_left >= policy.sizes_again_from_s
        sizes = 1 if has_time else 0
        plan = self._planned(schema, self._join_bytes, sizes=sizes, for_trial=True).keeping(chosen, policy)
        mine = plan.of(chosen.algorithm)
        known = chosen if mine is None else mine
        experience.learn(known, done, window.before, window.seconds)
        prospect = replace(self._prospect, running=known)
        corrected = sorted(plan.candidates, key=prospect.rate, reverse=True)
        best = corrected[0]
        if sample.seen >= policy.sample_says:
            sample.forget()
        if mine is not None and prospect.rate(best) < policy.better * prospect.rate(mine):
            self._plan, self._chosen = plan, mine if same(mine, chosen) else chosen
            self._revisions.append(f"{off}; {chosen.algorithm} stays the best")
            return
        self._revisions.append(f"{off}; {best.algorithm} instead of {chosen.algorithm}")
        yield from join.drain()
        self._open(replace(plan, candidates=tuple(corrected)), schema)
        self._watch.hurry(self._operator())

    def _maybe_try_others(self) -> None:
        """As a stream goes on it becomes worth while to try who was too far off, or too dear to try, before."""
        assert self._plan is not None
        tried = self._experience.parts
        if self._trial is None and worth_trying(self._plan, self._prospect, self._policy, self._batch, tried):
            self._trial = self._new_trial()

    def _new_trial(self) -> Trial:
        assert self._plan is not None
        return Trial(self._plan, self._policy, self._prospect.seconds_left)

    # ----------------------------------------------------------------------------- what it says of itself

    @property
    def _join(self) -> SemiStreamJoin | None:
        """The operator at work."""
        return self._operators.join

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
        return self._operators.stats

    @property
    def seconds(self) -> float:
        """Time spent in `push`, `drain` and `advance`."""
        return self._operators.seconds

    @property
    def memory(self) -> MemoryReport:
        """Bytes by component; the sample of the stream is one."""
        return self._operators.memory(self._total, {"stream sample": self._sample_bytes})

    def explain(self) -> Explanation:
        """Why this operator, what was predicted and, after a run, what was measured."""
        if self._plan is None or self._chosen is None or self._join is None:
            raise SemiStreamError("nothing is planned yet; push a batch first, or open the join with sample=")
        return explain(self._join, self._plan, self._chosen, self._reading, tuple(self._revisions))

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


def _filled(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Those with rows, or just the first one."""
    return [batch for batch in batches if batch.num_rows] or batches[:1]
