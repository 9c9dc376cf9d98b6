"""The main loop of ORDEREDJOIN: a queue that is answered from its head, all answers being in the cache.

turn:  codes at the front that the cache lacks -> one ordered sweep -> cache -> answer the front -> make room
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.engine.chunk import Chunk
from semistream.engine.loop import Loop
from semistream.engine.plan import Plan, SomeOptions
from semistream.engine.snapshot import Snapshot
from semistream.engine.workplace import Workplace
from semistream.errors import BudgetError
from semistream.loops.lookup import Group, RunSearch, by_page
from semistream.loops.ordered_output import FlaggedTuples, OrderedOutput
from semistream.loops.pages import PageGroups
from semistream.parts.arena import Arena, ArenaShape
from semistream.parts.cache import Cache
from semistream.parts.queue import ALL_ROWS, NO_ROW, Answers, Asking, Listing, WaitingQueue, answered_prefix
from semistream.parts.runs import CodeRuns

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: part of the cache that the answers of one turn may take
ANSWER_SHARE = 0.25
#: stream tuples per key of the cache after which counts are halved
WINDOW_PER_KEY = 5


@dataclass(frozen=True)
class OrderedPlan(Plan[SomeOptions]):
    """Queue and cache have an arena each, for they may not drive each other out; between them the access plan."""

    #: bytes for the queue, of which the arena's table is a part, and of a waiting tuple's slot
    queue_bytes: int
    queue_arena: ArenaShape
    slot: int
    #: missing keys that one turn may read, and the bytes that this takes
    codes: int
    access_bytes: int
    #: bytes for cache and its arena's table, and keys of its directory
    cache_bytes: int
    cache_arena: ArenaShape
    keys: int


class FetchedKeys:
    """The cache, and how keys that it lacks come in: in one ordered sweep, as far as there is room for them."""

    def __init__(self, plan: OrderedPlan[Any], work: Workplace) -> None:
        self._plan, self._work = plan, work
        self._pages = PageGroups(work, plan.r.direct, buffers=plan.division.buffers)
        #: keys of the current turn with too many master tuples to be cached
        self.oversize: set[int] = set()
        self._rows_per_key = 1.0
        self._asked = 0
        self.renew()

    def renew(self) -> None:
        """An empty cache in an arena of its own."""
        arena = Arena.shaped(self._plan.cache_arena)
        self.cache = Cache(arena, self._work.row_layout, self._plan.cache_bytes - arena.table_bytes, self._plan.keys)
        self._work.budget.hold("cache table", arena.table_bytes)

    @property
    def room(self) -> int:
        """Keys that find room, if they are like those before; at least one."""
        cache = self.cache
        rows = cache.row_room / max(self._rows_per_key, 0.1)
        return max(min(int(rows), cache.max_keys - cache.keys), 1)

    def make_room(self, asked: int) -> None:
        """Free the part of the cache that the next turn's answers need; age its counts now and then."""
        cache = self.cache
        self._asked += asked
        if self._asked >= WINDOW_PER_KEY * cache.max_keys:
            self._asked = 0
            cache.age()
        # Of keys with several rows it holds fewer than its directory.
        holds = min(cache.keys + self.room, cache.max_keys)
        lacking = min(int(ANSWER_SHARE * holds), self._plan.codes) - self.room
        if lacking > 0 and cache.keys:
            cache.evict_least(lacking)
        self._work.stats.evicted = cache.evictions

    def search(self) -> RunSearch:
        """For pages whose rows go elsewhere than into the cache."""
        return RunSearch(self._work, self._pages)

    def fetch(self, codes: Int64s) -> None:
        """Read missing keys in one ordered sweep into the cache, as far as there is room for them."""
        self.oversize.clear()
        if len(codes) == 0:
            return
        codes.sort()
        distinct = codes[np.append(True, codes[1:] != codes[:-1])]
        first, last = self._work.reader.locate(distinct)
        if self._work.master.order != "key":
            absent, present = by_page(first)
            self._admit_absent(distinct[absent])
            distinct, first, last = distinct[present], first[present], last[present]
        with closing(self.search().groups([CodeRuns(distinct, first, last)], self.oversize)) as groups:
            for group in groups:
                self._work.stats.master_rows_probed += group.stop - group.at
                if not self._admit(group):
                    return

    def _admit_absent(self, codes: Int64s) -> None:
        """Keys that the index knows to be absent enter without rows."""
        none = np.zeros_like(codes)
        self.cache.admit(codes, none, none, none, None)

    def _admit(self, found: Group[CodeRuns]) -> bool:
        """Keys with all their rows into the cache; False when it is full."""
        codes, starts, ends = found.codes, found.starts, found.ends
        counts = np.zeros(len(codes), dtype=np.int64)
        capacity = self._plan.cache_bytes // self._plan.r.row_slot
        at = 0
        while at < len(codes):
            dealt = self.cache.admit(codes[at:], starts[at:], ends[at:], counts[at:], found.block)
            if dealt:
                rows = float((ends[at : at + dealt] - starts[at : at + dealt]).sum())
                self._rows_per_key += min(dealt / 1000, 0.5) * (rows / dealt - self._rows_per_key)
            self._work.stats.switched += dealt
            at += dealt
            if at < len(codes):
                if ends[at] - starts[at] <= capacity // 4:
                    return False
                self.oversize.add(int(codes[at]))
                at += 1
        return True


