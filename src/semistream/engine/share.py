"""Cache and H_S of a running join, divided anew when the cache does not earn its bytes, or would earn more.

Changes are rare, so they are made the simple way: those who wait are finished, then both tables start empty with other
sizes. A snapshot says how the tables were divided: what waits must find its room again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from semistream.engine.loop import Loop
from semistream.engine.snapshot import Snapshot
from semistream.engine.workplace import Workplace
from semistream.parts.arena import ArenaShape
from semistream.parts.cache import Cache
from semistream.parts.pending import FifoPending, LinkedPending
from semistream.parts.share import Range, ShareReview, divide_anew
from semistream.predict.counts import Counts, Workload

_SIZE = "cache_bytes"
#: a cache is reviewed after as many misses as fill H_S so often, and as many tuples as are so many cachefuls
_CACHEFULS = 4
#: H_S that is emptier than this has no use for more bytes
_FULL = 0.5


class MovingShare:
    """The border between cache and H_S. `changed` is told when both have started anew, with the cache's bytes."""

    def __init__(
        self,
        work: Workplace,
        cache: Cache,
        pending: FifoPending | LinkedPending,
        *,
        fillings: int,
        patience: int,
        changed: Callable[[], None],
    ) -> None:
        self._work, self._cache, self._pending = work, cache, pending
        self._review = ShareReview(Range.of(cache.limit_bytes, pending.limit_bytes, cache.arena.extent_bytes), patience)
        self._fillings, self._changed = fillings, changed
        self._wanted = self._review.size
        self._hits = self._misses = 0

    @property
    def size(self) -> int:
        """Bytes that the cache may have."""
        return self._review.size

    @property
    def total(self) -> int:
        """Bytes of both tables."""
        return self._review.range.total

    def is_due(self) -> bool:
        """Whether the tables are to be divided anew; asked between two batches."""
        stats = self._work.stats
        hits, misses = stats.cache_hits - stats.shared_hits, stats.cache_misses
        asked, missed = hits - self._hits + misses - self._misses, misses - self._misses
        if missed < self._fillings * self._capacity or asked < _CACHEFULS * self._cache.keys:
            return False
        hit, self._hits, self._misses = hits - self._hits, hits, misses
        wanted = self._review.wanted(hit, asked)
        if self._is_useless(wanted):
            return False
        self._wanted = wanted
        return wanted != self.size

    def stays(self, answered: float) -> bool:
        """Whether the tables stay as they are while the cache answers this part of the stream."""
        fitting = self._review.range.fitting(self.size, answered)
        return fitting == self.size or self._is_useless(fitting)

    @property
    def _capacity(self) -> float:
        """How many tuples may wait."""
        return self._pending.limit_bytes / self._pending.mean_bytes

    def _is_useless(self, size: int) -> bool:
        return size < self.size and len(self._pending) < _FULL * self._capacity

    def divide(self) -> None:
        """Start both tables anew; only while nobody waits."""
        self._start(self._wanted)

    def _start(self, size: int) -> None:
        # A directory that left no extent for rows would answer nothing, and a cache without hits never grows again.
        room = size - self._cache.arena.extent_bytes
        keys = min(int(size / Cache.key_bytes(self._cache.pool.slot_bytes)), int(room / Cache.entry_bytes()) - 2)
        keys = max(keys, 8)
        divide_anew(self._cache.arena, self._cache, self._pending, size, self.total, keys)
        self._review.resized(size)
        self._changed()

    def state(self) -> dict[str, Any]:
        """What a snapshot says of it."""
        return {_SIZE: self.size}

    def restore(self, snapshot: Snapshot) -> None:
        """Divide the tables of a fresh join as they were."""
        if _SIZE in snapshot.state:
            sizes = self._review.range
            size = snapshot.whole(_SIZE, sizes.least, sizes.most)
            if size != self.size:
                self._start(size)


def rebalanced(loop: Loop, share: MovingShare | None) -> Iterator[pa.RecordBatch]:
    """At the end of a batch: finish those who wait and divide the tables anew, if it is due."""
    if share is not None and share.is_due():
        yield from loop.drain()
        share.divide()
        loop.settle()


# ------------------------------------------------------------------------------------------- as a formula


class SharedPlan(Protocol):
    """A plan, a dataclass, whose tables are a cache and H_S; its options say whether it is `literal`."""

    @property
    def options(self) -> Any: ...

    @property
    def arena(self) -> ArenaShape: ...

    @property
    def cache_bytes(self) -> int: ...

    @property
    def pending_bytes(self) -> int: ...


SomePlan = TypeVar("SomePlan", bound=SharedPlan)


def at_rest(plan: SomePlan, workload: Workload, predicted: Callable[[SomePlan, Workload], Counts]) -> Counts:
    """The prediction for a cache that has given back what it does not earn; a young or a literal one has not."""
    planned = predicted(plan, workload)
    if plan.options.literal or workload.seen < planned.rest or workload.drained:
        return planned

    def with_cache(size: int) -> SomePlan:
        pending = plan.pending_bytes + plan.cache_bytes - size
        return replace(plan, cache_bytes=size, pending_bytes=pending)  # type: ignore[type-var]

    sizes = Range.of(plan.cache_bytes, plan.pending_bytes, plan.arena.extent_bytes)
    size = sizes.at_rest(lambda size: predicted(with_cache(size), workload).per_tuple["cache_hits"])
    return planned if size == plan.cache_bytes else predicted(with_cache(size), workload)
