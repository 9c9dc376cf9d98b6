"""X-HYBRIDJOIN: HYBRIDJOIN whose disk buffer keeps the most wanted pages of R for good."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from semistream.errors import ConfigError
from semistream.master.base import Master
from semistream.operators.index import IndexJoin
from semistream.operators.snapshot import Snapshot
from semistream.parts.arena import Arena
from semistream.parts.disk_buffer import DiskBuffer
from semistream.spec import JoinSpec


class XHybridJoin(IndexJoin):
    """X-HYBRIDJOIN cuts the disk buffer into two equal halves: one is loaded anew in each iteration, as in
    HYBRIDJOIN, the other holds the first pages of R for good, and both are probed against H_S every time.

        R: | most frequent pages ......| other pages, picked through the index by the oldest tuple |
                      | once                      | every iteration
                      v                           v
               pinned half                 swappable half
                      +---------> H_S, Q <--------+        matched keys leave

    With R in order of access frequency the pinned half answers much of a skewed stream without any read. All
    tuples pass through H_S all the same, and the pinned half is probed whether or not there is something to
    find: that is what the optimised form (`oxhybridjoin`) saves.

    Two decisions where the paper is silent. The pinned half is probed before the oldest tuple picks the load,
    so no read is spent on pages that are in memory. A key is answered there only if its whole run of master
    tuples is pinned; one that runs over the border is left to the swappable half.

    Needs of R: an index, and order by access frequency to be of use (`build_pages(order="frequency")`). In
    key order the first pages are pinned all the same and the join stays exact.

    Memory: M = 2·d·v_R + h_S·(v_S·f + v_Q), d tuples in each half.
    Cost:   c_loop = c_I/O(d) + 2·d·c_H + w_S·(c_S + c_A + c_O + c_E).

    Options: `pinned_pages`, pages that stay (default: as many as the swappable half has); they are then
    charged apart from the disk buffer, whose swappable half keeps its size.

    >>> import pyarrow as pa
    >>> from semistream import open_join
    >>> parts = pa.table({"k": [1, 2], "v": [10, 20]})
    >>> with open_join("xhybridjoin", master=parts, on="k", memory="1MB") as join:
    ...     rows = [*join.push(pa.record_batch({"k": [2, 7]})), *join.drain()]
    >>> pa.Table.from_batches(rows).to_pydict()
    {'k': [2], 'v': [20]}

    Paper: xhybridjoin2011 (M. A. Naeem, G. Dobbie, G. Weber, "X-HYBRIDJOIN for near-real-time data warehousing",
    BNCOD 2011); described in oxhybridjoin2012, section 3.
    """

    name = "xhybridjoin"
    paper = "xhybridjoin2011, oxhybridjoin2012 §3"
    wants_frequency_order = True
    buffers = 2

    def __init__(
        self,
        master: Master,
        spec: JoinSpec,
        budget_bytes: int,
        *,
        pinned_pages: int | None = None,
        **common: Any,
    ) -> None:
        if pinned_pages is not None and pinned_pages < 1:
            raise ConfigError(f"pinned_pages={pinned_pages} is out of range; allowed are whole numbers from 1")
        self._pinned_pages = pinned_pages
        super().__init__(master, spec, budget_bytes, **common)

    # ------------------------------------------------------------------------------------- the two halves

    def _buffer_bytes_for(self, pages: int) -> int:
        halves = 2 if self._pinned_pages is None else 1
        return halves * DiskBuffer.bytes_for(self.reader, pages)

    def _extra_fixed_bytes(self, total: int) -> int:
        pages = self._pinned_pages
        return 0 if pages is None else DiskBuffer.bytes_for(self.reader, min(pages, self.reader.n_pages))

    def _build_tables(self, arena: Arena) -> None:
        super()._build_tables(arena)
        self.pinned = DiskBuffer(self.reader, min(self._pinned_pages or self.buffer_pages, self.reader.n_pages))
        self._pinned_block = self.pinned.load(0, self.pinned.n_pages)
        # R's first run begins here, so only the last one can be cut.
        _, self._pinned_rows = self._complete_rows(self._pinned_block, self.pinned.codes, 0)
        whole = self.pinned.n_pages == self.reader.n_pages
        self._pinned_groups = len(self._loaded) if whole else self.pinned.n_pages // self.buffer_pages
        self._copy_read_counts()

    # ------------------------------------------------------------------------------------------ the loop

    def _iterate(self) -> Iterator[pa.RecordBatch]:
        """Probe H_S with the pinned half, then with the pages that the oldest tuple still waiting picks.

        To the loop the pinned half is a load like any other: who still waits has no match on its pages.
        """
        self._settle()
        before = self.stats.expired
        yield from self._probe_rows(self._pinned_block, self.pinned.codes, 0, self._pinned_rows, self.scratch)
        answered = self.stats.expired - before
        self.stats.cache_hits += answered
        self.stats.cache_misses -= answered
        self._iteration += 1
        self._loaded[: self._pinned_groups] = self._iteration
        if len(self.pending):
            yield from super()._iterate()
        else:
            self.stats.iterations += 1

    def _copy_read_counts(self) -> None:
        super()._copy_read_counts()
        self.stats.reads += self.pinned.reads
        self.stats.pages_read += self.pinned.pages_read
        self.stats.bytes_read += self.pinned.bytes_read

    def _restore(self, snapshot: Snapshot) -> None:
        super()._restore(snapshot)
        self.stats.cache_misses += len(self.pending)
