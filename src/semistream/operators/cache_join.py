"""CACHEJOIN (SSCJ): HYBRIDJOIN behind a cache of the most frequent master tuples."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.kernels import linked as kernel
from semistream.kernels.linked import LINKED_HEADER
from semistream.master.base import Master, PageBlock
from semistream.operators.chunk import Chunk
from semistream.operators.index import IndexJoin
from semistream.parts.arena import Arena
from semistream.parts.cache import Cache, checked_share
from semistream.parts.frequency import AdaptiveThreshold
from semistream.parts.pending import LinkedPending
from semistream.spec import JoinSpec

Int64s = npt.NDArray[np.int64]


class CacheJoin(IndexJoin):
    """CACHEJOIN probes the stream in a cache of frequent master tuples; the misses wait for HYBRIDJOIN's disk phase.

    When a key's tuples leave the pending table, their number f is compared with a threshold: a key with f at or above
    it is frequent and its master tuples, all of them, enter the cache; the least frequent cached keys make room. The
    threshold falls while the cache has room and rises when evictions come too often; counts are halved now and then,
    and more often while the hit rate is below its usual, so the cache follows the stream.

    Needs of R: an index (a non-clustered one does). The papers have one master tuple per key; here a key may have many.

    Memory: M = d·v_R + h_R·v_R + 8·h_R + h_S·(v_S·f + v_Q).
    Cost:   c_loop = c_I/O(d) + d·(c_H + c_F) + w_S·(c_O + c_E + c_S + c_A) + w_N·(c_H + c_O + c_S).

    Options: `cache_share`, the cache's part of the memory for tables (default 0.15); `threshold`, where it starts.

    >>> import pyarrow as pa
    >>> from semistream import open_join
    >>> with open_join("cachejoin", master=pa.table({"k": [1, 2], "v": [10, 20]}), on="k", memory="1MB") as join:
    ...     rows = [*join.push(pa.record_batch({"k": [2, 7]})), *join.drain()]
    >>> pa.Table.from_batches(rows).to_pydict()
    {'k': [2], 'v': [20]}

    Paper: sscj2013 (M. A. Naeem, G. Weber, G. Dobbie, C. Lutteroth, "SSCJ: a semi-stream cache join using a
    front-stage cache module", DaWaK 2013), section 4.
    """

    name = "cachejoin"
    aliases: ClassVar[tuple[str, ...]] = ("sscj",)
    paper = "sscj2013 §4"
    shares_cache = True

    def __init__(
        self,
        master: Master,
        spec: JoinSpec,
        budget_bytes: int,
        *,
        cache_share: float = 0.15,
        threshold: int = 1,
        **common: Any,
    ) -> None:
        self._cache_share = checked_share(cache_share)
        self.threshold = AdaptiveThreshold(threshold)
        super().__init__(master, spec, budget_bytes, **common)

    def _build_tables(self, arena: Arena) -> None:
        room = self.budget.spare
        share = int(room * self._cache_share)
        keys = max(int(share / Cache.key_bytes(self._master_layout.slot_bytes)), 8)
        self.cache = Cache(arena, self._master_layout, share, keys)
        self.pending = LinkedPending(arena, self._stream_layout(LINKED_HEADER), room - share)
        self._asked = self._since_aging = self._hits_before = 0
        self._usual_rate = 0.0
        self._admitted = 0
        self._level = 0

    def _settle(self) -> None:
        super()._settle()
        self.budget.hold("cache", self.cache.bytes_held)
        self.stats.evicted = self.cache.evictions

    def _cache_phase(self, chunk: Chunk) -> Generator[pa.RecordBatch, None, int]:
        self._follow_stream(chunk.n_rows)
        missed = yield from self._probe_cache(self.cache, chunk, self.scratch)
        return missed

    def _follow_stream(self, asked: int) -> None:
        """Halve all counts every sixteen cachefuls of tuples; quarter them every two while hits are below their usual.

        Long counts tell hot keys apart better; when the stream changes, forgetting matters more.
        """
        self._asked += asked
        capacity = max(self.cache.max_keys, 256)
        if self._asked < 2 * capacity:
            return
        hits = self.stats.cache_hits
        rate = (hits - self._hits_before) / self._asked
        self._since_aging += self._asked
        self._hits_before, self._asked = hits, 0
        changed = rate < 0.95 * self._usual_rate
        self._usual_rate = max(rate, 0.95 * self._usual_rate + 0.05 * rate)
        if changed or self._since_aging >= 16 * capacity:
            self._since_aging = 0
            self.cache.age()
            self._level //= 2
            if changed:
                self.cache.age()
                self._level //= 2
        has_room = self.cache.row_room > 0.05 * self.cache.max_keys
        self.threshold.adjust(has_room, self._admitted, self.cache.max_keys)
        self._admitted = 0

    def _matched(self, block: PageBlock, codes: Int64s, done: Int64s, count: int) -> None:
        """Frequency detection: keys that are about to leave the pending table with at least `threshold` tuples."""
        self.stats.frequency_checks += count
        if count == 0:
            return
        keys, tuples = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
        kernel.linked_lengths(self.pending.arena.state, done, count, keys, tuples)
        wanted = np.flatnonzero(tuples >= self.threshold.value)
        if len(wanted) == 0:
            return
        keys, tuples = keys[wanted], tuples[wanted]
        starts, ends = np.empty(len(keys), dtype=np.int64), np.empty(len(keys), dtype=np.int64)
        kernel.runs_of(codes, block.n_rows, keys, starts, ends)
        # The rows of a key have ids without a gap: a key never stands on both sides of a short page.
        ids = block.row_ids(starts)
        self._switch(keys, ids, ids + (ends - starts), tuples, block)

    def _absent(self, done: Int64s, count: int) -> None:
        """A frequent key that R lacks is cached without rows: its next tuples need no disk."""
        keys, tuples = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
        kernel.linked_lengths(self.pending.arena.state, done, count, keys, tuples)
        wanted = np.flatnonzero(tuples >= self.threshold.value)
        if len(wanted):
            nothing = np.zeros(len(wanted), dtype=np.int64)
            self._switch(keys[wanted], nothing, nothing, tuples[wanted], None)

    def _switch(self, keys: Int64s, starts: Int64s, ends: Int64s, tuples: Int64s, block: PageBlock | None) -> None:
        """Put keys into the cache, the least frequent ones making room; no key is driven out by a rarer one."""
        cache = self.cache
        for _ in range(2):
            dealt = cache.admit(keys, starts, ends, tuples, block)
            self.stats.switched += dealt
            self._admitted += dealt
            rest = np.flatnonzero(tuples[dealt:] > self._level) + dealt
            if len(rest) == 0 or cache.keys == 0:
                return
            self._level = cache.evict_least(max(cache.keys // 50, min(len(rest), cache.keys // 4)))
            rest = rest[tuples[rest] > self._level]
            keys, starts, ends, tuples = keys[rest], starts[rest], ends[rest], tuples[rest]
            if len(rest) == 0:
                return
