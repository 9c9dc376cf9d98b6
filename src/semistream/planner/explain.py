"""A plan in words and numbers, and, after a run, what was predicted beside what was measured."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from semistream.cost.clock import CostClock, counted
from semistream.engine.join import SemiStreamJoin
from semistream.master.reading import Reading
from semistream.planner.plan import LEAVE, START, Candidate, JoinPlan
from semistream.spec import format_bytes

_TERMS = {
    "c_I/O": "reading R",
    "c_S": "taking tuples in",
    "c_H": "probing the cache",
    "c_H_S": "probing the waiting tuples with R",
    "c_L": "index look-ups",
    "c_O": "building rows",
    "c_A": "letting tuples wait",
    "c_E": "taking waiting tuples out",
    "c_F": "counting frequencies",
    "c_B": "filling the cache",
    "c_AI": "handing tuples between threads",
    "c_C": "beginning chunks",
    "c_T": "turns of the loop",
    START: "loading R at the beginning",
    LEAVE: "reads for those that wait at the end",
}
_ORDERS = {"none": "unsorted", "key": "sorted by key", "frequency": "most wanted keys first"}


#: what predictions and measured rates are about
SCOPE = "for the join alone: reading S from its source and writing the result come on top"


@dataclass(frozen=True)
class Measured:
    """What a run showed, in the terms of a prediction; rates are None where no time was measured."""

    tuples: int
    service_rate_per_s: float | None
    clock_rate_per_s: float
    hit_rate: float
    reads_per_tuple: float
    memory_bytes: int
    memory: dict[str, int]
    #: of all that was done around the join as well, where somebody has timed that; `whole` says what it was
    whole_rate_per_s: float | None = None
    whole: str = ""

    @staticmethod
    def of(join: SemiStreamJoin, plan: JoinPlan, batch: int | None = None) -> Measured | None:
        """None if the join has seen nothing yet."""
        tuples = join.stats.tuples_in
        if not tuples:
            return None
        price = CostClock(plan.profile).price_of(join, counted(join, batch=batch))
        report = join.memory
        return Measured(
            tuples=tuples,
            service_rate_per_s=tuples / join.seconds if join.seconds > 0 else None,
            clock_rate_per_s=tuples / price.seconds if price.seconds else 0.0,
            hit_rate=join.stats.hit_rate,
            reads_per_tuple=join.stats.reads / tuples,
            memory_bytes=report.peak_bytes,
            memory=dict(report.peak),
        )


@dataclass(frozen=True)
class Explanation:
    """What was chosen, what else there was, and what is expected of it. `str()` is for people, `to_json` for programs.

    `chosen` is the plan's choice unless the user named another algorithm.
    """

    plan: JoinPlan
    chosen: Candidate
    reading: Reading
    measured: Measured | None = None
    #: why the plan was made again while the join ran, oldest first
    revisions: tuple[str, ...] = ()
    #: which of a key's rows are joined, if not all: those that were valid at the tuple's time
    history: str | None = None

    @property
    def rival(self) -> Candidate | None:
        """What the chosen one is compared with: the best other algorithm."""
        others = (each for each in self.plan.candidates if each.algorithm != self.chosen.algorithm)
        return next(others, None)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        chosen, found = self.chosen, self.chosen.prediction
        r, budget = chosen.situation.r, chosen.situation.budget
        sizes = "".join(f", {name}={value}" for name, value in chosen.options.items())
        yield f"{chosen.algorithm}{sizes}"
        way = "with an index" if r.has_index else "without an index"
        yield (
            f"  R        {r.rows:,} tuples of {r.row_bytes:.0f} bytes, {_ORDERS.get(r.order, r.order)}, {way}, "
            f"in pages of {r.page_rows:,}"
        )
        yield f"  reads    {self.reading.why}"
        yield f"  S        {self.plan.stream.text()}"
        if self.history is not None:
            yield f"  history  of a key's rows those valid at the tuple's time: {self.history}"
        batch = chosen.situation.workload.batch
        share = budget / max(r.bytes, 1.0)
        yield f"  memory   {format_bytes(budget)}, {share:.3g} × R; batches of {batch:,} tuples{_ending(chosen)}"
        yield f"  costs    {_costs_of(self.plan.profile.name)}"
        yield f"  predicted {self.state}" + (", and measured" if self.measured else "")
        yield f"  {SCOPE}"
        for label, predicted, measured in self.figures():
            yield f"    {label:<24} {predicted:>14}" + (f" {measured:>14}" if self.measured else "")
        if math.isfinite(self.span):
            yield f"    {'at rest':<24} {at_rest(chosen)}"
        yield f"    {'time per tuple':<24} {_cost(chosen)}"
        if self.measured is not None and self.measured.whole_rate_per_s is not None:
            yield f"  measured as a whole: {self.measured.whole_rate_per_s:,.0f} tuples/s; {self.measured.whole}"
        rival = self.rival
        if rival is not None:
            yield f"  {'runner-up' if chosen is self.plan.choice else 'best other'}: {why_not(chosen, rival)}"
        for names, why in _by_reason(self.plan.refused):
            yield f"  not {', '.join(names)}: {'each ' if len(names) > 1 else ''}{why}"
        for why in self.revisions:
            yield f"  revised: {why}"
        if found.memory_bytes > budget:
            yield f"  the formula wants {format_bytes(found.memory_bytes)}, more than the budget"

    @property
    def span(self) -> float:
        """How many of the first tuples the predicted rates are about: those of a run, or of the horizon."""
        return self.chosen.horizon if self.measured is None else float(self.measured.tuples)

    @property
    def state(self) -> str:
        """The same in words."""
        if math.isinf(self.span):
            return "at rest: the cache has learnt what it can"
        young = ", while the cache is young" if self.span < self.chosen.prediction.rest_tuples else ""
        return f"over the first {self.span:,.0f} tuples{young}"

    def figures(self) -> list[tuple[str, str, str]]:
        """Rows of the table: label, predicted, measured."""
        found, seen = self.chosen.prediction, self.measured
        expected = replace(self.chosen, horizon=self.span)
        reads = expected.outlook.mean(lambda state: state.reads_per_tuple, self.span)
        rows = [
            ("tuples per second", f"{expected.rate_per_s:,.0f}", _optional(seen)),
            ("found in the cache", f"{expected.hit_rate:.1%}", f"{seen.hit_rate:.1%}" if seen else ""),
            ("reads of R per tuple", f"{reads:.3g}", f"{seen.reads_per_tuple:.3g}" if seen else ""),
            ("a tuple waits, mean", f"{found.delay_s:.3g} s", ""),
            ("a tuple waits, at most", f"{found.longest_delay_s:.3g} s", ""),
            ("memory", format_bytes(found.memory_bytes), format_bytes(seen.memory_bytes) if seen else ""),
        ]
        for part, size in found.memory.items():
            rows.append((f"  {part}", format_bytes(size), format_bytes(seen.memory.get(part, 0)) if seen else ""))
        if seen:
            rows.insert(1, ("  by counts and costs", "", f"{seen.clock_rate_per_s:,.0f}"))
        return rows

    def to_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        situation, stream = self.chosen.situation, self.plan.stream
        r, rival = situation.r, self.rival
        seen = self.measured
        return {
            "algorithm": self.chosen.algorithm,
            "options": dict(self.chosen.options),
            "scope": SCOPE,
            "state": self.state,
            "predicted": _predicted(self.chosen, self.span),
            "measured": None
            if seen is None
            else {
                "tuples": seen.tuples,
                "service_rate_per_s": seen.service_rate_per_s,
                "clock_rate_per_s": seen.clock_rate_per_s,
                "hit_rate": seen.hit_rate,
                "reads_per_tuple": seen.reads_per_tuple,
                "memory_bytes": seen.memory_bytes,
                "memory": seen.memory,
                "whole_rate_per_s": seen.whole_rate_per_s,
                "whole": seen.whole,
            },
            "runner_up": None
            if rival is None
            else {"algorithm": rival.algorithm, "why_not": why_not(self.chosen, rival), **_predicted(rival, self.span)},
            "candidates": [
                {"algorithm": each.algorithm, "carried": each.carried, "service_rate_per_s": each.rate_per_s}
                for each in self.plan.candidates
            ],
            "refused": dict(self.plan.refused),
            "revisions": list(self.revisions),
            "setting": {
                "R_t": r.rows,
                "row_bytes": r.row_bytes,
                "page_rows": r.page_rows,
                "indexed": r.has_index,
                "order": r.order,
                "budget_bytes": situation.budget,
                "batch_rows": situation.workload.batch,
                "horizon": _or_none(self.chosen.horizon),
                "direct": self.reading.direct,
                "reads": self.reading.why,
                "history": self.history,
            },
            "stream": {
                "seen": stream.seen,
                "exponent": stream.exponent,
                "absent": stream.absent,
                "rows_per_key": stream.rows_per_key,
            },
            "profile": self.plan.profile.name,
        }


def explain(
    join: SemiStreamJoin, plan: JoinPlan, chosen: Candidate, reading: Reading, revisions: tuple[str, ...] = ()
) -> Explanation:
    """A plan beside the join that was opened after it."""
    measured = Measured.of(join, plan, chosen.situation.workload.batch)
    return Explanation(plan, chosen, reading, measured, revisions, join.spec.history)


def why_not(chosen: Candidate, rival: Candidate) -> str:
    """The rival's rate, and where it spends what the chosen one saves."""
    said = f"{rival.algorithm}, {rival.rate_per_s:,.0f} tuples/s, {rival.rate_per_s / chosen.rate_per_s:.2f} × as fast"
    ours, theirs = chosen.per_tuple, rival.per_tuple
    # The parallel forms overlap their terms: what counts is a thread's time, so this is a hint and no sum.
    extra = {term: theirs.get(term, 0.0) - ours.get(term, 0.0) for term in {**theirs, **ours}}
    worse = rival.rate_per_s < chosen.rate_per_s
    term = max(extra, key=lambda each: extra[each] if worse else -extra[each])
    mine, other = ours.get(term, 0.0) * 1e9, theirs.get(term, 0.0) * 1e9
    return f"{said}: {_TERMS.get(term, term)} takes {other:,.0f} ns per tuple instead of {mine:,.0f}"


