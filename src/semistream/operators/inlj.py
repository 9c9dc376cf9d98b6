"""INLJ: the index nested loop join, against which all sharing of reads is measured."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.kernels import units as kernel
from semistream.master.base import PageBlock
from semistream.master.pages import PageStoreReader
from semistream.operators.chunk import Chunk
from semistream.operators.lookup import LookupJoin

Int64s = npt.NDArray[np.int64]

_EVERY = np.empty(0, dtype=np.bool_)
_LAST_PAGE = np.iinfo(np.int64).max


class IndexNestedLoopJoin(LookupJoin):
    """INLJ looks every stream tuple up through the index when it comes, and reads its page for it alone.

    Nothing is kept, sorted or shared: a page that a hundred tuples need is read a hundred times. So the disk
    sets the service rate, whatever the memory and however skewed the stream. Without `direct` the operating
    system's page cache answers most of these reads, which hides the cost but not the count.

    Needs of R: an index. Every tuple is finished by the push that brought it.

    Memory: M = v_P, one page; more lets a call read for several tuples, one read each all the same.
    Cost:   c_loop = w_S·(c_I/O(v_P) + c_H + c_S + c_O), one read per tuple.

    >>> import pyarrow as pa
    >>> from semistream import open_join
    >>> with open_join("inlj", master=pa.table({"k": [1, 2], "v": [10, 20]}), on="k", memory="1MB") as join:
    ...     rows = list(join.push(pa.record_batch({"k": [2, 7, 2]})))
    >>> pa.Table.from_batches(rows).to_pydict()
    {'k': [2, 2], 'v': [20, 20]}
    >>> join.stats.reads
    3

    Paper: dbms2000 (R. Ramakrishnan, J. Gehrke, "Database Management Systems", 2000); described in
    opcachejoin2020, related work.
    """

    name = "inlj"
    aliases = ("indexnestedloopjoin",)
    paper = "dbms2000, opcachejoin2020"

    def _default_buffer_bytes(self, total: int) -> int:
        return min(total // 2, 4 << 20)

    def _build(self) -> None:
        """Nothing is kept between tuples."""

    def _settle(self) -> None:
        """Nothing grows or shrinks."""

    def _consume(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        self.stats.cache_misses += chunk.n_rows
        # One look-up per tuple, in arrival order: not even the index is shared.
        first, last = self.reader.locate(chunk.codes)
        # Reads stop by themselves when the buffer is full; a mapped block must not have too many pages.
        room = min(self._group_capacity(), self.scratch.size) if self._mapped else self.scratch.size
        tuples, pages = self.scratch.misses, self.scratch.done
        cursor = np.array([0, -1], dtype=np.int64)
        while cursor[0] < chunk.n_rows:
            count = int(
                kernel.page_units(first, last, _EVERY, chunk.n_rows, 0, _LAST_PAGE, cursor, room, tuples, pages)
            )
            start = 0
            while start < count:
                block, ordinals = self._load_each(tuples[start:count], pages[start:count])
                yield from self._pair_units(chunk, tuples[start:], ordinals, block)
                start += len(ordinals)
                self.stats.iterations += 1
        yield from self._finish_chunk(chunk, self.scratch.every[: chunk.n_rows])

    def _pair_units(self, chunk: Chunk, tuples: Int64s, ordinals: Int64s, block: PageBlock) -> Iterator[pa.RecordBatch]:
        scratch = self.scratch
        left, right, mark = self._take_chunk(chunk), self._take_block(block), self._mark_chunk(chunk)
        first_only = self._exact and not self.spec.carries_master
        cursor = np.array([0, -1, -1], dtype=np.int64)
        while cursor[0] < len(ordinals):
            filled = kernel.pair_units(
                scratch.every,
                chunk.codes,
                tuples,
                ordinals,
                len(ordinals),
                block.page_rows,
                block.rows,
                block.base,
                block.kind,
                block.data,
                self.master.order == "key",
                first_only,
                cursor,
                scratch.left,
                scratch.right,
            )
            yield from self._emit(left, right, scratch.left, scratch.right, filled, mark)

    def _load_each(self, tuples: Int64s, pages: Int64s) -> tuple[PageBlock, Int64s]:
        """A block, and for as many of the units as it serves where on it their pages are."""
        if self._direct and isinstance(self.reader, PageStoreReader):
            return self._read_each(self.reader, tuples, pages)
        # Mapped pages are one place in memory however often they are asked for; every asking is counted.
        distinct, ordinals = np.unique(pages, return_inverse=True)
        block = self.reader.map(distinct)
        self.stats.pages_read += len(pages)
        self.stats.reads += 1 + int(np.count_nonzero(np.diff(tuples)))
        self.stats.bytes_read += int(len(pages) * self.reader.page_rows * self.master.row_bytes)
        return block, ordinals.astype(np.int64, copy=False)

    def _read_each(self, reader: PageStoreReader, tuples: Int64s, pages: Int64s) -> tuple[PageBlock, Int64s]:
        """Pages in any order, and as often as they are asked for, into the disk buffer."""
        run = reader.read_each(tuples, pages, self.disk.buffer)
        self.stats.pages_read += run.pages
        self.stats.reads += run.reads
        self.stats.bytes_read += run.bytes
        return run.block, np.arange(run.pages, dtype=np.int64)
