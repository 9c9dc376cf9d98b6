"""The operator at work and those before it: to the caller they are one join."""

from __future__ import annotations

import copy

from semistream.engine.chunk import JoinStats
from semistream.engine.join import SemiStreamJoin
from semistream.parts.budget import MemoryReport


class Succession:
    """What all operators of a join did together, one after the other, in one budget."""

    def __init__(self) -> None:
        #: the one at work
        self.join: SemiStreamJoin | None = None
        self._earlier = JoinStats()
        self._earlier_seconds = 0.0
        self._peak = 0

    def retire(self) -> None:
        """Close the operator at work; what it did still counts."""
        if self.join is None:
            return
        self._earlier = self._earlier + self.join.stats
        self._earlier_seconds += self.join.seconds
        self._peak = max(self._peak, self.join.memory.peak_bytes)
        self.join.close()
        self.join = None

    @property
    def stats(self) -> JoinStats:
        """What was done so far, in counts."""
        return self._earlier + self.join.stats if self.join is not None else copy.copy(self._earlier)

    @property
    def seconds(self) -> float:
        """Time spent in operators."""
        return self._earlier_seconds + (self.join.seconds if self.join is not None else 0.0)

    def memory(self, total: int, own: dict[str, int]) -> MemoryReport:
        """Bytes by component of a budget of `total`, with those that are nobody's but the join's `own`."""
        size = sum(own.values())
        if self.join is None:
            return MemoryReport(total, size, size, own, own)
        held = self.join.memory
        return MemoryReport(
            total,
            held.bytes_now + size,
            max(self._peak, held.peak_bytes) + size,
            {**own, **held.now},
            {**own, **held.peak},
            held.largest_piece_bytes,
        )
