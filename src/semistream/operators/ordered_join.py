"""ORDEREDJOIN: the output keeps the order in which the stream came."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.rows import BatchColumns, RowLayout
from semistream.errors import BudgetError, ConfigError
from semistream.kernels import cache as cache_kernel
from semistream.kernels import lookup as lookup_kernel
from semistream.kernels import tuples as tuple_kernel
from semistream.kernels import waiting as kernel
from semistream.kernels.cache import ENTRY_BYTES
from semistream.kernels.raw import peek_i64
from semistream.kernels.waiting import QUEUE_HEADER
from semistream.master.base import Master, PageBlock
from semistream.operators.chunk import Chunk
from semistream.operators.ordered_output import Batch, OrderedOutput
from semistream.operators.snapshot import Snapshot
from semistream.parts.arena import Arena
from semistream.parts.cache import MAX_LOAD, Cache
from semistream.parts.waiting import WaitingArea
from semistream.spec import JoinSpec

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Flags = Callable[[Int64s], Bools]

_NO_NULLS = np.empty(0, dtype=np.bool_)
_ALL_ROWS = np.iinfo(np.int64).max
#: bytes of the access plan a missing key: code, pages and rows, and all of it once more where page order is another
_PLAN_BYTES, _REORDER_BYTES = 56, 40
_PLAN_SHARE = 0.12
_WINDOW_PER_KEY = 5
_ANSWER_SHARE = 0.25


class OrderedJoin(OrderedOutput):
    """ORDEREDJOIN gives its rows in exactly the order of the stream, through a cache and a waiting queue.

    While nothing waits, what the cache answers goes out at once. The first tuple that it cannot answer waits,
    and behind it all that follow, also those that the cache could answer: order is worth their delay. The
    queue is worked off in batches: the keys that the cache lacks are read in one ordered sweep and enter the
    cache, so that every tuple at the front has its answer there, and the least frequent keys leave before the
    next batch. In left and anti joins unmatched tuples and those with a null key stand in their place.

        stream -> [hit, nothing waits] ----------------------------> output in order
               -> Q ... Q -> missing keys -> sweep -> cache -> answer Q from its head

    Needs of R: an index. Keys may repeat; a key whose master tuples are too many for the cache is read page
    by page for each tuple.

    Memory: M = h_Q·v_S + h_R·(v_R + entry) + buffers.
    Cost:   c_batch = w·(c_A + c_H + c_O + c_E) + pages·c_I/O(page run), w tuples in the queue.

    Options: `queue_share`, the queue's part of the memory for tables (default 0.25); `batch`, tuples that
    wait before the queue is worked off (default: as many as it holds).

    >>> import pyarrow as pa
    >>> from semistream import open_join
    >>> master = pa.table({"k": [1, 2], "v": [10, 20]})
    >>> with open_join("orderedjoin", master=master, on="k", how="left", memory="1MB") as join:
    ...     rows = [*join.push(pa.record_batch({"k": [2, 7, None, 1]})), *join.drain()]
    >>> pa.Table.from_batches(rows).to_pydict()
    {'k': [2, 7, None, 1], 'v': [20, None, None, 10]}

    Paper: orderedjoin2013 (R. Derakhshan, A. Sattar, B. Stantic, "A new operator for efficient stream-relation join
    processing in data streaming engines", CIKM 2013); described in ssbj2019, section 2.3.
    """

    name = "orderedjoin"
    paper = "orderedjoin2013, ssbj2019 §2.3"

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
        assert self._schema is not None
        if self.spec.keeps_unmatched and self._schema.field(self._key_at[0]).nullable:
            # Null keys wait here too, so the code cannot stand for the key.
            layout = RowLayout(self._stream, QUEUE_HEADER, [c.nullable for c in self._schema], flag=True)
        row_slot = self._master_layout.slot_bytes
        spare = self.budget.spare
        least = 9 * Arena(0, layout.slot_bytes).extent_bytes + 1024
        size = min(max(int(spare * self._queue_share), least), spare - 2048)
        queue_arena = Arena(int(size * 0.998) - 512, layout.slot_bytes)
        if queue_arena.extents_total < 8:
            raise BudgetError(
                f"a budget of {self.budget.total} bytes leaves {size} for waiting tuples of "
                f"{layout.slot_bytes} bytes; {self.name} needs at least {self.budget.total + least - size} "
                "bytes for this stream",
                minimum_bytes=self.budget.total + least - size,
            )
        self.queue = WaitingArea(queue_arena, layout)
        self.budget.hold("queue table", queue_arena.table_bytes)
        spare -= size
        bytes_per_code = _PLAN_BYTES + (_REORDER_BYTES if self.master.order != "key" else 0)
        wanted = int(_ANSWER_SHARE * spare / Cache.key_bytes(row_slot))
        codes = min(max(min(wanted, int(_PLAN_SHARE * spare) // bytes_per_code), 16), 1 << 20)
        self._missing = np.empty(codes, dtype=np.int64)
        self.budget.hold("access plan", codes * bytes_per_code)
        spare -= codes * bytes_per_code
        keys = max(int(0.98 * spare / Cache.key_bytes(row_slot)), 8)
        self._cache_bytes, self._cache_keys = spare - 1024, keys
        self._new_cache()
        self._asked = 0
        self._rows_per_key = 1.0
        #: keys of the current batch with too many master tuples to be cached
        self._oversize: set[int] = set()
        self._settle()

    def _new_cache(self) -> None:
        """An empty cache in an arena of its own."""
        keys = self._cache_keys
        directory = int(ENTRY_BYTES * (keys / MAX_LOAD + 2))
        arena = Arena(int((self._cache_bytes - directory) * 0.998), self._master_layout.slot_bytes)
        self.cache = Cache(arena, self._master_layout, self._cache_bytes - arena.table_bytes, keys)
        self.budget.hold("cache table", arena.table_bytes)

    def _settle(self) -> None:
        self.budget.hold("waiting queue", self.queue.bytes_held)
        self.budget.hold("cache", self.cache.bytes_held)

    # -------------------------------------------------------------------------------------- the stream

    def _push(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """As for any join, but tuples with a null key are not let through first: they keep their place."""
        for part in self._parts(batch):
            self.stats.tuples_in += part.num_rows
            codes, valid = self._coder.codes([part.column(i) for i in self._key_at])
            arrays = self._stream.encode(part.columns)
            null = _NO_NULLS
            if valid is not None:
                nulls = int(len(valid) - valid.sum())
                self.stats.null_keys += nulls
                if self.spec.keeps_unmatched:
                    null = ~valid
                else:
                    self.stats.unmatched += nulls
                    self.stats.finished += nulls
                    usable = pa.array(valid)
                    arrays, codes = [array.filter(usable) for array in arrays], codes[valid]
            if len(codes):
                columns = BatchColumns(self._stream, arrays, len(codes))
                yield from self._take_in(Chunk(len(codes), codes, columns, self._unmatched(len(codes))), null)
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
        took = self.queue.append(chunk.codes, chunk.columns, self.scratch.every, start, chunk.n_rows - start, slots)
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
            walked = np.zeros(1, dtype=np.int64)
            missing = int(
                kernel.uncached_codes(
                    self.queue.head(),
                    self.queue.arena.state,
                    self.cache.entries,
                    self._null_flag,
                    min(most, self._keys_that_fit()),
                    self._missing,
                    walked,
                )
            )
            self._oversize.clear()
            self._fetch(self._missing[:missing])
            self._settle()
            left = yield from self._answer_queue(int(walked[0]))
            self.stats.iterations += 1
            self.stats.cache_misses += min(missing, left)
            self.stats.cache_hits += left - min(missing, left)
            if left:
                self._make_room(left)
                most = min(2 * most, len(self._missing))
            elif peek_i64(self.queue.head()) in self._oversize or not self.cache.keys:
                yield from self._answer_from_pages()
                if not self.cache.keys:
                    # Row slots may have taken the extents that long values need: start afresh.
                    self._new_cache()
            else:
                # The front tuple's key did not get in: let fewer keys ask for more room.
                most = max(most // 8, 1)
                self.cache.evict_least(max(self.cache.keys * 3 // 4, 1))
            self._settle()

    @property
    def _null_flag(self) -> int:
        return self.queue.layout.flag_at if self.spec.keeps_unmatched else 0

    def _keys_that_fit(self) -> int:
        rows = self.cache.row_room / max(self._rows_per_key, 0.1)
        return max(min(int(rows), self.cache.max_keys - self.cache.keys), 1)

    def _make_room(self, asked: int) -> None:
        """Free the part of the cache that the next batch's answers need; age its counts now and then."""
        cache = self.cache
        self._asked += asked
        if self._asked >= _WINDOW_PER_KEY * cache.max_keys:
            self._asked = 0
            cache.age()
        lacking = min(int(_ANSWER_SHARE * cache.max_keys), len(self._missing)) - self._keys_that_fit()
        if lacking > 0 and cache.keys:
            cache.evict_least(lacking)
        self.stats.evicted = cache.evictions

    def _fetch(self, codes: Int64s) -> None:
        """Read missing keys in one ordered sweep into the cache, as far as there is room for them."""
        if len(codes) == 0:
            return
        codes.sort()
        distinct = codes[np.append(True, codes[1:] != codes[:-1])]
        first, last = self.reader.locate(distinct)
        by_key = self.master.order == "key"
        if not by_key:
            by_page = np.argsort(first, kind="stable")
            distinct, first, last = distinct[by_page], first[by_page], last[by_page]
        at = int(np.searchsorted(first, 0)) if not by_key else 0
        self._cache_absent(distinct[:at])
        starts, ends = np.empty_like(first), np.empty_like(first)
        pages = np.empty(self._group_capacity(), dtype=np.int64)
        result = np.empty(1, dtype=np.int64)
        while at < len(distinct):
            n_pages = int(lookup_kernel.group_pages(first, last, at, len(distinct), pages, result))
            stop = int(result[0])
            if n_pages:
                block = self._load(pages[:n_pages])
                if len(block.pages) < n_pages:
                    stop = int(np.searchsorted(last[at:stop], block.pages[-1], side="right")) + at
            if stop == at:
                self._oversize.add(int(distinct[at]))
                at += 1
                continue
            self.find_runs(distinct, first, last, at, stop, block, starts, ends)
            self.stats.master_rows_probed += stop - at
            if not self._cache_runs(distinct[at:stop], starts[at:stop], ends[at:stop], block):
                return
            at = stop

    def _cache_absent(self, codes: Int64s) -> None:
        """Keys that the index knows to be absent enter without rows."""
        cache = self.cache
        count = min(len(codes), cache.max_keys - cache.keys)
        none = np.zeros(max(count, 1), dtype=np.int64)
        cache_kernel.cache_admit(
            codes,
            none,
            none,
            0,
            count,
            none,
            cache.entries,
            cache.arena.state,
            cache.arena.stack,
            cache.pool.state,
            cache.state,
            none,
            none,
        )

    def _cache_runs(self, codes: Int64s, starts: Int64s, ends: Int64s, block: PageBlock) -> bool:
        """Keys with all their rows into the cache; False when it is full."""
        counts = np.zeros(len(codes), dtype=np.int64)
        capacity = self._cache_bytes // self._master_layout.slot_bytes
        at = 0
        while at < len(codes):
            dealt = self.cache.admit(codes[at:], starts[at:], ends[at:], counts[at:], block)
            if dealt:
                rows = float((ends[at : at + dealt] - starts[at : at + dealt]).sum())
                self._rows_per_key += min(dealt / 1000, 0.5) * (rows / dealt - self._rows_per_key)
            self.stats.switched += dealt
            at += dealt
            if at < len(codes):
                if ends[at] - starts[at] <= capacity // 4:
                    return False
                self._oversize.add(int(codes[at]))
                at += 1
        return True

    # -------------------------------------------------------------------------------------- the answers

    def _answer_queue(self, limit: int) -> Generator[pa.RecordBatch, None, int]:
        """Answer up to `limit` tuples from the head of the queue; returns how many left."""
        only = np.zeros(1, dtype=np.int64)
        cursor = np.zeros(2, dtype=np.int64)
        scratch, queue = self.scratch, self.queue
        answered = 0
        while answered < limit:
            slots = scratch.slots[: limit - answered]
            count = queue.collect(only, cursor, slots, scratch.done)
            batch = self._batch_of_slots(slots[:count], scratch.done)
            done = yield from self._answer(batch)
            queue.cut(int(cursor[1]) if done == count else int(slots[done]), done)
            queue.free(slots, done)
            self.stats.expired += done
            answered += done
            if done < count:
                break
        return answered

    def _answer(self, batch: Batch) -> Generator[pa.RecordBatch, None, int]:
        """Output of the tuples in order, up to the first without an answer; returns how many had one."""
        cursor = np.zeros(3, dtype=np.int64)
        scratch = self.scratch
        while cursor[0] < batch.n_rows and not cursor[2]:
            filled = kernel.answer_pairs(
                batch.refs,
                batch.codes,
                batch.null,
                batch.n_rows,
                self.cache.entries,
                self.cache.arena.state,
                self._most_rows,
                self._last,
                cursor,
                scratch.left,
                scratch.right,
            )
            yield from self._emit_in_order(batch, self.cache.take, scratch.left, scratch.right, filled)
        self.stats.finished += int(cursor[0])
        return int(cursor[0])

    def _answer_from_pages(self) -> Iterator[pa.RecordBatch]:
        """The front tuple's key has too many master tuples to be cached: page after page for it alone."""
        slots = np.array([self.queue.head()], dtype=np.int64)
        code = peek_i64(int(slots[0]))
        batch = self._batch_of_slots(slots, np.array([code], dtype=np.int64))
        first, last = self.reader.locate(batch.codes)
        starts, ends = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
        page, found = max(int(first[0]), 0), 0
        while page <= last[0] and (found == 0 or self._most_rows == _ALL_ROWS):
            stop = min(page + self._group_capacity(), int(last[0]) + 1)
            block = self._load(np.arange(page, stop, dtype=np.int64))
            self.find_runs(batch.codes, first, last, 0, 1, block, starts, ends)
            listed = min(int(ends[0] - starts[0]), self._most_rows)
            for start in range(0, listed, self.scratch.size):
                count = min(self.scratch.size, listed - start)
                rows = starts[0] + start + np.arange(count, dtype=np.int64)
                left = np.repeat(slots, len(rows))
                yield from self._emit_in_order(batch, self._take_block(block), left, rows, len(rows))
            page += len(block.pages)
            found += int(ends[0] - starts[0])
        if self._last == kernel.ALWAYS_LAST or (self._last and not found):
            no_row = np.full(1, kernel.NO_ROW, dtype=np.int64)
            yield from self._emit_in_order(batch, self.cache.take, slots, no_row, 1)
        following = np.zeros(2, dtype=np.int64)
        self.queue.collect(np.zeros(1, dtype=np.int64), following, slots[:1], batch.codes)
        self.queue.cut(int(following[1]), 1)
        self.queue.free(slots, 1)
        self.stats.expired += 1
        self.stats.finished += 1
        self.stats.cache_misses += 1

    def _batch_of(self, chunk: Chunk, null: Bools, count: int) -> Batch:
        return Batch(
            self.scratch.every,
            chunk.codes,
            null,
            count,
            self._take_chunk(chunk),
            self._mark_chunk(chunk),
            lambda ids: chunk.matched[ids],
        )

    def _batch_of_slots(self, slots: Int64s, codes: Int64s) -> Batch:
        count = len(slots)
        null = _NO_NULLS
        if self._null_flag:
            null = self.scratch.found[:count]
            kernel.read_null_keys(slots, count, self._null_flag, null)
        flag = self.queue.layout.flag_at

        def mark(refs: Int64s, marked: int) -> Bools:
            first = np.empty(marked, dtype=np.bool_)
            tuple_kernel.mark_slots(refs, marked, flag, first)
            return first

        def matched(refs: Int64s) -> Bools:
            flags = np.empty(len(refs), dtype=np.bool_)
            tuple_kernel.read_flags(refs, len(refs), flag, flags)
            return flags

        return Batch(slots, codes, null, count, self.queue.take, mark, matched)

    # ------------------------------------------------------------------------------------- the snapshot

    def _snapshot_tuples(self) -> pa.Table:
        assert self._schema is not None
        only, cursor = np.zeros(1, dtype=np.int64), np.zeros(2, dtype=np.int64)
        batches = []
        while cursor[0] == 0:
            slots = np.empty(self.scratch.size, dtype=np.int64)
            count = self.queue.collect(only, cursor, slots, np.empty_like(slots))
            for _, columns in self._stream_columns(self.queue.take, slots, count):
                batches.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        return pa.Table.from_batches(batches, schema=self._schema)

    def _restore(self, snapshot: Snapshot) -> None:
        assert snapshot.tuples is not None
        for batch in self._parts(snapshot.tuples):
            codes, valid = self._coder.codes([batch.column(i) for i in self._key_at])
            columns = BatchColumns(self._stream, self._stream.encode(batch.columns), batch.num_rows)
            chunk = Chunk(batch.num_rows, codes, columns, np.empty(0, dtype=np.bool_))
            if self._enqueue(chunk, _NO_NULLS if valid is None else ~valid, 0) < batch.num_rows:
                raise BudgetError("the waiting tuples of the snapshot do not fit: restore with the same memory")
