"""From statistics to a plan: every algorithm priced in the situation, best first.

    R (manifest or Parquet footer) ─┐
    S (a sample, or assumed)        ├─> Situation ─> prediction of every algorithm ─> candidates ─> JoinPlan
    budget, batch, delay, profile  ─┘

Candidates are ranked by the time that they need for the stream that is still to come, the horizon: from an empty cache
to the last row. Where there is no horizon, by what they do at rest.

An algorithm is refused where it cannot run (no index, too little memory), would keep a tuple waiting too long, or
predicts nothing. In micro-batches a scan may also finish its tuples with the batch, at one R-cycle each; that is a
candidate of its own beside the one that carries tuples over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from semistream.algorithms.registry import ALGORITHMS, resolve
from semistream.cost.outlook import Outlook
from semistream.cost.prediction import Prediction
from semistream.cost.profile import CostProfile, profile_of_machine
from semistream.cost.situation import Options, Situation
from semistream.cost.tune import tune
from semistream.engine.options import rules
from semistream.errors import BudgetError, ConfigError
from semistream.master.base import Master
from semistream.planner.policy import Policy
from semistream.planner.stream import StreamStatistics
from semistream.spec import JoinSpec

#: parts of the time per tuple that no term of c_loop has: what is done before the first and after the last tuple
START, LEAVE = "start", "leave"


@dataclass(frozen=True)
class Candidate:
    """An algorithm with its options, and what to expect of it over the next `horizon` tuples, beginning with none."""

    algorithm: str
    outlook: Outlook
    situation: Situation
    #: as `open_join` takes them
    options: Mapping[str, Any] = field(default_factory=dict)
    horizon: float = math.inf

    @staticmethod
    def of(
        algorithm: str, situation: Situation, profile: CostProfile, options: Options, horizon: float = math.inf
    ) -> Candidate:
        """Priced at every age that it will have."""
        rest = Outlook(situation.predict(algorithm, profile, options))
        return Candidate(algorithm, rest, situation, options).over(horizon, profile)

    def over(self, horizon: float, profile: CostProfile) -> Candidate:
        """The same with what it does while it is young, as far as `horizon`."""

        def predict(seen: float) -> Prediction:
            return self.situation.with_workload(seen=seen).predict(self.algorithm, profile, self.options)

        return replace(self, outlook=Outlook.of(predict, horizon, self.prediction), horizon=horizon)

    @property
    def prediction(self) -> Prediction:
        """What holds at rest."""
        return self.outlook.rest

    @property
    def rate_per_s(self) -> float:
        """Tuples per second over the horizon, loading, learning and the last pass included; at rest without one."""
        if math.isinf(self.horizon):
            return self.prediction.service_rate_per_s
        return self.horizon / max(self.outlook.total_s(self.horizon), 1e-12)

    @property
    def hit_rate(self) -> float:
        """Share of the tuples of the horizon that the cache answers."""
        return self.outlook.hit_rate(self.horizon)

    @property
    def carried(self) -> bool:
        """Tuples wait from batch to batch."""
        return not self.situation.workload.drained

    @property
    def per_tuple(self) -> dict[str, float]:
        """Seconds that a stream tuple of the horizon costs, by term of c_loop, and for start and end."""

        def mean(term: str) -> float:
            return self.outlook.mean(lambda state: state.terms[term] / state.w, self.horizon)

        found = {term: mean(term) for term in self.prediction.terms}
        return {
            **found,
            START: self.prediction.start_s / self.horizon,
            LEAVE: self.outlook.at(self.horizon).leave_s / self.horizon,
        }


@dataclass(frozen=True)
class JoinPlan:
    """The candidates, best first, and the others with the reason why not."""

    candidates: tuple[Candidate, ...]
    refused: Mapping[str, str]
    stream: StreamStatistics
    profile: CostProfile
    #: stream tuples that are to come, as far as anybody knows; without an end candidates are ranked at rest
    horizon: float = math.inf

    @property
    def choice(self) -> Candidate:
        return self.candidates[0]

    @property
    def runner_up(self) -> Candidate | None:
        """The best one with another algorithm."""
        others = (each for each in self.candidates if each.algorithm != self.choice.algorithm)
        return next(others, None)

    def of(self, algorithm: str) -> Candidate | None:
        """The best candidate of an algorithm."""
        return next((each for each in self.candidates if each.algorithm == algorithm), None)

    def keeping(self, running: Candidate, policy: Policy) -> JoinPlan:
        """The same, where the operator at work has the sizes that it runs with, unless others are worth a change."""
        mine = self.of(running.algorithm)
        if mine is None or dict(mine.options) == dict(running.options):
            return self
        kept = Candidate.of(mine.algorithm, mine.situation, self.profile, running.options, mine.horizon)
        if mine.rate_per_s >= policy.sizes_worth * kept.rate_per_s:
            return self
        others = (each for each in self.candidates if each is not mine)
        return replace(self, candidates=tuple(sorted((kept, *others), key=lambda each: -each.rate_per_s)))


def make_plan(
    master: Master,
    spec: JoinSpec,
    stream_schema: pa.Schema,
    budget: int | Callable[[str], int],
    stream: StreamStatistics | None = None,
    *,
    profile: CostProfile | None = None,
    batch: int = 65_536,
    micro_batches: bool = False,
    max_delay_s: float | None = None,
    direct: bool = False,
    algorithms: Iterable[str] | None = None,
    options: Options | None = None,
    sizes: int = 1,
    policy: Policy | None = None,
    horizon: float | None = None,
    for_trial: bool = True,
) -> JoinPlan:
    """Choose an algorithm and its sizes.

    `budget` is the bytes of the join, or a function that gives them for an algorithm. With `micro_batches` every batch
    of `batch` tuples is finished by itself, unless `max_delay_s` allows scans to let tuples wait. `options` are the
    user's, kept by every algorithm that has them; `sizes` says for how many of the best others than the usual sizes are
    looked for. `horizon` is the number of tuples that are still to come (default: the policy's). With `for_trial` those
    who are close to the best are priced as exactly as the best. If nothing but memory is lacking, that is a
    `BudgetError`.
    """
    policy = Policy() if policy is None else policy
    ahead = policy.ahead() if horizon is None else horizon
    if micro_batches and math.isfinite(ahead):
        # The last batch may be shorter, and is finished by itself all the same.
        batch = max(round(ahead / math.ceil(ahead / batch)), 1)
    stream = StreamStatistics.assumed(master.n_rows) if stream is None else stream
    profile = profile_of_machine() if profile is None else profile
    names = list(ALGORITHMS) if algorithms is None else [resolve(name).name for name in algorithms]
    found: list[Candidate] = []
    refused: dict[str, str] = {}
    too_small = too_slow = False
    situations: dict[int, Situation] = {}
    for name in names:
        algorithm = ALGORITHMS[name]
        if algorithm.predict is None or algorithm.pricing is None:
            refused[name] = "has no prediction: name it to use it"
            continue
        if algorithm.needs_index and not master.has_index:
            refused[name] = (
                "needs an index, which this master data lacks: build a page store for it (`semistream master build`)"
            )
            continue
        size = budget if isinstance(budget, int) else budget(name)
        if size not in situations:
            situations[size] = Situation.of(
                master, spec, stream_schema, size, stream.keys, direct=direct, batch=batch, drained=micro_batches
            )
        ways = [situations[size]]
        if micro_batches and max_delay_s is not None and algorithm.access == "scan":
            ways.append(ways[0].with_workload(drained=False))
        kept = {key: value for key, value in (options or {}).items() if key in rules(algorithm.options)}
        try:
            priced = [Candidate.of(name, way, profile, kept) for way in ways]
        except BudgetError as error:
            refused[name] = str(error)
            too_small = True
            continue
        in_time = [each for each in priced if _in_time(each, max_delay_s)]
        if not in_time:
            too_slow = True
            waits = min(each.prediction.longest_delay_s for each in priced)
            refused[name] = f"keeps a tuple waiting for up to {waits:.3g} s, more than the {max_delay_s:g} s allowed"
        found += in_time
    if not found:
        reasons = "; ".join(f"{name}: {why}" for name, why in refused.items())
        kind = BudgetError if too_small and not too_slow else ConfigError
        raise kind(f"no operator can do this join. {reasons}")
    found = ranked(found, profile, ahead, policy, for_trial=for_trial)
    best = found[0].rate_per_s
    if ahead / best >= policy.sizes_from_s:
        for place, each in enumerate(found[:sizes]):
            if each.rate_per_s >= policy.close * best:
                sized = _sized(each, profile, policy.sizes_worth)
                # A larger table keeps its tuples longer.
                found[place] = sized if _in_time(sized, max_delay_s) else each
        found.sort(key=lambda each: -each.rate_per_s)
    return JoinPlan(tuple(found), refused, stream, profile, ahead)


def ranked(
    candidates: list[Candidate], profile: CostProfile, horizon: float, policy: Policy, *, for_trial: bool = True
) -> list[Candidate]:
    """The same over a horizon, best first. Nobody is faster young than at rest: the hopeless are not looked into.

    For a trial, where there is time for one, those who are close to the best are looked into as well.
    """
    found: list[Candidate] = []
    best = 0.0
    for each in sorted(candidates, key=lambda each: -each.rate_per_s):
        has_time = for_trial and (best == 0.0 or horizon / best >= policy.plan_from_s)
        is_hopeless = each.rate_per_s < (policy.close if has_time else 1.0) * best
        young = replace(each, horizon=horizon) if is_hopeless else each.over(horizon, profile)
        found.append(young)
        best = max(best, young.rate_per_s)
    return sorted(found, key=lambda each: -each.rate_per_s)


def _in_time(candidate: Candidate, max_delay_s: float | None) -> bool:
    if max_delay_s is None or not candidate.carried:
        return True
    return candidate.prediction.longest_delay_s <= max_delay_s


def _sized(candidate: Candidate, profile: CostProfile, worth: float) -> Candidate:
    """The same algorithm with the best sizes, if these are worth leaving the usual ones.

    They are looked for at the age at which a third of the horizon is done: young enough, and past the beginning.
    """
    name, fixed, horizon = candidate.algorithm, candidate.options, candidate.horizon
    if not {knob.name for knob in ALGORITHMS[name].knobs} - set(fixed):
        return candidate
    try:
        best = tune(name, candidate.situation.with_workload(seen=horizon / 3), profile, fixed=fixed).best
    except BudgetError:
        return candidate
    sized = Candidate.of(name, candidate.situation, profile, best.options, horizon)
    return sized if sized.rate_per_s >= worth * candidate.rate_per_s else candidate
