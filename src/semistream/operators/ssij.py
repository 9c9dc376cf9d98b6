"""SSIJ: semi-streaming index join, with a cache of disk blocks and a plan for the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.errors import ConfigError
from semistream.kernels import lookup as lookup_kernel
from semistream.master.base import Master, PageBlock
from semistream.operators.blocks import BlockJoin
from semistream.operators.chunk import Chunk
from semistream.spec import JoinSpec

Int64s = npt.NDArray[np.int64]

_NONE = np.empty(0, dtype=np.int64)


class SSIJ(BlockJoin):
    """SSIJ gathers stream tuples, answers what cached disk blocks answer, and reads for the rest all at once.

        pending phase: input buffer, until `input_tuples` are there
        online phase:  probe the cached blocks -> hits are output, misses go to the stream buffer
        join phase:    stream buffer full -> read the blocks it needs in disk order, join, all leave

    Each block of R has a utility counter, the tuples it could answer lately; a block that was read takes the
    place of the cached one with the least utility if its own is higher. A block is cached whole, rare tuples
    and all.

    Needs of R: an index. Keys may repeat: a key is a hit when all blocks of its run are cached.

    Memory: M = h_S·v_S + l·v_P + 24 bytes per block of R, cache of l blocks.
    Cost:   c_loop = w·(c_H + c_A) + w_N·c_O + blocks·c_I/O(v_P) + w_S·(c_H + c_O + c_E).

    Options: `cache_share`, the cache's part of the memory for tables (default 0.5); `input_tuples`, the
    threshold of the input buffer (default: a chunk; a longer batch is its own input buffer); `stream_tuples`,
    that of the stream buffer (default: what it holds).

    >>> import pyarrow as pa
    >>> from semistream import open_join
    >>> with open_join("ssij", master=pa.table({"k": [1, 2], "v": [10, 20]}), on="k", memory="1MB") as join:
    ...     rows = [*join.push(pa.record_batch({"k": [2, 7]})), *join.drain()]
    >>> pa.Table.from_batches(rows).to_pydict()
    {'k': [2], 'v': [20]}

    Paper: ssij2011 (M. A. Bornea, A. Deligiannakis, Y. Kotidis, V. Vassalos, "Semi-streamed index join for
    near-real time execution of ETL transformations", ICDE 2011); described in ssbj2019, section 2.3.
    """

    name = "ssij"
    aliases = ("semistreamingindexjoin",)
    paper = "ssij2011, ssbj2019 §2.3"
    extra_lists = 1

    def __init__(
        self,
        master: Master,
        spec: JoinSpec,
        budget_bytes: int,
        *,
        input_tuples: int | None = None,
        stream_tuples: int | None = None,
        **common: Any,
    ) -> None:
        for option, value in (("input_tuples", input_tuples), ("stream_tuples", stream_tuples)):
            if value is not None and value < 1:
                raise ConfigError(f"{option}={value} is out of range; allowed are whole numbers from 1")
        self._input_tuples = input_tuples
        self._stream_tuples = stream_tuples
        super().__init__(master, spec, budget_bytes, **common)

    def _build(self) -> None:
        super()._build()
        self.input_tuples = min(self._input_tuples or self.chunk_rows, max(self.capacity // 4, 1))
        self.stream_tuples = self._stream_tuples or self.capacity
        #: the list of the input buffer stands behind those of the blocks
        self._input = self.n_lists

    # --------------------------------------------------------------------------------------- the phases

    def _consume(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        if self.reader.n_pages == 0:
            yield from self._finish_chunk(chunk, self.scratch.every[: chunk.n_rows])
            return
        if chunk.n_rows >= self.input_tuples and not self.waiting.counts[self._input]:
            yield from self._online(chunk)
        else:
            lists = np.full(chunk.n_rows, self._input, dtype=np.int64)
            yield from self._wait(chunk, self.scratch.every[: chunk.n_rows], lists, _NONE, _NONE)
            if self.waiting.counts[self._input] >= self.input_tuples:
                yield from self._look_up_input()
        if len(self.waiting) - self.waiting.counts[self._input] >= self.stream_tuples:
            yield from self._join_phase()

    def _make_room(self) -> Iterator[pa.RecordBatch]:
        yield from self._look_up_input()
        yield from self._join_phase()

    def _drain(self) -> Iterator[pa.RecordBatch]:
        yield from self._make_room()
        self._settle()

    def _look_up_input(self) -> Iterator[pa.RecordBatch]:
        """Online phase: tuples of the input buffer are answered, or go to the stream buffer."""
        waiting, slots = self.waiting, self.scratch.slots
        only, cursor = np.array([self._input], dtype=np.int64), np.zeros(2, dtype=np.int64)
        while cursor[0] < 1:
            count = waiting.collect(only, cursor, slots, self._codes)
            first, last = self._page_ranges(self._codes[:count])
            resident = yield from self._join_resident(
                slots, self._codes, first, last, count, waiting.take, self._mark_slots
            )
            missed = ~resident
            waiting.move(slots[:count][missed], first[missed], first[missed], last[missed])
            answered = slots[:count][resident]
            yield from self._leave(answered, len(answered))
        waiting.clear(only)

    def _join_phase(self) -> Iterator[pa.RecordBatch]:
        """Read the blocks that the stream buffer needs, in disk order; everything in it leaves."""
        self._settle()
        waiting = self.waiting
        lists = np.flatnonzero(waiting.counts[: self.n_lists])
        reach = waiting.reach[lists].astype(np.int64)
        pages = np.empty(self._group_capacity(), dtype=np.int64)
        result = np.empty(1, dtype=np.int64)
        self.utility[lists] += waiting.counts[lists]
        # The run at the end of a block is a hit only with the next block in the cache too.
        self.utility[lists[reach > lists] + 1] += 1
        at = 0
        while at < len(lists):
            n_pages = int(lookup_kernel.group_pages(lists, reach, at, len(lists), pages, result))
            stop = int(result[0])
            if n_pages:
                block = self._load(pages[:n_pages])
                if len(block.pages) < n_pages:
                    stop = int(np.searchsorted(reach[at:stop], block.pages[-1], side="right")) + at
            if stop == at:
                yield from self._join_long_run(int(lists[at]), int(reach[at]))
                stop = at + 1
            else:
                yield from self._join_lists(lists[at:stop], block, 0, self.reader.n_pages, leave=True)
                self._replace(block)
            self.stats.iterations += 1
            at = stop

    def _join_long_run(self, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """A key with more blocks than fit at once: its list meets them piece after piece."""
        only = np.array([first], dtype=np.int64)
        page = first
        while page <= last:
            block = self._load(np.arange(page, min(page + self._group_capacity(), last + 1), dtype=np.int64))
            high = int(block.pages[-1])
            yield from self._join_lists(only, block, page, high, leave=high == last)
            page = high + 1

    def _replace(self, block: PageBlock) -> None:
        """Cache the blocks just read that are worth more than the least useful ones in the cache."""
        cache = self.cache
        fresh = np.flatnonzero(cache.directory[block.pages] < 0)
        worth = self.utility[block.pages[fresh]]
        best = np.argsort(-worth, kind="stable")[: cache.n_frames]
        held = np.where(cache.pages >= 0, self.utility[cache.pages], np.float32(-1))
        frames = np.argsort(held, kind="stable")[: len(best)]
        count = int(np.count_nonzero(worth[best] > held[frames]))
        self.stats.evicted += int(np.count_nonzero(cache.pages[frames[:count]] >= 0))
        self.stats.switched += count
        cache.store(block, fresh[best[:count]], frames[:count])

    def _put_back(self, chunk: Chunk) -> None:
        lists = np.full(chunk.n_rows, self._input, dtype=np.int64)
        self._refill(chunk, lists, _NONE, _NONE)
