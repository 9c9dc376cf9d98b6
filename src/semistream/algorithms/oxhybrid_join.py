"""Optimised X-HYBRIDJOIN: the most wanted part of R in a hash table that the stream probes first.

Optimised X-HYBRIDJOIN splits X-HYBRIDJOIN into two phases: the stream is probed in a hash table H_R of
the most frequent master tuples, and only what misses goes on to H_S and the disk phase of HYBRIDJOIN.

    S --> H_R --hit--> output                     R: | most frequent |  the rest  |
           |                                             | once           | picked by the oldest tuple
           +--miss--> H_S, Q <-- disk buffer             v                v
                                                        H_R          disk buffer

A hit costs one look-up; it takes no room in H_S, which therefore holds more of the others. H_R is filled
from the front of R, before the first tuple; it does not follow a stream whose favourites change
(`cachejoin` does), but it gives bytes to H_S where it answers too few tuples for them.

Right for many master tuples per key: a key enters H_R with all of them or not at all. One whose tuples do
not fit the disk buffer at once stays with the disk phase. When H_R took all of R, a miss is a key that R
lacks and does not wait.

Needs of R: an index, and order by access frequency to be of use (`build_pages(order="frequency")`). In
key order H_R holds the first keys and the join stays exact.

Memory: M = (k + l)·v_P + h_S·(v_S·f + v_Q), disk buffer of k pages, H_R of l pages.
Cost:   c_loop = c_I/O(k·v_P) + d·c_H + w_S·(c_O + c_E + c_S + c_A) + w_N·(c_H + c_O + c_S).

>>> import pyarrow as pa
>>> from semistream import open_join
>>> parts = pa.table({"k": [1, 2], "v": [10, 20]})
>>> with open_join("oxhybridjoin", master=parts, on="k", memory="1MB") as join:
...     rows = [*join.push(pa.record_batch({"k": [2, 7]})), *join.drain()]
>>> pa.Table.from_batches(rows).to_pydict()
{'k': [2, 7], 'v': [20, None]}

Paper: oxhybridjoin2012 (M. A. Naeem, G. Dobbie, G. Weber, "Optimised X-HYBRIDJOIN for near-real-time data
warehousing", ADC 2012), section 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.algorithms.xhybrid_join import pinned_part
from semistream.engine.algorithm import BUFFER_KNOB, CACHE_KNOB, Algorithm, Pricing
from semistream.engine.chunk import Chunk
from semistream.engine.division import divide
from semistream.engine.facts import MasterFacts, StreamFacts
from semistream.engine.options import WaitingOptions, option
from semistream.engine.plan import Plan
from semistream.engine.share import MovingShare, at_rest
from semistream.engine.workplace import Workplace
from semistream.loops.index import (
    DiskPhase,
    IndexLoop,
    IndexPlan,
    Settled,
    StillFront,
    disk_phase,
    index_prediction,
    index_tables,
)
from semistream.loops.prices import BUILD, OUTPUT, PROBE, STREAM, WAITING
from semistream.loops.resident import load_counts
from semistream.master.base import PageBlock
from semistream.parts.cache import Cache, key_capacity
from semistream.parts.pending import LinkedPending, linked_capacity
from semistream.predict.counts import Counts, Workload

Int64s = npt.NDArray[np.int64]

#: a key that does not fit ends the filling, unless it has more than this part of the cache's rows
_LONG_RUN = 1 / 16
#: rows looked at while filling, as a multiple of those that can fit
_MOST_ROWS = 2
#: fillings of H_S between two reviews of H_R's share
_FILLINGS = 2


@dataclass(frozen=True)
class Options(WaitingOptions):
    """Options of Optimised X-HYBRIDJOIN."""

    # A few per cent more loads than the fewest possible, for more hits.
    cache_share: float = option(
        0.3,
        "H_R's part of the memory for tables, at most; 0 switches the stream-probing phase off",
        least=0,
        below=0.95,
    )
    literal: bool = option(
        False, "the paper's fixed share: H_R keeps it, also where it answers fewer tuples than could wait there"
    )


def plan(r: MasterFacts, s: StreamFacts, budget: int, options: Options) -> IndexPlan[Options]:
    """`cache_share` of the tables is H_R, the rest H_S."""
    division = divide(r, budget, options)
    room = index_tables(r, s, budget, division)
    return room.planned(Plan(r, s, budget, options, division), int(room.spare * options.cache_share))


class FrontOfR(StillFront):
    """H_R: whole keys from the front of R, filled once for each size that it has."""

    cache: Cache

    def __init__(self, cache: Cache, work: Workplace) -> None:
        super().__init__(cache, work)
        self._work = work
        self._start()

    def _start(self) -> None:
        """Fill H_R."""
        work, cache = self._work, self.cache
        if cache.max_keys:
            self._fill()
            work.copy_read_counts()
        self.holds_all = cache.rows == work.reader.n_rows

    def share_with(self, pending: LinkedPending) -> None:
        """H_R and H_S are divided anew when H_R does not earn its bytes."""

        def start() -> None:
            self._start()
            self.give_rest(pending, share.total)

        share = MovingShare(self._work, self.cache, pending, fillings=_FILLINGS, patience=0, changed=start)
        self.give_rest(pending, share.total)
        self.share = share

    def give_rest(self, pending: LinkedPending, total: int) -> None:
        """What the rows of whole keys leave of the share is of more use to the pending table."""
        self.cache.limit_bytes = self.cache.bytes_held
        pending.restart(total - self.cache.bytes_held)

    def answer(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        yield from super().answer(chunk)
        if self.holds_all:
            yield from self.finish_missed(chunk)

    def _fill(self) -> None:
        """Whole keys from the front of R until one does not fit."""
        page_rows, most = self._work.reader.page_rows, _MOST_ROWS * self.cache.max_keys
        row = looked_at = 0
        passed: int | None = None
        while row < self._work.reader.n_pages * page_rows and looked_at < most:
            page = row // page_rows
            block = self._work.disk.load(page, self._work.disk.n_pages)
            codes = self._work.disk.codes[: block.n_rows]
            heads = np.append(0, np.flatnonzero(codes[1:] != codes[:-1]) + 1)
            ends = np.append(heads[1:], block.n_rows)
            _, last = self._work.reader.locate(codes[-1:])
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


def run(plan: IndexPlan[Options], work: Workplace) -> IndexLoop:
    """The index loop behind the front of R."""
    arena = work.arena(plan.arena)
    keys = int(plan.cache_bytes / Cache.key_bytes(plan.r.row_slot))
    front = FrontOfR(Cache(arena, work.row_layout, plan.cache_bytes, min(keys, plan.r.rows)), work)
    pending = LinkedPending(arena, work.intake.layout(LinkedPending.HEADER), plan.pending_bytes)
    if keys and not plan.options.literal:
        front.share_with(pending)
    else:
        front.give_rest(pending, plan.cache_bytes + plan.pending_bytes)
    return IndexLoop(DiskPhase(work, pending, front), front)


def predict(plan: IndexPlan[Options], workload: Workload) -> Counts:
    """Equations 1 to 9 of the paper, with as much of H_R's share as it earns."""
    return at_rest(plan, workload, _with_share) if plan.cache_bytes else _with_share(plan, workload)