def at_rest(candidate: Candidate) -> str:
    """What an operator comes to, and when."""
    found = candidate.prediction
    rates = f"{found.service_rate_per_s:,.0f} tuples/s, {found.hit_rate:.1%} found in the cache"
    return f"{rates}, after {found.rest_tuples:,.0f} tuples" if found.rest_tuples else rates


def _predicted(candidate: Candidate, span: float) -> dict[str, Any]:
    """Over the first `span` tuples, and at rest."""
    found, expected = candidate.prediction, replace(candidate, horizon=span)
    return {
        "tuples": _or_none(span),
        "service_rate_per_s": expected.rate_per_s,
        "hit_rate": expected.hit_rate,
        "reads_per_tuple": expected.outlook.mean(lambda state: state.reads_per_tuple, span),
        "at_rest": {
            "service_rate_per_s": found.service_rate_per_s,
            "hit_rate": found.hit_rate,
            "reads_per_tuple": found.reads_per_tuple,
            "after_tuples": found.rest_tuples,
        },
        "delay_s": found.delay_s,
        "longest_delay_s": found.longest_delay_s,
        "memory_bytes": found.memory_bytes,
        "memory": dict(found.memory),
        "symbols": {name: value for name, value in found.symbols.items() if value < float("inf")},
    }


