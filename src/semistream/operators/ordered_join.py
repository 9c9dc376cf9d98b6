"""ORDEREDJOIN: the output keeps the order in which the stream came."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.keys import equal_keys
from semistream.columns.rows import BatchColumns
from semistream.errors import BudgetError, ConfigError
from semistream.kernels import lookup as lookup_kernel
from semistream.kernels import tuples as tuple_kernel
from semistream.kernels import waiting as kernel
from semistream.kernels.waiting import QUEUE_HEADER
from semistream.master.base import Master
from semistream.operators.base import Chunk, Mark, Take
from semistream.operators.lookup import LookupJoin
from semistream.operators.snapshot import Snapshot
from semistream.parts.arena import Arena
from semistream.parts.cache import Cache
from semistream.parts.waiting import WaitingArea
from semistream.spec import JoinSpec

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Flags = Callable[[Int64s], Bools]

_NO_NULLS = np.empty(0, dtype=np.bool_)
_ALL_ROWS = np.iinfo(np.int64).max
_PLAN_BYTES_A_CODE = 96
_WINDOW_PER_KEY = 5
_ANSWER_SHARE = 0.25


@dataclass
class Batch:
    """Tuples to be answered in order: what names them, their codes, and how their columns and flags are reached."""

    refs: Int64s
    codes: Int64s
    null: Bools
    n_rows: int
    take: Take
    mark: Mark
    matched: Flags


class OrderedJoin(LookupJoin):
    """ORDEREDJOIN gives its rows in exactly the order of the stream, through a cache and a waiting queue.

    While nothing waits, what the cache answers goes out at once. The first tuple that it cannot answer waits, and
    behind it all that follow, also those that the cache could answer: order is worth their delay. The queue is worked
    off in batches: the keys that the cache lacks are read in one ordered sweep and enter the cache, now every tuple
    at the front has its answer there, and the least frequent keys leave before the next batch. A null key and, in left
    and anti joins, an unmatched tuple stand in their place.

        stream -> [hit, nothing waits] ----------------------------> output in order
               -> Q ... Q -> missing keys -> sweep -> cache -> answer Q from its head

    Needs of R: an index. Keys may repeat; a key whose master tuples do not fit is read page by page for each tuple.

    Memory: M = h_Q·v_S + h_R·(v_R + entry) + buffers.
    Cost:   c_batch = w·(c_A + c_H + c_O + c_E) + pages·c_I/O(page run), w tuples of which w_S were not cached.

    Options: `queue_share`, the queue's part of the memory for tables (default 0.25); `batch`, tuples that wait before
    the queue is worked off (default: as many as it holds).

    >>> import pyarrow as pa
    >>> from semistream import open_join
    >>> with open_join("orderedjoin", master=pa.table({"k": [1, 2], "v": [10, 20]}), on="k", how="left") as join:
    ...     rows = [*join.push(pa.record_batch({"k": [2, 7, None, 1]})), *join.drain()]
    >>> pa.Table.from_batches(rows).to_pydict()
    {'k': [2, 7, None, 1], 'v': [20, None, None, 10]}

    Paper: R. Derakhshan, A. Sattar, B. Stantic, "A new operator for efficient stream-relation join processing in data
    streaming engines", CIKM 2013; described in "SSBJ", section 2.3.
    """

    name = "orderedjoin"
    seed = "000 §2.3"

    def __init__(
        self,
        master: Master,
        spec: JoinSpec,
        budget_bytes: int,
        *,
        queue_share: float = 0.25,
        batch: int | None = None,
        **common: Any,
    ) -> None:
        if not 0.0 < queue_share < 0.95:
            raise ConfigError(f"queue_share={queue_share} is out of range; allowed are shares between 0 and 0.95")
        if batch is not None and batch < 1:
            raise ConfigError(f"batch={batch} is out of range; allowed are whole numbers from 1")
        self._queue_share = queue_share
        self._batch_limit = batch
        super().__init__(master, spec, budget_bytes, **common)
        exact, how = self._exact, spec.how
        self._most_rows = _ALL_ROWS
        if exact and not spec.carries_master:
            self._most_rows = 1 if how == "semi" else 0
        self._last = 0
        if spec.keeps_unmatched:
            self._last = kernel.ONLY_IF_ALONE if exact else kernel.ALWAYS_LAST

    def _build(self) -> None:
        layout = self._stream_layout(QUEUE_HEADER)
        row_slot = self._master_layout.slot_bytes
        spare = self.budget.spare
        least = 9 * Arena(0, layout.slot_bytes).extent_bytes + 1024
        size = min(max(int(spare * self._queue_share), least), spare - 2048)
        queue_arena = Arena(int(size * 0.998) - 512, layout.slot_bytes)
        if queue_arena.extents_total < 8:
            raise BudgetError(
                f"a budget of {self.budget.total} bytes leaves {size} for waiting tuples of {layout.slot_bytes} bytes; "
                f"{self.name} needs at least {self.budget.total + least - size} bytes for this stream",
                minimum_bytes=self.budget.total + least - size,
            )
        self.queue = WaitingArea(queue_arena, layout)
        self.budget.hold("queue table", queue_arena.table_bytes)
        spare -= size
        codes = min(max(int(spare * 0.05) // _PLAN_BYTES_A_CODE, 16), 1 << 18)
        self._missing = np.empty(codes, dtype=np.int64)
        self.budget.hold("access plan", codes * _PLAN_BYTES_A_CODE)
        spare -= codes * _PLAN_BYTES_A_CODE
        keys = max(int(0.98 * spare / Cache.key_bytes(row_slot)), 8)
        self._cache_bytes, self._cache_keys = spare - 1024, keys
        self._new_cache()
        self.stats.evicted = self._asked = 0
        self._rows_a_key = 1.0
        self._settle()

    def _new_cache(self) -> None:
        """An empty cache in an arena of its own."""
        keys = self._cache_keys
        entries = int(16 * (keys / 0.7 + 4))
        size = max(self._cache_bytes - entries, 0)
        arena = Arena(int(size * 0.998), self._master_layout.slot_bytes)
        self.cache = Cache(arena, self._master_layout, self._cache_bytes - arena.table_bytes, keys)
        self.budget.hold("cache table", arena.table_bytes)

    def _settle(self) -> None:
        self.budget.hold("waiting queue", self.queue.bytes_held)
        self.budget.hold("cache", self.cache.bytes_held)

    # -------------------------------------------------------------------------------------- the stream

    def _push(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """As for any join, but tuples with a null key are not let through first: they too keep their place."""
        for start in range(0, batch.num_rows, self.chunk_rows):
            part = batch.slice(start, self.chunk_rows)
            self.stats.tuples_in += part.num_rows
            codes, valid = self._coder.codes([part.column(i) for i in self._key_at])
            null = _NO_NULLS
            if valid is not None:
                nulls = int(len(valid) - valid.sum())
                self.stats.null_keys += nulls
                if self.spec.keeps_unmatched:
                    null = ~valid
                else:
                    self.stats.unmatched += nulls
                    self.stats.finished += nulls
                    part, codes = part.filter(pa.array(valid)), codes[valid]
            if part.num_rows:
                columns = BatchColumns(self._stream, self._stream.encode(part.columns), part.num_rows)
                matched = np.zeros(part.num_rows if self.spec.how != "inner" else 0, dtype=np.bool_)
                yield from self._take_in(Chunk(part.num_rows, codes, columns, matched), null)
                self._settle()

    def _consume(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        yield from self._take_in(chunk, _NO_NULLS)

    def _take_in(self, chunk: Chunk, null: Bools) -> Iterator[pa.RecordBatch]:
        start = 0
        if not len(self.queue):
            start = chunk.n_rows
            if self.reader.n_pages:
                start = int(kernel.answered_prefix(chunk.codes, null, start, self.cache.entries))
            else:
                null = np.ones(chunk.n_rows, dtype=np.bool_)
            self.stats.cache_hits += start if self.reader.n_pages else 0
            yield from self._answer(self._batch_of(chunk, null, start))
        while start < chunk.n_rows:
            took = self._enqueue(chunk, null, start)
            start += took
            if start < chunk.n_rows or len(self.queue) >= (self._batch_limit or _ALL_ROWS):
                if not len(self.queue):
                    raise BudgetError(
                        f"not even one waiting tuple fits the budget of {self.budget.total} bytes: "
                        "give the join more memory"
                    )
                yield from self._work_off()

    def _enqueue(self, chunk: Chunk, null: Bools, start: int) -> int:
        slots = self.scratch.slots
        took = self.queue.append(
            chunk.codes, chunk.columns, self.scratch.every, start, chunk.n_rows - start, slots
        )
        if len(null):
            kernel.mark_null_keys(slots, took, null[start:], self.queue.layout.flag_at)
        self.stats.appended += took
        return took

    def _drain(self) -> Iterator[pa.RecordBatch]:
        yield from self._work_off()
        self._settle()

    # --------------------------------------------------------------------------------------- the queue

    def _work_off(self) -> Iterator[pa.RecordBatch]:
        """Answer all that waits, batch by batch."""
        self._settle()
        most = len(self._missing)
        while len(self.queue):
            head = self.queue.head()
            walked = np.zeros(1, dtype=np.int64)
            missing = int(
                kernel.uncached_codes(
                    head,
                    self.queue.arena.state,
                    self.cache.entries,
                    self._null_flag,
                    min(most, self._keys_that_fit()),
                    self._missing,
                    walked,
                )
            )
            if missing:
                self._fetch(self._missing[:missing])
                self._settle()
            before = len(self.queue)
            yield from self._answer_queue(int(walked[0]))
            left = before - len(self.queue)
            self.stats.iterations += 1
            if left:
                self.stats.cache_misses += min(missing, left)
                self.stats.cache_hits += left - min(missing, left)
                self._make_room(left)
                most = min(2 * most, len(self._missing))
            elif self.cache.keys and most > 1:
                # The front tuple's key did not get in. Fewer keys ask for room at once, and there is more of it.
                most = max(most // 8, 1)
                self.cache.evict_least(max(self.cache.keys * 3 // 4, 1))
            elif self.cache.keys:
                self.cache.evict_least(self.cache.keys)
            else:
                yield from self._answer_from_pages()
                self._new_cache()
            self._settle()

    @property
    def _null_flag(self) -> int:
        return self.queue.layout.flag_at if self.spec.keeps_unmatched else 0

    def _keys_that_fit(self) -> int:
        rows = self.cache.row_room / max(self._rows_a_key, 0.1)
        return max(min(int(rows), self.cache.max_keys - self.cache.keys), 1)

    def _make_room(self, asked: int) -> None:
        """Free the part of the cache that the next batch's answers need; age its counts now and then."""
        cache = self.cache
        self._asked += asked
        if self._asked >= _WINDOW_PER_KEY * cache.max_keys:
            self._asked = 0
            cache.age()
        wanted = min(int(_ANSWER_SHARE * cache.max_keys), len(self._missing))
        lacking = wanted - self._keys_that_fit()
        if lacking > 0 and cache.keys:
            cache.evict_least(lacking)
        self.stats.evicted = cache.evictions

    def _fetch(self, codes: Int64s) -> None:
        """Read missing keys in one ordered sweep into the cache, as far as there is room for them."""
        codes = np.sort(codes)
        distinct, offsets = np.empty(len(codes), dtype=np.int64), np.empty(len(codes) + 1, dtype=np.int64)
        distinct = distinct[: lookup_kernel.distinct_runs(codes, distinct, offsets)]
        first, last = self.reader.locate(distinct)
        by_key = self.master.order == "key"
        if not by_key:
            by_page = np.argsort(first, kind="stable")
            distinct, first, last = distinct[by_page], first[by_page], last[by_page]
        zeros = np.zeros(len(distinct), dtype=np.int64)
        starts, ends = zeros.copy(), zeros.copy()
        pages = np.empty(self._group_capacity(), dtype=np.int64)
        result = np.empty(1, dtype=np.int64)
        at = int(np.searchsorted(first, 0)) if not by_key else 0
        if at and self._cache_runs(distinct[:at], starts, ends, zeros, None) < at:
            return
        while at < len(distinct):
            n_pages = int(lookup_kernel.group_pages(first, last, at, len(distinct), pages, result))
            if n_pages == 0:
                at += 1
                continue
            stop = int(result[0])
            block = self._load(pages[:n_pages])
            if len(block.pages) < n_pages:
                stop = int(np.searchsorted(last[at:stop], block.pages[-1], side="right")) + at
                if stop == at:
                    at += 1
                    continue
            lookup_kernel.find_runs(
                distinct,
                first,
                last,
                at,
                stop,
                block.pages,
                block.page_rows,
                block.base,
                block.rows,
                block.kind,
                block.data,
                by_key,
                starts,
                ends,
            )
            self.stats.master_rows_probed += stop - at
            if self._cache_runs(distinct[at:stop], starts[at:stop], ends[at:stop], zeros, block) < stop - at:
                return
            at = stop

    def _cache_runs(self, codes: Int64s, starts: Int64s, ends: Int64s, zeros: Int64s, block: Any) -> int:
        dealt = 0
        if block is None:
            block = self._nothing
        dealt = self.cache.admit(codes, starts[: len(codes)], ends[: len(codes)], zeros[: len(codes)], block)
        self.stats.switched += dealt
        rows = float((ends[:dealt] - starts[:dealt]).sum())
        if dealt:
            share = min(dealt / 1000, 0.5)
            self._rows_a_key += share * (rows / dealt - self._rows_a_key)
        return dealt