def _with_share(plan: IndexPlan[Options], workload: Workload) -> Counts:
    """With H_R of the plan.

    p_N (eqs 4-6) is exact here: H_R holds the first tuples of R, which are the most frequent in that order. w_S
    (eqs 7-9) is `oldest_first` over the groups of R in that order.
    """
    r = plan.r
    h_R = min(key_capacity(plan.arena, r.v_R, plan.cache_bytes), r.rows) if plan.cache_bytes else 0.0
    cached = pinned_part(r, workload, h_R)
    if h_R >= r.rows:
        cached = cached * 0 + 1.0
    h_S = linked_capacity(plan.arena, plan.slot + plan.s.var_bytes, plan.pending_bytes)
    shared = disk_phase(plan, workload, h_S, cached)
    return index_prediction(plan, workload, Settled(shared, cached, h_S, h_R, start=load_counts(r, h_R)))


ALGORITHM = Algorithm(
    name="oxhybridjoin",
    about=__doc__,
    plan=plan,
    run=run,
    options=Options,
    predict=predict,
    pricing=Pricing({**STREAM, **PROBE, **WAITING, **BUILD, **OUTPUT}),
    knobs=(BUFFER_KNOB, CACHE_KNOB),
    aliases=("optimisedxhybridjoin",),
    paper="oxhybridjoin2012 §4",
    needs_index=True,
    wants_frequency_order=True,
)