def _or_none(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _cost(candidate: Candidate) -> str:
    """The largest parts of what a tuple costs."""
    cost = candidate.per_tuple
    terms = sorted(cost, key=lambda term: -cost[term])
    large = [term for term in terms if cost[term] * 20 > cost[terms[0]]][:4]
    return ", ".join(f"{_TERMS.get(term, term)} {cost[term] * 1e9:,.0f} ns" for term in large)


def _by_reason(refused: Mapping[str, str]) -> list[tuple[list[str], str]]:
    """Those that are refused for the same reason together, in the order in which reasons come."""
    found: dict[str, list[str]] = {}
    for name, why in refused.items():
        found.setdefault(why, []).append(name)
    return [(names, why) for why, names in found.items()]


def _costs_of(profile: str) -> str:
    """Whose costs a prediction counts with."""
    known = {
        "typical": "of a typical machine; `semistream calibrate` measures this one",
        "measured": "as `semistream calibrate` measured them",
        "papers": "of the papers' machine",
    }
    return known.get(profile, f"of the profile {profile!r}")


def _ending(candidate: Candidate) -> str:
    if candidate.carried:
        return ""
    return ", each finished by itself"


def _optional(seen: Measured | None) -> str:
    return "" if seen is None or seen.service_rate_per_s is None else f"{seen.service_rate_per_s:,.0f}"


def to_text(explanation: Explanation, as_json: bool) -> str:
    """For the command line: JSON or words."""
    return json.dumps(explanation.to_json(), indent=2) if as_json else str(explanation)
