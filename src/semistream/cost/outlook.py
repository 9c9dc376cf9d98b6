"""What a join will take from its first tuple on: learning is part of the cost.

An operator with a cache begins with an empty one. What a tuple costs then falls as tuples come, until the operator is
at rest. Before the first tuple some operators load R, and after the last those that scan go round once more for the
tuples that wait. An outlook is all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from semistream.cost.prediction import Prediction

#: a state is looked at in the middle of each of these parts of the way to rest, ever wider: most is learnt first
_PARTS = (0.0, 1 / 32, 1 / 8, 1 / 3, 1.0)


@dataclass(frozen=True)
class Outlook:
    """Predictions for an operator as it grows up: `young[i]` holds until it has seen `edges[i]` tuples, then `rest`."""

    rest: Prediction
    edges: tuple[float, ...] = ()
    young: tuple[Prediction, ...] = ()

    @staticmethod
    def of(
        predict: Callable[[float], Prediction], horizon: float = math.inf, rest: Prediction | None = None
    ) -> Outlook:
        """`predict` gives the prediction for an operator that has seen that many tuples; `rest` is it for any number.

        Nobody looks further than `horizon` tuples; without one only the state at rest matters.
        """
        rest = predict(math.inf) if rest is None else rest
        end = min(max(rest.rest_tuples, rest.fresh_tuples), horizon)
        if end <= 0 or math.isinf(horizon):
            return Outlook(rest)
        edges = [part * end for part in _PARTS]
        return Outlook(rest, tuple(edges[1:]), tuple(predict((low + high) / 2) for low, high in pairwise(edges)))

    def at(self, seen: float) -> Prediction:
        """What holds after `seen` tuples."""
        for edge, state in zip(self.edges, self.young, strict=True):
            if seen < edge:
                return state
        return self._last

    def seconds(self, tuples: float, seen: float = 0.0) -> float:
        """What the next `tuples` tuples take an operator that has had `seen`."""
        return tuples * self.mean(lambda state: 1.0 / state.service_rate_per_s, tuples, seen) if tuples else 0.0

    def hit_rate(self, tuples: float, seen: float = 0.0) -> float:
        """Share of the next `tuples` tuples that the cache answers."""
        return self.mean(lambda state: state.hit_rate, tuples, seen)

    def mean(self, of: Callable[[Prediction], float], tuples: float, seen: float = 0.0) -> float:
        """Mean of something over the next `tuples` tuples; at rest where they have no end."""
        if tuples <= 0:
            return of(self.at(seen))
        if math.isinf(tuples):
            return of(self.rest)
        return sum(part * of(state) for part, state in self._parts(tuples, seen)) / tuples

    def total_s(self, tuples: float) -> float:
        """What a stream of `tuples` tuples takes in all: loading, learning, joining, and finishing what waits."""
        return self.rest.start_s + self.seconds(tuples) + self.at(tuples).leave_s

    def _parts(self, tuples: float, seen: float) -> Iterator[tuple[float, Prediction]]:
        """The next `tuples` tuples by state."""
        at, end = seen, seen + tuples
        for edge, state in zip(self.edges, self.young, strict=True):
            if at < min(edge, end):
                yield min(edge, end) - at, state
                at = min(edge, end)
        if at < end:
            yield end - at, self._last

    @property
    def _last(self) -> Prediction:
        """Behind the last edge: at rest, or the last state that was looked at."""
        is_at_rest = not self.edges or self.edges[-1] >= self.rest.rest_tuples
        return self.rest if is_at_rest else self.young[-1]
