"""`algorithm="auto"` on Spark.

    first task of an executor -> sample of its first batch -> plan -> file -> all tasks of the executor
        -> after some tasks: the closest candidates, one plan file each -> the best of them

The plan is a small file in the executor's own folder, numbered, first writer wins (`plans.py`), so all worker processes
of an executor use the same operator and share its cache. A trial is a sequence of such plans. Every process times its
own join, by the rules of local joins (`planner/trial.py`), and whichever has seen enough first leaves the next plan;
what was measured travels in the file, so no process has to live to the end. After the trial a process compares the hit
rate with the plan; where that is off, it plans anew and, if another operator promises a quarter more, leaves a plan
with the next number. Any operator is exact, and each finishes its tuples in the task, so a change between two tasks
changes no row.

Where tuples may wait (`max_delay`) what waits belongs to an operator: the driver plans once, before anything is known
of the stream, and the checkpoint remembers the operator. Nothing is tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pyarrow as pa

from semistream.algorithms.registry import ALGORITHMS
from semistream.engine.join import SemiStreamJoin
from semistream.errors import BudgetError
from semistream.master.base import Master
from semistream.planner.plan import Candidate, JoinPlan, make_plan
from semistream.planner.prospect import Experience, Prospect
from semistream.planner.stream import StreamSample
from semistream.planner.trial import Pace, Shown, Stretch, second_turn, worth_trying
from semistream.spark.dimension import DEFAULT_ALGORITHM, Dimension
from semistream.spark.plans import Chosen, PlanFiles, remember_choice, remembered_choice
from semistream.spark.records import remember
from semistream.spec import JoinSpec

#: an operator on trial leaves after this time, shown or not: processes that end soon after each task see too little
_LONGEST_TURN_S = 600.0


class Planner:
    """The plans of one dimension on one executor, as a worker process sees them."""

    def __init__(self, dimension: Dimension, folder: Path) -> None:
        self.dimension = dimension
        self._files = PlanFiles(folder, dimension.identity)
        self._asked = 0
        #: the operator that this process used last
        self.used: Dimension | None = None
        #: of all operators in this process: tuples that came, in so many tasks
        self._seen = self._tasks = 0
        self._plan: JoinPlan | None = None
        #: the plan that this process went by last, and how many tuples it must have seen before others may be tried
        self._number = self._look_at = 0
        self._stretch: Stretch | None = None
        self._pace = Pace()

    def settle(self, first: pa.RecordBatch | None) -> tuple[Dimension, Chosen | None]:
        """The dimension with an operator; planned from the task's first batch if nobody has planned yet."""
        found = self._files.newest()
        if found is None:
            if first is None:
                return self.dimension.with_algorithm(stand_in(self.dimension)), None
            found = self._files.publish(remembered_choice(self.dimension) or self._planned_from(first))
        elif found.on_trial and first is not None and self._files.age_s(found) > _LONGEST_TURN_S:
            found = self._leave(found, first, f"had no end in {_LONGEST_TURN_S:.0f} s")
        return self.dimension.with_algorithm(found.algorithm), found

    def after(
        self, chosen: Chosen, first: pa.RecordBatch, join: SemiStreamJoin, rows: int, hits: float, asked: float
    ) -> None:
        """After a task of `rows` tuples: go on with a trial, begin one, or see whether the plan is still right."""
        if chosen.number != self._number:
            self._number, self._look_at = chosen.number, self._seen + self.dimension.policy.first_check
            self._stretch = None
        self._seen += rows
        self._tasks += 1
        stretch = self._timed(join)
        if not chosen.on_trial and self._seen < self._look_at:
            self.review(chosen, first, hits, asked, join)
        elif stretch.is_shown(max((each.rate_per_s for every in chosen.shown.values() for each in every), default=0.0)):
            newest = self._files.newest()
            if newest is None or newest.number != chosen.number:
                # Another process has seen enough before.
                return
            chosen = _with_shown(chosen, stretch)
            if chosen.on_trial:
                self._go_on(chosen, self._plan_for(first, join), join.stats.tuples_in)
            else:
                self._maybe_begin(chosen, first, join)

    def leave(self, chosen: Chosen, first: pa.RecordBatch, why: str) -> bool:
        """Let an operator on trial go that cannot do this join; True if another plan is in force after that."""
        newest = self._files.newest()
        if newest is None or newest.number == chosen.number:
            if not chosen.on_trial:
                return False
            newest = self._leave(chosen, first, why)
        return newest.number > chosen.number

    def review(
        self, chosen: Chosen, first: pa.RecordBatch, hits: float, asked: float, join: SemiStreamJoin | None = None
    ) -> None:
        """After a task: plan anew where the cache does not do what was predicted."""
        self._asked += int(asked)
        policy = self.dimension.policy
        # Before the cache is warm its hits say nothing.
        if not asked or self._asked < max(policy.first_check, policy.warm_up(chosen.h_R)):
            return
        found = hits / asked
        if abs(found - chosen.hit_rate) <= policy.hit_points:
            return
        self._asked = 0
        newest = self._files.newest()
        if newest is None or newest.number != chosen.number:
            return
        plan = self._made(first, join)
        experience = self._experience(chosen, plan)
        best, mine = _ranked(plan.candidates, experience)[0], plan.of(chosen.algorithm)
        if mine is None or _rate(best, experience) >= policy.better * _rate(mine, experience):
            off = f"hit rate {found:.0%} instead of {chosen.hit_rate:.0%}"
            why = f"{off}; {best.algorithm} instead of {chosen.algorithm}"
            self._files.publish(_chosen(chosen.number + 1, best, why, shown=chosen.shown, left=chosen.left))

    # ------------------------------------------------------------------------------------------- the trial

    def close(self) -> None:
        """The join at work is closed, and its memory is wanted back."""
        self._stretch = None

    def _timed(self, join: SemiStreamJoin) -> Stretch:
        """The stretch of the operator at work; it begins anew with every plan and with every join."""
        if self._stretch is None or self._stretch.join is not join:
            policy = self.dimension.policy.within(self._seconds_left(join))
            self._stretch = Stretch(join, policy, self._pace)
        return self._stretch

    def _seconds_left(self, join: SemiStreamJoin) -> float:
        """How long all that is still to come takes at the speed so far."""
        return self._ahead * join.seconds / max(join.stats.tuples_in, 1)

    def _maybe_begin(self, chosen: Chosen, first: pa.RecordBatch, join: SemiStreamJoin) -> None:
        """Try others, if that is worth it by what is still to come; else look again when more has come."""
        policy, tuples = self.dimension.policy, join.stats.tuples_in
        few = replace(policy, most_tried=min(policy.most_tried, policy.most_tried_on_spark))
        tried = {*chosen.shown, *chosen.left}
        self._look_at = self._seen + min(max(self._seen, policy.first_check), policy.last_check)
        self._stretch = None
        if len(tried) >= few.most_tried or self._seconds_left(join) < policy.plan_from_s:
            return
        plan = self._made(first, join)
        prospect = self._prospect(chosen, plan, tuples)
        if prospect is None:
            return
        found = [each.algorithm for each in worth_trying(plan, prospect, few, self._batch, tried)]
        found = [each for each in found if _opens(self.dimension, each, join.master, join.direct)]
        if found:
            self._go_on(replace(chosen, waiting=tuple(found), is_again=False), plan, tuples)

    def _go_on(self, chosen: Chosen, plan: JoinPlan, tuples: int) -> Chosen:
        """The plan after this one: the next operator that is tried or, after the last, the best of them."""
        waiting, is_again = chosen.waiting or (), chosen.is_again
        experience = self._experience(chosen, plan)
        prospect = self._prospect(chosen, plan, tuples)
        able = [each for each in plan.candidates if each.algorithm not in chosen.left]
        tried = [each for each in able if each.algorithm in chosen.shown]
        tried = _ranked(tried, experience) if prospect is None else sorted(tried, key=prospect.rate, reverse=True)
        if not waiting and not is_again and prospect is not None and tried:
            waiting = tuple(each.algorithm for each in second_turn(tried, prospect, self.dimension.policy))
            is_again = bool(waiting)
        measured = _measured(chosen)
        following = plan.of(waiting[0]) if waiting else None
        if following is not None:
            later = f", then {', '.join(waiting[1:])}" if waiting[1:] else ""
            why = f"on trial: {following.algorithm}{later}; {measured}"
            found = _chosen(chosen.number + 1, following, why, waiting[1:], chosen.shown, chosen.left, is_again)
            return self._files.publish(found)
        if waiting:
            # This process sees the stream otherwise, and has no such candidate.
            gone = {**chosen.left, waiting[0]: "the stream is another"}
            return self._go_on(replace(chosen, waiting=waiting[1:], left=gone), plan, tuples)
        best = (tried or able or plan.candidates)[0]
        why = f"a trial, {measured}; for what is still to come {best.algorithm} is the best"
        mine = _chosen(chosen.number + 1, best, why, None, chosen.shown, chosen.left)
        found = self._files.publish(mine)
        if replace(found, number=mine.number) == mine:
            remember_choice(self.dimension, found)
        return found

    def _leave(self, chosen: Chosen, first: pa.RecordBatch, why: str) -> Chosen:
        """Go on without the operator on trial."""
        gone = replace(chosen, left={**chosen.left, chosen.algorithm: why})
        return self._go_on(gone, self._plan_for(first), 0)

    def _prospect(self, chosen: Chosen, plan: JoinPlan, tuples: int) -> Prospect | None:
        """What is still to come, seen from the operator at work, which has had `tuples` in this process."""
        running = plan.of(chosen.algorithm)
        if running is None:
            return None
        return Prospect(self._experience(chosen, plan), self._ahead, running, tuples * self._learners(running))

    def _experience(self, chosen: Chosen, plan: JoinPlan) -> Experience:
        """What operators have achieved, as parts of what this plan says of them."""
        usual = next((each.pace for every in chosen.shown.values() for each in every), 1.0)
        parts = {}
        for name, every in chosen.shown.items():
            candidate = plan.of(name)
            if candidate is not None:
                found = [each.part(candidate, usual, self._learners(candidate)) for each in every]
                logs = [math.log(max(part, 1e-9)) for part in found]
                parts[name] = math.exp(sum(logs) / len(logs))
        return Experience(parts)

    def _learners(self, candidate: Candidate) -> int:
        """How many processes fill the cache that a candidate uses."""
        return self.dimension.tasks if ALGORITHMS[candidate.algorithm].shares_cache else 1

    @property
    def _ahead(self) -> float:
        """Tuples that are still to come to this process, as far as anybody knows."""
        return self.dimension.policy.ahead(self._seen)

    # -------------------------------------------------------------------------------------------- the plan

    @property
    def _batch(self) -> int:
        """Tuples that are finished together: those of a task."""
        return max(round(self._seen / self._tasks), 1) if self._seen else 0

    def _planned_from(self, first: pa.RecordBatch) -> Chosen:
        plan = self._made(first, probe=True)
        best, other = plan.choice, plan.runner_up
        after = "" if other is None else f", {other.algorithm} {other.rate_per_s:,.0f}"
        return _chosen(1, best, f"planned: {best.algorithm} {best.rate_per_s:,.0f} tuples/s{after}")

    def _plan_for(self, first: pa.RecordBatch, join: SemiStreamJoin | None = None) -> JoinPlan:
        """The plan that this process has made last, unless it was made for tasks of quite another size."""
        if self._plan is not None:
            assumed = self._plan.choice.situation.workload.batch
            if not self._batch or 0.5 <= assumed / self._batch <= 2.0:
                return self._plan
        return self._made(first, join)

    def _made(self, batch: pa.RecordBatch, join: SemiStreamJoin | None = None, *, probe: bool = False) -> JoinPlan:
        """A new plan, from a sample of this batch and, if one is open, from what the join has seen of R.

        To look tuples up in R, as `probe` asks for, takes a budget: no join may be open then.
        """
        dimension = self.dimension
        if join is not None:
            self._plan = self._plan_with(join.master, join.direct, batch, join, probe)
        else:
            with closing(dimension.open_master(dimension.version)) as master:
                self._plan = self._plan_with(master, dimension.reading(master).direct, batch, None, probe)
        return self._plan

    def _plan_with(
        self, master: Master, direct: bool, batch: pa.RecordBatch, join: SemiStreamJoin | None, probe: bool
    ) -> JoinPlan:
        dimension = self.dimension
        request = dimension.request
        schema, stream = batch.schema, None
        if set(request.spec.stream_on) <= set(schema.names):
            sample = StreamSample(master, request.spec, schema)
            sample.add(batch)
            if probe:
                sample.probe(batch, request.memory_bytes // dimension.tasks, dimension.policy.probed_tuples)
            elif join is not None:
                self._take_over(sample, join)
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
            batch=self._batch or max(batch.num_rows, 1),
            micro_batches=True,
            direct=direct,
            sizes=False,
            policy=dimension.policy,
        )
        for place, candidate in enumerate(plan.candidates):
            if _opens(dimension, candidate.algorithm, master, direct):
                return replace(plan, candidates=plan.candidates[place:])
        return plan

    def _take_over(self, sample: StreamSample, join: SemiStreamJoin) -> None:
        """How many tuples match, and how often, as the join has counted it."""
        spec, done = join.spec, join.stats
        if not done.finished or spec.as_of is not None:
            return
        known = 0.0 if self._plan is None else self._plan.stream.absent
        unmatched = int(done.finished * known) if spec.how == "inner" else done.unmatched
        among_rows = unmatched if spec.keeps_unmatched and not spec.apart else 0
        sample.matched(done.finished, unmatched, done.rows_out - among_rows if spec.carries_master else 0)


