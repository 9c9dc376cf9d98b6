"""Optimised X-HYBRIDJOIN: the most wanted part of R in a hash table that the stream probes first."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.errors import ConfigError
from semistream.kernels.linked import LINKED_HEADER
from semistream.master.base import Master, PageBlock
from semistream.operators.chunk import Chunk
from semistream.operators.index import IndexJoin
from semistream.parts.arena import Arena
from semistream.parts.cache import Cache
from semistream.parts.pending import LinkedPending
from semistream.spec import JoinSpec

Int64s = npt.NDArray[np.int64]

#: a key that does not fit ends the filling, unless it has more than this part of the cache's rows
_LONG_RUN = 1 / 16
#: rows looked at while filling, as a multiple of those that can fit
_MOST_ROWS = 2


class OptimisedXHybridJoin(IndexJoin):
    """Optimised X-HYBRIDJOIN splits X-HYBRIDJOIN into two phases: the stream is probed in a hash table H_R of
    the most frequent master tuples, and only what misses goes on to H_S and the disk phase of HYBRIDJOIN.

        S --> H_R --hit--> output                     R: | most frequent |  the rest  |
               |                                             | once           | picked by the oldest tuple
               +--miss--> H_S, Q <-- disk buffer             v                v
                                                            H_R          disk buffer

    A hit costs one look-up; it takes no room in H_S, which therefore holds more of the others. H_R is filled
    once, from the front of R, before the first tuple; it does not follow a stream whose favourites change
    (`cachejoin` does).

    Right for many master tuples per key: a key enters H_R with all of them or not at all. One whose tuples do
    not fit the disk buffer at once stays with the disk phase. When H_R took all of R, a miss is a key that R
    lacks and does not wait.

    Needs of R: an index, and order by access frequency to be of use (`build_pages(order="frequency")`). In
    key order H_R holds the first keys and the join stays exact.

    Memory: M = (k + l)·v_P + h_S·(v_S·f + v_Q), disk buffer of k pages, H_R of l pages.
    Cost:   c_loop = c_I/O(k·v_P) + d·c_H + w_S·(c_O + c_E + c_S + c_A) + w_N·(c_H + c_O + c_S).

    Options: `cache_share`, H_R's part of the memory for tables (default 0.3: a few per cent more loads than the
    fewest possible, for more hits; 0 switches the stream-probing phase off).

    >>> import pyarrow as pa
    >>> from semistream import open_join
    >>> parts = pa.table({"k": [1, 2], "v": [10, 20]})
    >>> with open_join("oxhybridjoin", master=parts, on="k", memory="1MB") as join:
    ...     rows = [*join.push(pa.record_batch({"k": [2, 7]})), *join.drain()]
    >>> pa.Table.from_batches(rows).to_pydict()
    {'k': [2], 'v': [20]}

    Paper: oxhybridjoin2012 (M. A. Naeem, G. Dobbie, G. Weber, "Optimised X-HYBRIDJOIN for near-real-time data
    warehousing", ADC 2012), section 4.
    """

    name = "oxhybridjoin"
    aliases = ("optimisedxhybridjoin",)
    paper = "oxhybridjoin2012 §4"
    wants_frequency_order = True

    def __init__(
        self,
        master: Master,
        spec: JoinSpec,
        budget_bytes: int,
        *,
        cache_share: float = 0.3,
        **common: Any,
    ) -> None:
        if not 0.0 <= cache_share < 0.95:
            raise ConfigError(f"cache_share={cache_share} is out of range; allowed are shares from 0 and below 0.95")
        self._cache_share = cache_share
        super().__init__(master, spec, budget_bytes, **common)

    def _build_tables(self, arena: Arena) -> None:
        room = self.budget.spare
        share = int(room * self._cache_share)
        keys = int(share / Cache.key_bytes(self._master_layout.slot_bytes))
        self.cache = Cache(arena, self._master_layout, share, min(keys, self.reader.n_rows))
        if self.cache.max_keys:
            self._fill()
            self._copy_read_counts()
        self._holds_all = self.cache.rows == self.reader.n_rows
        # What the rows of whole keys leave of the share is of more use to the pending table.
        self.cache.limit_bytes = self.cache.bytes_held
        self.pending = LinkedPending(arena, self._stream_layout(LINKED_HEADER), room - self.cache.bytes_held)

    def _settle(self) -> None:
        super()._settle()
        self.budget.hold("cache", self.cache.bytes_held)

    # ---------------------------------------------------------------------------------------- filling H_R

    def _fill(self) -> None:
        """Whole keys from the front of R until one does not fit."""
        page_rows, most = self.reader.page_rows, _MOST_ROWS * self.cache.max_keys
        row = looked_at = 0
        passed: int | None = None
        while row < self.reader.n_pages * page_rows and looked_at < most:
            page = row // page_rows
            block = self.disk.load(page, self.buffer_pages)
            codes = self.disk.codes[: block.n_rows]
            heads = np.append(0, np.flatnonzero(codes[1:] != codes[:-1]) + 1)
            ends = np.append(heads[1:], block.n_rows)
            _, last = self.reader.locate(codes[-1:])
            row -= page * page_rows
            whole = heads >= row
            if passed is not None:
                whole &= codes[heads] != passed
                passed = None
            if last[0] < page + len(block.pages):
                following = (page + len(block.pages)) * page_rows
            elif heads[-1] > row:
                # The last run goes on: the next load begins where it does.
                whole[-1] = False
                following = page * page_rows + int(block.row_ids(heads[-1:])[0])
            else:
                whole[-1] = False
                passed = int(codes[-1])
                following = int(last[0]) * page_rows
            whole &= heads < row + most - looked_at
            if not self._take_runs(block, codes, heads[whole], ends[whole]):
                return
            looked_at += block.n_rows - row
            row = following

    def _take_runs(self, block: PageBlock, codes: Int64s, heads: Int64s, ends: Int64s) -> bool:
        """Cache the keys of these runs; False when the cache is full."""
        cache = self.cache
        at = 0
        while at < len(heads):
            unasked = np.zeros(len(heads) - at, dtype=np.int64)
            ids = block.row_ids(heads[at:])
            at += cache.admit(codes[heads[at:]], ids, ids + (ends[at:] - heads[at:]), unasked, block)
            if at < len(heads):
                long = ends[at] - heads[at] > max(_LONG_RUN * cache.max_keys, 1)
                if cache.is_full or not long:
                    return False
                at += 1
        return True

    # ------------------------------------------------------------------------------------------ the loop

    def _cache_phase(self, chunk: Chunk) -> Generator[pa.RecordBatch, None, int]:
        missed = yield from self._probe_cache(self.cache, chunk, self.scratch)
        if not self._holds_all:
            return missed
        self.stats.cache_hits += missed
        self.stats.cache_misses -= missed
        self.stats.finished += missed
        yield from self._emit_unmatched(self._take_chunk(chunk), self.scratch.misses, missed)
        return 0