class OrderedLoop(Loop):
    """Rows come out in exactly the order of the stream."""

    def __init__(self, plan: OrderedPlan[Any], work: Workplace, batch: int | None) -> None:
        self.work = work
        self._batch = batch or ALL_ROWS
        layout = work.intake.layout(WaitingQueue.HEADER, with_key=plan.s.null_keys)
        arena = Arena.shaped(plan.queue_arena)
        self.queue = WaitingQueue(arena, layout, null_keys=work.spec.keeps_unmatched)
        work.budget.hold("queue table", arena.table_bytes)
        self._missing = np.empty(plan.codes, dtype=np.int64)
        work.budget.hold("access plan", plan.access_bytes)
        self.keys = FetchedKeys(plan, work)
        self._listing = Listing.of(work.spec, work.output.sides.exact)
        self._output = OrderedOutput(work.output, self._listing)
        self.settle()

    @property
    def cache(self) -> Cache:
        return self.keys.cache

    @property
    def waiting(self) -> int:
        return len(self.queue)

    def settle(self) -> None:
        self.work.budget.hold("waiting queue", self.queue.bytes_held)
        self.work.budget.hold("cache", self.cache.bytes_held)

    # -------------------------------------------------------------------------------------- the stream

    def consume(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        start = 0
        if not len(self.queue):
            asking = self._answerable(chunk)
            start = asking.count
            yield from self._answered(asking, self.work.output.of_chunk(chunk))
        while start < chunk.n_rows:
            start += self._enqueue(chunk, start)
            if start < chunk.n_rows or len(self.queue) >= self._batch:
                if not len(self.queue):
                    raise self.work.too_small()
                yield from self._work_off(leave=0)

    def _answerable(self, chunk: Chunk) -> Asking:
        """The tuples at the beginning of a chunk that can be answered at once, while nobody waits."""
        every = self.work.scratch.every
        if not self.work.reader.n_pages:
            # Where R is empty every tuple is as one with a null key.
            return Asking(every, chunk.codes, np.ones(chunk.n_rows, dtype=np.bool_), chunk.n_rows)
        asking = Asking(every, chunk.codes, chunk.null, chunk.n_rows)
        count = answered_prefix(self.cache, asking)
        self.work.stats.cache_hits += count
        return Asking(every, chunk.codes, chunk.null, count)

    def _enqueue(self, chunk: Chunk, start: int) -> int:
        """Tuples of a chunk from `start` on wait, as far as there is room; returns how many."""
        scratch, queue = self.work.scratch, self.queue
        wanted, slots = chunk.n_rows - start, scratch.slots
        took = queue.append(chunk.codes, chunk.columns, scratch.every, start, wanted, slots)
        if len(chunk.null):
            queue.mark_null_keys(slots[:took], chunk.null[start:])
        self.work.stats.appended += took
        return took

    def advance(self) -> Iterator[pa.RecordBatch]:
        yield from self._work_off(leave=max(len(self.queue) - 1, 0))

    def drain(self) -> Iterator[pa.RecordBatch]:
        yield from self._work_off(leave=0)
        self.settle()

    # --------------------------------------------------------------------------------------- the queue

    def _work_off(self, leave: int) -> Iterator[pa.RecordBatch]:
        """Turn after turn, until no more than `leave` tuples wait."""
        queue, keys, stats = self.queue, self.keys, self.work.stats
        self.settle()
        most = len(self._missing)
        while len(queue) > leave:
            before = len(queue)
            missing, walked = queue.uncached(keys.cache, min(most, keys.room), self._missing)
            keys.fetch(self._missing[:missing])
            self.settle()
            yield from self._answer_front(walked)
            left = before - len(queue)
            stats.iterations += 1
            stats.cache_misses += min(missing, left)
            stats.cache_hits += left - min(missing, left)
            if left:
                keys.make_room(left)
                most = min(2 * most, len(self._missing))
            elif queue.front_code in keys.oversize or not keys.cache.keys:
                yield from self._answer_from_pages()
                if not keys.cache.keys:
                    # Row slots may have taken the extents that long values need: start afresh.
                    keys.renew()
            else:
                # The front tuple's key did not get in: let fewer keys ask for more room.
                most = max(most // 8, 1)
                keys.cache.evict_least(max(keys.cache.keys * 3 // 4, 1))
            self.settle()

    def _answer_front(self, limit: int) -> Iterator[pa.RecordBatch]:
        """Answer up to `limit` tuples from the head of the queue; it stops at the first without an answer."""
        scratch, queue = self.work.scratch, self.queue
        while limit:
            slots = scratch.slots[:limit]
            slots = slots[: queue.front(slots, scratch.done)]
            done = yield from self._answered(self._asking(slots, scratch.done), queue)
            queue.leave(slots, done)
            self.work.stats.expired += done
            limit -= done
            if done < len(slots):
                break

    def _asking(self, slots: Int64s, codes: Int64s) -> Asking:
        return Asking(slots, codes, self.queue.null_keys(slots, self.work.scratch.found), len(slots))

    def _answered(self, asking: Asking, tuples: FlaggedTuples) -> Generator[pa.RecordBatch, None, int]:
        """Output of the tuples in order, up to the first without an answer; the result is how many have one."""
        scratch, output = self.work.scratch, self.work.output
        asking = replace(asking, as_of=output.as_of(tuples, asking.refs, asking.count))
        answers = Answers(self.cache, asking, self._listing)
        while answers.unfinished:
            count = answers.step(scratch.left, scratch.right)
            yield from self._output.pairs(tuples, self.cache, scratch.left, scratch.right, count)
        self.work.stats.finished += answers.done
        return answers.done

    def _answer_from_pages(self) -> Iterator[pa.RecordBatch]:
        """The front tuple's key has too many master tuples to be cached: page after page for it alone."""
        work, queue, listing = self.work, self.queue, self._listing
        slots, codes = (np.empty(1, dtype=np.int64) for _ in range(2))
        queue.front(slots, codes)
        first, last = work.reader.locate(codes)
        runs, found = [CodeRuns(codes, first, last)] if last[0] >= 0 else [], 0
        with closing(self.keys.search().groups(runs)) as pieces:
            for piece in pieces:
                start, stop = int(piece.starts[0]), int(piece.ends[0])
                block = work.output.of_block(piece.block)
                for at in range(start, stop, work.scratch.size):
                    rows = np.arange(at, min(at + work.scratch.size, stop), dtype=np.int64)
                    left = np.repeat(slots, len(rows))
                    valid = work.output.valid_pairs(queue, block, left, rows, len(rows))
                    yield from self._output.pairs(queue, block, left, rows, min(valid, listing.most_rows))
                    found += valid
                    if found and listing.most_rows < ALL_ROWS:
                        break
                if found and listing.most_rows < ALL_ROWS:
                    break
        if listing.ends_unmatched(found):
            yield from self._output.pairs(queue, self.cache, slots, np.full(1, NO_ROW, dtype=np.int64), 1)
        queue.leave(slots, 1)
        work.stats.expired += 1
        work.stats.finished += 1
        work.stats.cache_misses += 1

    # ------------------------------------------------------------------------------------- the snapshot

    def tuples(self) -> pa.Table:
        slots = np.empty(len(self.queue), dtype=np.int64)
        self.queue.front(slots, np.empty_like(slots))
        schema = self.work.intake.schema
        columns = self.work.output.stream_columns(self.queue, slots)
        return pa.Table.from_batches([pa.RecordBatch.from_arrays(each, schema=schema) for _, each in columns], schema)

    def restore(self, snapshot: Snapshot) -> None:
        assert snapshot.tuples is not None
        for chunk in self.work.intake.waiting(snapshot.tuples, null_keys=self.work.spec.keeps_unmatched):
            if self._enqueue(chunk, 0) < chunk.n_rows:
                raise BudgetError("the waiting tuples of the snapshot do not fit: restore with the same memory")
