"""X-HYBRIDJOIN: HYBRIDJOIN whose disk buffer keeps the most wanted pages of R for good.

X-HYBRIDJOIN cuts the disk buffer into two equal halves: one is loaded anew in each iteration, as in
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

>>> import pyarrow as pa
>>> from semistream import open_join
>>> parts = pa.table({"k": [1, 2], "v": [10, 20]})
>>> with open_join("xhybridjoin", master=parts, on="k", memory="1MB") as join:
...     rows = [*join.push(pa.record_batch({"k": [2, 7]})), *join.drain()]
>>> pa.Table.from_batches(rows).to_pydict()
{'k': [2, 7], 'v': [20, None]}

Paper: xhybridjoin2011 (M. A. Naeem, G. Dobbie, G. Weber, "X-HYBRIDJOIN for near-real-time data warehousing",
BNCOD 2011); described in oxhybridjoin2012, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from semistream.engine.algorithm import BUFFER_KNOB, Algorithm, Knob, Pricing
from semistream.engine.division import Needs, divide
from semistream.engine.facts import MasterFacts, StreamFacts
from semistream.engine.options import WaitingOptions, option
from semistream.engine.snapshot import Snapshot
from semistream.engine.workplace import Workplace
from semistream.loops.index import (
    DiskPhase,
    IndexLoop,
    IndexPlan,
    Settled,
    StillFront,
    disk_phase,
    index_counts,
    index_prediction,
    index_tables,
)
from semistream.loops.prices import HYBRID
from semistream.parts.disk_buffer import DiskBuffer
from semistream.parts.pending import LinkedPending, linked_capacity
from semistream.predict.counts import Counts, Workload
from semistream.predict.keys import Floats


@dataclass(frozen=True)
class Options(WaitingOptions):
    """Options of X-HYBRIDJOIN."""

    pinned_pages: int | None = option(
        None,
        "pages that stay (default: as many as the swappable half has); they are charged apart from the disk buffer",
        kind=int,
        least=1,
    )


@dataclass(frozen=True)
class XHybridPlan(IndexPlan[Options]):
    """Pages of the pinned half."""

    pinned_pages: int


def plan(r: MasterFacts, s: StreamFacts, budget: int, options: Options) -> XHybridPlan:
    """Two halves of the disk buffer, or a pinned part of its own size; the rest is H_S."""
    if options.pinned_pages is None:
        division = divide(r, budget, options, Needs(buffers=2))
        pinned = min(division.pages, r.n_pages)
    else:
        pinned = min(options.pinned_pages, r.n_pages)
        division = divide(r, budget, options, Needs(buffers=2, charged=1, fixed=r.buffer_bytes(pinned)))
    room = index_tables(r, s, budget, division)
    return XHybridPlan(
        r,
        s,
        budget,
        options,
        division,
        arena=room.arena,
        slot=room.slot,
        pending_bytes=room.spare,
        cache_bytes=0,
        pinned_pages=pinned,
    )


class PinnedPhase(DiskPhase):
    """The disk phase with a half that is loaded once and probed before every load."""

    def __init__(self, work: Workplace, pending: LinkedPending, front: StillFront, pages: int) -> None:
        super().__init__(work, pending, front)
        self.pinned = DiskBuffer(work.reader, pages)
        self._block = self.pinned.load(0, pages)
        # R's first run begins here, so only the last one can be cut.
        _, self._rows = self.complete_rows(self._block, self.pinned.codes, 0)
        whole = pages == work.reader.n_pages
        self._groups = len(self.times.loaded) if whole else pages // self.times.group_pages
        work.copy_read_counts(work.disk, self.pinned)

    def iterate(self) -> Iterator[pa.RecordBatch]:
        """Probe H_S with the pinned half, then with the pages that the oldest tuple still waiting picks.

        To the loop the pinned half is a load like any other: who still waits has no match on its pages.
        """
        stats = self.work.stats
        before = stats.expired
        yield from self.probe(self._block, self.pinned.codes, 0, self._rows)
        answered = stats.expired - before
        stats.cache_hits += answered
        stats.cache_misses -= answered
        self.times.note_first(self._groups)
        if len(self.pending):
            yield from super().iterate()
        else:
            stats.iterations += 1
        self.work.copy_read_counts(self.work.disk, self.pinned)


class XHybridLoop(IndexLoop):
    """As the index loop; a tuple that waits again counts as one that the pinned half has not answered."""

    def restore(self, snapshot: Snapshot) -> None:
        super().restore(snapshot)
        self.work.stats.cache_misses += self.waiting


def run(plan: XHybridPlan, work: Workplace) -> IndexLoop:
    """The index loop over a disk phase with a pinned half."""
    layout = work.intake.layout(LinkedPending.HEADER)
    front = StillFront(None, work)
    pending = LinkedPending(work.arena(plan.arena), layout, plan.pending_bytes)
    return XHybridLoop(PinnedPhase(work, pending, front, plan.pinned_pages), front)


def predict(plan: XHybridPlan, workload: Workload) -> Counts:
    """All tuples pass through H_S, those that the pinned half answers too, until the next turn.

    A turn builds two output batches where the pinned half answers some tuple and one where it does not, and for few
    tuples that is much of its time, so c_T is paid for batches too.
    """
    r, division = plan.r, plan.division
    h_S = linked_capacity(plan.arena, plan.slot + plan.s.var_bytes, plan.pending_bytes)
    rows = min(plan.pinned_pages * r.page_rows, r.rows)
    held = pinned_part(r, workload, rows)
    answered = workload.keys.p_N(held)
    missed = max(1.0 - answered, 1e-9)
    free = h_S
    for _ in range(8):
        shared = disk_phase(plan, workload, free, held)
        # Between two turns w tuples come; those of the pinned half wait among the others until the next one.
        free = max(h_S - shared.w_S * answered / missed, h_S * 0.05)
    turns = index_counts(plan, shared, missed)["iterations"]
    from_pinned = -math.expm1(-answered / max(turns, 1e-12))
    extra = {
        "appended": 1.0,
        "expired": 1.0,
        "master_rows_probed": turns * (division.rows + rows),
        "batches_out": turns * (1.0 + from_pinned),
    }
    return index_prediction(plan, workload, Settled(shared, held, h_S), extra)


def pinned_part(r: MasterFacts, workload: Workload, rows: float) -> Floats:
    """Part of each class in the first `rows` tuples of R: the most frequent keys, or just any in key order."""
    keys = workload.keys
    if r.order == "frequency":
        return keys.most_frequent(rows)
    return np.where(keys.m > 0, rows / max(r.rows, 1), 0.0)


ALGORITHM = Algorithm(
    name="xhybridjoin",
    about=__doc__,
    plan=plan,
    run=run,
    options=Options,
    predict=predict,
    pricing=Pricing({**HYBRID.operations, "c_T": ("iterations", "batches_out")}),
    knobs=(
        BUFFER_KNOB,
        Knob("pinned_pages", lambda _r, _m: 1, lambda r, m: max(0.5 * m / r.page_bytes, 1)),
    ),
    paper="xhybridjoin2011, oxhybridjoin2012 §3",
    needs_index=True,
    wants_frequency_order=True,
)