def _chosen(
    number: int,
    candidate: Candidate,
    why: str,
    waiting: tuple[str, ...] | None = None,
    shown: Mapping[str, tuple[Shown, ...]] | None = None,
    left: Mapping[str, str] | None = None,
    is_again: bool = False,
) -> Chosen:
    found = candidate.prediction
    h_r = found.symbols.get("h_R", 0.0)
    rate, name = candidate.rate_per_s, candidate.algorithm
    return Chosen(number, name, found.hit_rate, h_r, rate, why, waiting, shown or {}, left or {}, is_again)


def _with_shown(chosen: Chosen, stretch: Stretch) -> Chosen:
    """With what the operator at work has shown just now; beside its first turn where it has its second."""
    before = chosen.shown.get(chosen.algorithm, ()) if chosen.is_again else ()
    return replace(chosen, shown={**chosen.shown, chosen.algorithm: (*before, stretch.shown())})


def _measured(chosen: Chosen) -> str:
    """What was measured, for people."""
    rates = ", ".join(f"{name} {every[-1].rate_per_s:,.0f}" for name, every in chosen.shown.items())
    gone = "".join(f"; {name} left: {why}" for name, why in chosen.left.items())
    return f"tuples/s in one process: {rates}{gone}"


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


def _opens(dimension: Dimension, algorithm: str, master: Master, direct: bool) -> bool:
    """Whether a worker's part of the budget really allows an algorithm; nothing is built."""
    named = dimension.with_algorithm(algorithm)
    try:
        SemiStreamJoin(ALGORITHMS[algorithm], master, named.request.spec, named.private_bytes, direct=direct).close()
    except BudgetError:
        return False
    return True


def _rate(candidate: Candidate, experience: Experience) -> float:
    """Tuples per second, by the formula and by what was achieved of it."""
    return candidate.rate_per_s * experience.part(candidate)


def _ranked(candidates: Sequence[Candidate], experience: Experience) -> list[Candidate]:
    return sorted(candidates, key=lambda each: _rate(each, experience), reverse=True)


def _keys_only(master: pa.Schema, spec: JoinSpec) -> pa.Schema:
    return pa.schema([pa.field(here, master.field(there).type) for here, there in spec.pairs])


def _budget(dimension: Dimension) -> Callable[[str], int]:
    """What a worker process can use with an algorithm: its own part, and the cache that all of them share."""

    def of(algorithm: str) -> int:
        named = dimension.with_algorithm(algorithm)
        return named.shared_bytes + named.private_bytes

    return of
