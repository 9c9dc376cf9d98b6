"""SSJ (CMESHJOIN): MESHJOIN behind a cache of the most frequent master tuples."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.kernels import cache as cache_kernel
from semistream.kernels import fifo as fifo_kernel
from semistream.kernels.fifo import FIFO_HEADER
from semistream.master.base import Master, PageBlock
from semistream.operators.chunk import Chunk
from semistream.operators.scan import ScanJoin
from semistream.parts.arena import Arena
from semistream.parts.cache import Cache, checked_share
from semistream.parts.frequency import AdaptiveThreshold
from semistream.parts.pending import FifoPending
from semistream.parts.switching import collect_rows
from semistream.spec import JoinSpec


class SSJ(ScanJoin):
    """SSJ probes the stream in a cache of frequent master tuples first; only misses wait for the scan.

    While a partition is probed, a master tuple that meets at least `threshold` waiting tuples is frequent and belongs
    in the cache; the least frequent cached one makes room. The threshold falls while the cache has room and rises when
    evictions come too often. Since R has no order here, the tuples of a key may stand anywhere: a frequent key is
    named in one R-cycle, its tuples are collected during the next, and it is seen by the stream when it is complete.
    That is what makes the algorithm right for many master tuples per key, where the paper has one.

    Needs of R: nothing. Skew in the stream helps; without skew the cache costs a little.

    Memory: M = (k + l)·v_P + 8·h_R + h_S·(v_S·f + v_P), cache of l pages.
    Cost:   c_loop = c_I/O(k·v_P) + d·(c_H + c_F) + w_S·(c_O + c_E + c_S + c_A) + w_N·(c_H + c_O + c_S).

    Options: `cache_share`, the cache's part of the memory for tables (default 0.4); `threshold`, where it starts.

    >>> import pyarrow as pa
    >>> from semistream import open_join
    >>> with open_join("ssj", master=pa.table({"k": [1, 2], "v": [10, 20]}), on="k", memory="1MB") as join:
    ...     rows = [*join.push(pa.record_batch({"k": [2, 7]})), *join.drain()]
    >>> pa.Table.from_batches(rows).to_pydict()
    {'k': [2], 'v': [20]}

    Paper: ssj2014 (M. A. Naeem, N. Jamil, "An efficient stream-based join to process end user transactions in
    real-time data warehousing", JDIM 2014), section 4.
    """

    name = "ssj"
    aliases = ("cmeshjoin",)
    paper = "ssj2014 §4"
    shares_cache = True

    def __init__(
        self,
        master: Master,
        spec: JoinSpec,
        budget_bytes: int,
        *,
        cache_share: float = 0.4,
        threshold: int = 2,
        **common: Any,
    ) -> None:
        self._cache_share = checked_share(cache_share)
        self.threshold = AdaptiveThreshold(threshold)
        super().__init__(master, spec, budget_bytes, **common)

    def _build_tables(self, arena: Arena) -> None:
        room = self.budget.spare
        named = min(max(int(room * 0.02) // 16, 16), 1 << 20)
        self._frequent, self._waiting = (np.empty(named, dtype=np.int64) for _ in range(2))
        self._named = self._least_named = 0
        self.budget.hold("frequent keys", 16 * named)
        room -= 16 * named
        share = int(room * self._cache_share)
        keys = max(int(share / Cache.key_bytes(self._master_layout.slot_bytes)), 8)
        self.cache = Cache(arena, self._master_layout, share, keys)
        self.pending = FifoPending(arena, self._stream_layout(FIFO_HEADER), room - share)
        self._evicted_before = 0

    def _settle(self) -> None:
        super()._settle()
        self.budget.hold("cache", self.cache.bytes_held)
        self.stats.evicted = self.cache.evictions

    def _cache_phase(self, chunk: Chunk) -> Generator[pa.RecordBatch, None, int]:
        missed = yield from self._probe_cache(self.cache, chunk, self.scratch)
        return missed

    def _after_probe(self, block: PageBlock) -> None:
        """Name the frequent keys of this partition, and collect rows of those named in the last cycle."""
        self._named = int(
            fifo_kernel.fifo_frequent(
                self.disk.codes,
                block.n_rows,
                self.pending.buckets,
                self.pending.arena.state,
                max(self.threshold.value, self._least_named),
                self._frequent,
                self._waiting,
                self._named,
            )
        )
        if self._named > 0.75 * len(self._frequent):
            self._keep_the_most_frequent()
        self.stats.frequency_checks += block.n_rows
        self.stats.switched += collect_rows(self.cache, block, self.disk.codes, self.scratch.slots, make_room=True)

    def _keep_the_most_frequent(self) -> None:
        """Halve the list of named keys before it is full: else it would hold those that R has first."""
        keep = len(self._frequent) // 2
        kept = np.argpartition(-self._waiting[: self._named], keep - 1)[:keep]
        self._frequent[:keep], self._waiting[:keep] = self._frequent[kept], self._waiting[kept]
        self._named, self._least_named = keep, int(self._waiting[:keep].min())

    def _begin_cycle(self) -> None:
        """Show the keys that were collected, then open entries for those that were named, the most frequent first.

        Counts are halved every cycle, so a cached key's count is about twice its tuples per cycle, and what a newcomer
        must exceed is the count of the keys that would make room for it.
        """
        super()._begin_cycle()
        cache = self.cache
        cache_kernel.cache_activate(cache.entries, cache.state)
        cache.age()
        order = np.argsort(-self._waiting[: self._named], kind="stable")
        codes, first = np.unique(self._frequent[: self._named][order], return_index=True)
        counts = self._waiting[: self._named][order][first]
        by_count = np.argsort(-counts, kind="stable")
        codes, counts = codes[by_count], counts[by_count]
        lacking = len(codes) - min(cache.row_room, cache.max_keys - cache.keys)
        if lacking > 0 and len(codes):
            level = cache.evict_least(min(lacking, cache.keys // 4 + 1))
            wanted = int(np.searchsorted(-counts, -level, side="left"))
            codes, counts = codes[:wanted], counts[:wanted]
        stop = min(len(codes), cache.max_keys - cache.keys)
        cache_kernel.cache_mark_switching(codes, counts, stop, cache.entries, cache.state)
        has_room = cache.row_room > max(0.05 * cache.max_keys, stop)
        self.threshold.adjust(has_room, cache.evictions - self._evicted_before, max(cache.keys, 1))
        if not has_room:
            self.threshold.value = max(self.threshold.value, self._least_named)
        self._evicted_before = cache.evictions
        self._named = self._least_named = 0
