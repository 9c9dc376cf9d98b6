"""One ordered pass over exactly the pages that some tuples need.

    tuples -> sort by code -> distinct codes -> page ranges (index) -> groups of pages that fit
           -> find every code's rows on them -> pairs

Operators that finish a tuple with its batch are built on this: no tuple waits, and neighbouring keys share a page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.kernels import lookup as kernel
from semistream.master.base import PageBlock
from semistream.operators.base import SemiStreamJoin
from semistream.operators.chunk import Chunk
from semistream.operators.output import Mark, Take
from semistream.operators.snapshot import Snapshot

Int64s = npt.NDArray[np.int64]

#: reading a gap of this many bytes costs about as much as a seek
DEFAULT_GAP_BYTES = 128 << 10


@dataclass
class FoundRuns:
    """Distinct codes of a group with their rows in the block; an empty run says the key is not in R."""

    codes: Int64s
    starts: Int64s
    ends: Int64s
    tuples: Int64s
    block: PageBlock


class LookupJoin(SemiStreamJoin):
    """Index access in sorted sweeps."""

    access = "index"
    needs_index = True
    gap_bytes = DEFAULT_GAP_BYTES

    @property
    def _mapped(self) -> bool:
        """Pages are used in place, unless they must bypass the page cache."""
        return not self._direct

    def _group_capacity(self) -> int:
        """Pages a group may have."""
        if not self._mapped:
            return self.buffer_pages
        return max(self.disk.bytes_held // max(self.reader.held_bytes(1), 64), 64)

    def _sweep(self, codes: Int64s, refs: Int64s, left: Take, mark: Mark) -> Iterator[pa.RecordBatch | FoundRuns]:
        """Join tuples (`codes`, unsorted, and what names them for `left` and `mark`) in one ordered pass.

        Gives output batches and, after each group of pages, what was found there, while the block is still valid.
        """
        order = np.argsort(codes, kind="stable")
        sorted_codes = codes[order]
        refs = refs[order]
        distinct = np.empty(len(codes), dtype=np.int64)
        offsets = np.empty(len(codes) + 1, dtype=np.int64)
        count = int(kernel.distinct_runs(sorted_codes, distinct, offsets))
        distinct = distinct[:count]
        first, last = self.reader.locate(distinct)
        by_key = self.master.order == "key"
        if not by_key:
            # Rows of frequent keys come first on disk, so page order is not code order; absent keys have no page.
            by_page = np.argsort(first, kind="stable")
            skip = int(np.searchsorted(first[by_page], 0))
            lengths = offsets[1 : count + 1] - offsets[:count]
            keep = by_page[skip:]
            after = np.concatenate(([0], np.cumsum(lengths[keep])))
            refs = refs[np.repeat(offsets[keep] - after[:-1], lengths[keep]) + np.arange(after[-1])]
            distinct, first, last, offsets = distinct[keep], first[keep], last[keep], after
            count = len(keep)
        starts, ends = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
        capacity = self._group_capacity()
        pages = np.empty(capacity, dtype=np.int64)
        result = np.empty(1, dtype=np.int64)
        code = 0
        while code < count:
            n_pages = int(kernel.group_pages(first, last, code, count, pages, result))
            if n_pages == 0:
                yield from self._long_run(code, distinct, first, last, refs, offsets, left, mark)
                code += 1
                continue
            stop = int(result[0])
            block = self._load(pages[:n_pages])
            if len(block.pages) < n_pages:
                stop = int(np.searchsorted(last[code:stop], block.pages[-1], side="right")) + code
                if stop == code:
                    yield from self._long_run(code, distinct, first, last, refs, offsets, left, mark)
                    code += 1
                    continue
            self.find_runs(distinct, first, last, code, stop, block, starts, ends)
            yield from self._pair(refs, offsets, code, stop, starts, ends, block, left, mark)
            tuples = offsets[code + 1 : stop + 1] - offsets[code:stop]
            yield FoundRuns(distinct[code:stop], starts[code:stop], ends[code:stop], tuples, block)
            self.stats.iterations += 1
            self.stats.master_rows_probed += stop - code
            code = stop

    def _pair(
        self,
        refs: Int64s,
        offsets: Int64s,
        code: int,
        stop: int,
        starts: Int64s,
        ends: Int64s,
        block: PageBlock,
        left: Take,
        mark: Mark,
    ) -> Iterator[pa.RecordBatch]:
        cursor = np.array([code, 0, -1], dtype=np.int64)
        right = self._take_block(block)
        first_only = self._exact and not self.spec.carries_master
        scratch = self.scratch
        while cursor[0] < stop:
            filled = kernel.expand_pairs(
                refs, offsets, stop, starts, ends, cursor, scratch.left, scratch.right, first_only
            )
            yield from self._emit(left, right, scratch.left, scratch.right, filled, mark)

    def _long_run(
        self,
        code: int,
        distinct: Int64s,
        first: Int64s,
        last: Int64s,
        refs: Int64s,
        offsets: Int64s,
        left: Take,
        mark: Mark,
    ) -> Iterator[pa.RecordBatch]:
        """A key with more pages than fit at once: piece after piece."""
        page = int(first[code])
        starts, ends = np.zeros(code + 1, dtype=np.int64), np.zeros(code + 1, dtype=np.int64)
        while page <= last[code]:
            stop = min(page + self._group_capacity(), int(last[code]) + 1)
            block = self._load(np.arange(page, stop, dtype=np.int64))
            self.find_runs(distinct, first, last, code, code + 1, block, starts, ends)
            yield from self._pair(refs, offsets, code, code + 1, starts, ends, block, left, mark)
            page = int(block.pages[-1]) + 1

    def find_runs(
        self,
        codes: Int64s,
        first: Int64s,
        last: Int64s,
        at: int,
        stop: int,
        block: PageBlock,
        starts: Int64s,
        ends: Int64s,
    ) -> None:
        """Where on the block's pages the rows of codes at .. stop - 1 begin and end."""
        kernel.find_runs(
            codes,
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
            self.master.order == "key",
            self.reader.fences,
            starts,
            ends,
        )

    def _load(self, pages: Int64s) -> PageBlock:
        """Pages of a group: mapped in place, or read into the disk buffer in as few reads as pay."""
        if self._mapped:
            block = self.reader.map(pages)
            self.stats.pages_read += len(pages)
            self.stats.reads += 1 + int(np.count_nonzero(np.diff(pages) > 1))
            self.stats.bytes_read += int(len(pages) * self.reader.page_rows * self.master.row_bytes)
            return block
        block, _ = self.disk.load_runs(pages, self.gap_bytes)
        self.stats.pages_read = self.disk.pages_read
        self.stats.reads = self.disk.reads
        self.stats.bytes_read = self.disk.bytes_read
        return block

    def _finish_chunk(self, chunk: Chunk, ids: Int64s) -> Iterator[pa.RecordBatch]:
        """Tuples of a chunk are done: those without a match are output where wanted."""
        self.stats.finished += len(ids)
        if self.spec.how != "inner":
            lost = ids[~chunk.matched[ids]]
            yield from self._emit_unmatched(self._take_chunk(chunk), lost, len(lost))

    def _settle(self) -> None:
        """Nothing moves between two batches unless there is a cache."""

    def _drain(self) -> Iterator[pa.RecordBatch]:
        return iter(())

    def _snapshot_state(self) -> dict[str, Any]:
        return {}

    def _snapshot_tuples(self) -> pa.Table:
        assert self._schema is not None
        return self._schema.empty_table()

    def _restore(self, snapshot: Snapshot) -> None:
        """Nothing waits between two batches."""
