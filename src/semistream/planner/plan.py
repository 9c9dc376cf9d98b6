"""From statistics to a plan: every operator priced in the setting, best first.

    R (manifest or Parquet footer) ─┐
    S (a sample, or assumed)        ├─> Setting ─> formula of every operator ─> candidates ─> Plan
    budget, batch, delay, profile  ─┘

An operator is refused where it cannot run (no index, too little memory) or would keep a tuple waiting too long. In
micro-batches a scan operator may also finish its tuples with the batch, at one R-cycle each; that is a candidate of
its own beside the one that carries tuples over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from semistream.cost.model import Prediction
from semistream.cost.profile import CostProfile, profile_of_machine
from semistream.cost.registry import predict_join
from semistream.cost.setting import Setting
from semistream.cost.tune import KNOBS, option_values, tune
from semistream.errors import BudgetError, ConfigError
from semistream.master.base import Master
from semistream.operators.registry import OPERATORS, resolve
from semistream.planner.stream import StreamFacts
from semistream.spec import JoinSpec

AUTO = "auto"
#: sizes other than the usual ones are taken where the formula says they are worth this much
_WORTH = 1.1

Options = Mapping[str, float]


@dataclass(frozen=True)
class Candidate:
    """An operator with its options, and what to expect of it. `carried`: tuples wait from batch to batch."""

    algorithm: str
    prediction: Prediction
    setting: Setting
    carried: bool = True

    @property
    def rate_per_s(self) -> float:
        return self.prediction.service_rate_per_s

    @property
    def options(self) -> dict[str, float | int]:
        """As `open_join` takes them."""
        return option_values(self.setting.options)

    def per_tuple(self, term: str) -> float:
        """Seconds a stream tuple costs in one term of c_loop."""
        return self.prediction.terms.get(term, 0.0) / self.prediction.w


@dataclass(frozen=True)
class Plan:
    """The candidates, best first, and the others with the reason why not."""

    candidates: tuple[Candidate, ...]
    refused: Mapping[str, str]
    stream: StreamFacts
    profile: CostProfile

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


def make_plan(
    master: Master,
    spec: JoinSpec,
    stream_schema: pa.Schema,
    budget: int | Callable[[str], int],
    stream: StreamFacts | None = None,
    *,
    profile: CostProfile | None = None,
    batch: int = 65_536,
    micro_batches: bool = False,
    max_delay_s: float | None = None,
    direct: bool = False,
    algorithms: Iterable[str] | None = None,
    options: Options | None = None,
    sizes: bool = True,
) -> Plan:
    """Choose an operator and its sizes.

    `budget` is the bytes of the join, or a function that gives them for an algorithm. With `micro_batches` every batch
    of `batch` tuples is finished by itself, unless `max_delay_s` allows scan operators to let tuples wait. `options`
    are the user's and are kept; `sizes=False` keeps the usual sizes too. If nothing but memory is lacking, that is a
    `BudgetError`.
    """
    stream = StreamFacts.assumed(master.n_rows) if stream is None else stream
    profile = profile_of_machine() if profile is None else profile
    names = list(OPERATORS) if algorithms is None else [resolve(name).name for name in algorithms]
    found: list[Candidate] = []
    refused: dict[str, str] = {}
    too_small = too_slow = False
    settings: dict[int, Setting] = {}
    for name in names:
        operator = OPERATORS[name]
        if operator.needs_index and not master.has_index:
            refused[name] = "needs an index, which this master data lacks: build a page store for it"
            continue
        size = budget if isinstance(budget, int) else budget(name)
        try:
            if size not in settings:
                settings[size] = Setting.of(
                    master, spec, stream_schema, size, stream.keys, direct=direct, batch=batch, options=options
                )
            ways = [settings[size]] if not micro_batches else [replace(settings[size], drained=True)]
            if micro_batches and max_delay_s is not None and operator.access == "scan":
                ways.append(settings[size])
            priced = [Candidate(name, predict_join(name, way, profile), way, not way.drained) for way in ways]
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
    found.sort(key=lambda each: -each.rate_per_s)
    if sizes:
        found[0] = _sized(found[0], profile, options or {})
    return Plan(tuple(found), refused, stream, profile)


def _in_time(candidate: Candidate, max_delay_s: float | None) -> bool:
    if max_delay_s is None or not candidate.carried:
        return True
    return candidate.prediction.longest_delay_s <= max_delay_s


def _sized(candidate: Candidate, profile: CostProfile, fixed: Options) -> Candidate:
    """The same operator with the best sizes, if these are worth leaving the usual ones."""
    if not {knob.name for knob in KNOBS[candidate.algorithm]} - set(fixed):
        return candidate
    try:
        best = tune(candidate.algorithm, candidate.setting, profile, fixed=fixed).best
    except BudgetError:
        return candidate
    if best.rate_per_s < _WORTH * candidate.rate_per_s:
        return candidate
    setting = candidate.setting.with_options(**best.options)
    return replace(candidate, prediction=predict_join(candidate.algorithm, setting, profile), setting=setting)
