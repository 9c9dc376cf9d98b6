"""A trial: the closest candidates join a stretch of the stream each, and that corrects their formulas.

The counts of a prediction are right to a percent, its unit costs to a fifth, and good candidates differ by less than
that. What a stretch took, beside what its own counts should have taken, says how far the unit costs are off here and
now. Caches need not be warm for it, and the rows that come out are those of the join: nothing is done twice.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

from semistream.cost.clock import CostClock
from semistream.operators.base import SemiStreamJoin
from semistream.operators.chunk import JoinStats
from semistream.operators.registry import OPERATORS
from semistream.planner.plan import Candidate, Plan

#: who promises this part of the best rate takes part, so many at most
_CLOSE, _MOST = 0.7, 6
#: seconds of work before a stretch begins, and of the stretch
_WARM_S, _STRETCH_S = 0.25, 0.5
#: to leave a scan takes an R-cycle: where that is longer, no trial is worth it
_LONGEST_CYCLE_S = 1.0


class Trial:
    """Who is still to be tried, and the stretch of whom is at work. It begins with the operator that is open."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._waiting: list[Candidate] | None = None
        self._tried: SemiStreamJoin | None = None
        self._before: tuple[JoinStats, float] | None = None

    @property
    def begun(self) -> bool:
        """Whether it is known who takes part."""
        return self._waiting is not None

    def begin(self, plan: Plan, running: Candidate, expected: Callable[[Candidate], float]) -> None:
        """Choose by a newer plan who takes part beside the one that runs; `expected` gives a candidate's rate."""
        self.plan = plan
        ranked = sorted((each for each in plan.candidates if _leaves_soon(each)), key=expected, reverse=True)
        close = [each for each in ranked if expected(each) >= _CLOSE * expected(ranked[0])]
        others = [each for each in close if each.algorithm != running.algorithm]
        self._waiting = others[: _MOST - 1] if _leaves_soon(running) else []

    def achieved(self, join: SemiStreamJoin, batch: int) -> float | None:
        """Asked after every batch: the part of its formula's speed that the join reaches, once that is known."""
        if join is not self._tried:
            self._tried, self._before = join, None
        if self._before is None:
            if join.seconds >= _WARM_S:
                self._before = (copy.copy(join.stats), join.seconds)
            return None
        stats, seconds = self._before
        spent = join.seconds - seconds
        if spent < _STRETCH_S:
            return None
        return CostClock(self.plan.profile).since(join, stats, batch=batch).seconds / spent

    def next(self) -> Candidate | None:
        """Who is to be opened now."""
        return self._waiting.pop(0) if self._waiting else None


def _leaves_soon(candidate: Candidate) -> bool:
    if OPERATORS[candidate.algorithm].access != "scan" or not candidate.carried:
        return True
    found = candidate.prediction
    return found.symbols.get("k", 1.0) * found.c_loop <= _LONGEST_CYCLE_S
