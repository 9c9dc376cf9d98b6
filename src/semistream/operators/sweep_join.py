"""SWEEPJOIN: the production default; every batch is finished in one ordered sweep behind a cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.errors import ConfigError
from semistream.kernels.chance import beyond_chance
from semistream.master.base import Master
from semistream.operators.chunk import Chunk
from semistream.operators.lookup import FoundRuns, LookupJoin
from semistream.operators.resident import load_all, resident_bytes
from semistream.parts.cache import Cache
from semistream.parts.frequency import FrequencySketch
from semistream.spec import JoinSpec

_SKETCH_BYTES_PER_KEY = 4
_WINDOW_PER_KEY = 40


class SweepJoin(LookupJoin):
    """SWEEPJOIN answers what it can from the cache, then reads, in page order, just the pages the misses need.

    Misses of a chunk are sorted by key, so each page is visited once; neighbouring reads merge where reading the gap
    is cheaper than a seek, which turns the sweep into a scan when most pages are needed. The cache holds the keys with
    the most stream tuples per byte: a missed key enters when a frequency sketch has counted it more often than the
    least frequent cached key, and not by chance, all its master tuples at once; a key that R lacks enters without any.
    Counts are halved now and then, so the cache follows the stream. When the budget holds all of R, R is loaded once.

    Needs of R: an index. Every tuple is finished by the push that brought it; nothing waits.

    Memory: M = h_R·(v_R + entry + sketch) + buffers.
    Cost:   c_chunk = w·(c_S + c_H) + w_N·c_O + pages·c_I/O(page run) + w_S·(log w_S·c_sort + c_O).

    Options: `gap_bytes`, the gap worth reading over instead of a seek (default 128 KiB, for `direct`).

    >>> import pyarrow as pa
    >>> from semistream import open_join
    >>> with open_join("sweepjoin", master=pa.table({"k": [1, 2], "v": [10, 20]}), on="k", memory="1MB") as join:
    ...     rows = list(join.push(pa.record_batch({"k": [2, 7]})))
    >>> pa.Table.from_batches(rows).to_pydict()
    {'k': [2], 'v': [20]}

    Paper: none; the admission follows tinylfu2017 (G. Einziger, R. Friedman, B. Manes, "TinyLFU: a highly efficient
    cache admission policy", ACM TOS 2017), the composition the cache inequality of ssbj2019.
    """

    name = "sweepjoin"
    paper = "ours"
    shares_cache = True

    def __init__(
        self,
        master: Master,
        spec: JoinSpec,
        budget_bytes: int,
        *,
        gap_bytes: int | None = None,
        **common: Any,
    ) -> None:
        if gap_bytes is not None:
            if gap_bytes < 0:
                raise ConfigError(f"gap_bytes={gap_bytes} is out of range; allowed are numbers of bytes from 0")
            self.gap_bytes = gap_bytes
        super().__init__(master, spec, budget_bytes, **common)

    def _default_buffer_bytes(self, total: int) -> int:
        return min(total // 20, 4 << 20)

    def _build(self) -> None:
        row_slot = self._master_layout.slot_bytes
        arena = self._make_arena(row_slot)
        room = self.budget.spare
        held = load_all(self, arena) if self.reader.n_rows > 0 and resident_bytes(self) <= room else None
        self.resident = held is not None
        if held is not None:
            self.cache = held
        else:
            keys = max(int(room / (Cache.key_bytes(row_slot) + _SKETCH_BYTES_PER_KEY)), 8)
            self.sketch = FrequencySketch(keys * _SKETCH_BYTES_PER_KEY // 2, keys * _WINDOW_PER_KEY)
            self.budget.hold("frequency sketch", self.sketch.bytes_held)
            self.cache = Cache(arena, self._master_layout, room - self.sketch.bytes_held, keys)
            self._level = 0
            self._asked = 0
        self._settle()

    def _settle(self) -> None:
        self.budget.hold("cache", self.cache.bytes_held)
        self.stats.evicted = self.cache.evictions

    def _consume(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        missed = yield from self._probe_cache(self.cache, chunk, self.scratch)
        ids = self.scratch.misses[:missed].copy()
        if self.resident or self.reader.n_pages == 0:
            self.stats.cache_hits += missed
            self.stats.cache_misses -= missed
            yield from self._finish_chunk(chunk, ids)
            return
        self._maybe_age(chunk.n_rows)
        for item in self._sweep(chunk.codes[ids], ids, self._take_chunk(chunk), self._mark_chunk(chunk)):
            if isinstance(item, FoundRuns):
                self._admit(item)
            else:
                yield item
        yield from self._finish_chunk(chunk, ids)

    def _admit(self, found: FoundRuns) -> None:
        """Offer what was read to the cache: all of it until the cache was full once, then what is more frequent."""
        cache = self.cache
        estimates = self.sketch.add(found.codes, found.tuples)
        rest = np.flatnonzero(estimates > self._border)
        for _ in range(2):
            if len(rest) == 0:
                return
            dealt = cache.admit(found.codes[rest], found.starts[rest], found.ends[rest], estimates[rest], found.block)
            self.stats.switched += dealt
            rest = rest[dealt:]
            rest = rest[estimates[rest] > self._border]
            if len(rest) == 0:
                return
            self._level = max(cache.evict_least(max(cache.keys // 50, min(len(rest), cache.keys // 4))), 1)
            rest = rest[estimates[rest] > self._border]

    @property
    def _border(self) -> float:
        """Counts above this are above the least frequent cached key's by more than chance."""
        return float(beyond_chance(self._level)) if self._level else 0.0

    def _maybe_age(self, asked: int) -> None:
        self._asked += asked
        if self._asked >= self.sketch.window:
            self._asked = 0
            self.sketch.age()
            self.cache.age()
            self._level //= 2
