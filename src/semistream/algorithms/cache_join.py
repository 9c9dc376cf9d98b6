"""CACHEJOIN (SSCJ): HYBRIDJOIN behind a cache of the most frequent master tuples.

CACHEJOIN probes the stream in a cache of frequent master tuples; the misses wait for HYBRIDJOIN's disk phase.

When a key's tuples leave the pending table, their number f is compared with a threshold: a key with f at or above
it is frequent and its master tuples, all of them, enter the cache; the least frequent cached keys make room. The
threshold falls while the cache has room and rises when evictions come too often; counts are halved now and then,
and more often while the hit rate is below its usual, so the cache follows the stream.

Needs of R: an index (a non-clustered one does). The papers have one master tuple per key; here a key may have many.

Memory: M = d·v_R + h_R·v_R + 8·h_R + h_S·(v_S·f + v_Q).
Cost:   c_loop = c_I/O(d) + d·(c_H + c_F) + w_S·(c_O + c_E + c_S + c_A) + w_N·(c_H + c_O + c_S).

>>> import pyarrow as pa
>>> from semistream import open_join
>>> with open_join("cachejoin", master=pa.table({"k": [1, 2], "v": [10, 20]}), on="k", memory="1MB") as join:
...     rows = [*join.push(pa.record_batch({"k": [2, 7]})), *join.drain()]
>>> pa.Table.from_batches(rows).to_pydict()
{'k': [2, 7], 'v': [20, None]}

Paper: sscj2013 (M. A. Naeem, G. Weber, G. Dobbie, C. Lutteroth, "SSCJ: a semi-stream cache join using a
front-stage cache module", DaWaK 2013), section 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.engine.algorithm import BUFFER_KNOB, CACHE_KNOB, Algorithm, Pricing
from semistream.engine.chunk import Chunk
from semistream.engine.division import Division, divide
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
    left_keys,
)
from semistream.loops.prices import CACHE
from semistream.master.base import PageBlock
from semistream.parts.arena import Arena
from semistream.parts.cache import Cache, key_capacity
from semistream.parts.frequency import AdaptiveThreshold
from semistream.parts.pending import LinkedPending, linked_capacity, runs_of
from semistream.predict.counts import Counts, Workload

Int64s = npt.NDArray[np.int64]

#: cachefuls of tuples after which counts are halved; what they tell is worth twice that
_CACHEFULS = 16
#: keys let in per stream tuple: the threshold rises above 5 % of the cache every two cachefuls, and keeps below that
_CHURN = 0.01
#: fillings of H_S between two reviews of the cache's share, and reviews that a fresh cache is given to fill
_FILLINGS, _PATIENCE = 2, 1


@dataclass(frozen=True)
class Options(WaitingOptions):
    """Options of CACHEJOIN."""

    cache_share: float = option(0.15, "the cache's part of the memory for tables, at most", above=0, below=0.95)
    threshold: int = option(1, "tuples that must wait for a frequent key, at the beginning", least=1)
    literal: bool = option(
        False, "the paper's fixed share: the cache keeps it, also where it answers fewer tuples than could wait there"
    )


def plan(r: MasterFacts, s: StreamFacts, budget: int, options: Options) -> IndexPlan[Options]:
    """`cache_share` of the tables is H_R, the rest H_S."""
    return cache_plan(r, s, budget, options, divide(r, budget, options))


def cache_plan(
    r: MasterFacts, s: StreamFacts, budget: int, options: Options, division: Division, reserved: int = 0
) -> IndexPlan[Any]:
    """The tables of all CACHEJOINs; `reserved` bytes are another part's."""
    room = index_tables(r, s, budget, division, reserved)
    share = int(room.spare * options.cache_share)
    return room.planned(Plan(r, s, budget, options, division), share)


class FrequencyFront(StillFront):
    """The cache of frequent keys, composed when keys leave the pending table."""

    cache: Cache

    def __init__(self, options: Options, cache: Cache, pending: LinkedPending, work: Workplace) -> None:
        super().__init__(cache, work)
        self._work, self._pending, self._options = work, pending, options
        self._start()
        if not options.literal:
            self.share = MovingShare(work, cache, pending, fillings=_FILLINGS, patience=_PATIENCE, changed=self._start)

    def _start(self) -> None:
        """Nothing is known of the stream yet."""
        self.threshold = AdaptiveThreshold(self._options.threshold)
        self._asked = self._since_aging = 0
        self._hits_before = self._work.stats.cache_hits
        self._usual_rate = 0.0
        self._admitted = 0
        #: what a newcomer must exceed: the count of the last keys that made room
        self._level = 0

    def settle(self) -> None:
        super().settle()
        self._work.stats.evicted = self.cache.evictions

    def answer(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        self._follow_stream(chunk.n_rows)
        yield from super().answer(chunk)

    def _follow_stream(self, asked: int) -> None:
        """Halve all counts every sixteen cachefuls of tuples; quarter them every two while hits are below their usual.

        Long counts tell hot keys apart better; when the stream changes, forgetting matters more.
        """
        self._asked += asked
        capacity = max(self.cache.max_keys, 256)
        if self._asked < 2 * capacity:
            return
        hits = self._work.stats.cache_hits
        rate = (hits - self._hits_before) / self._asked
        self._since_aging += self._asked
        self._hits_before, self._asked = hits, 0
        changed = rate < 0.95 * self._usual_rate
        self._usual_rate = max(rate, 0.95 * self._usual_rate + 0.05 * rate)
        if changed or self._since_aging >= _CACHEFULS * capacity:
            self._since_aging = 0
            self.cache.age()
            self._level //= 2
            if changed:
                self.cache.age()
                self._level //= 2
        has_room = self.cache.row_room > 0.05 * self.cache.max_keys
        self.threshold.adjust(has_room, self._admitted, self.cache.max_keys)
        self._admitted = 0

    def matched(self, block: PageBlock, codes: Int64s, done: Int64s, count: int) -> None:
        """Frequency detection: keys that are about to leave the pending table with at least `threshold` tuples."""
        self._work.stats.frequency_checks += count
        if count == 0:
            return
        keys, tuples = self._pending.lengths(done, count)
        wanted = np.flatnonzero(tuples >= self.threshold.value)
        if len(wanted) == 0:
            return
        keys, tuples = keys[wanted], tuples[wanted]
        starts, ends = runs_of(codes, block.n_rows, keys)
        # The rows of a key have ids without a gap: a key never stands on both sides of a short page.
        ids = block.row_ids(starts)
        self._switch(keys, ids, ids + (ends - starts), tuples, block)

    def absent(self, done: Int64s, count: int) -> None:
        """A frequent key that R lacks is cached without rows: its next tuples need no disk."""
        keys, tuples = self._pending.lengths(done, count)
        wanted = np.flatnonzero(tuples >= self.threshold.value)
        if len(wanted):
            nothing = np.zeros(len(wanted), dtype=np.int64)
            self._switch(keys[wanted], nothing, nothing, tuples[wanted], None)

    def _switch(self, keys: Int64s, starts: Int64s, ends: Int64s, tuples: Int64s, block: PageBlock | None) -> None:
        """Put keys into the cache, the least frequent ones making room; nobody is driven out by a rarer key."""
        cache = self.cache
        for _ in range(2):
            dealt = cache.admit(keys, starts, ends, tuples, block)
            self._work.stats.switched += dealt
            self._admitted += dealt
            rest = np.flatnonzero(tuples[dealt:] > self._level) + dealt
            if len(rest) == 0 or cache.keys == 0:
                return
            self._level = cache.evict_least(max(cache.keys // 50, min(len(rest), cache.keys // 4)))
            rest = rest[tuples[rest] > self._level]
            keys, starts, ends, tuples = keys[rest], starts[rest], ends[rest], tuples[rest]
            if len(rest) == 0:
                return


def cache_tables(plan: IndexPlan[Any], work: Workplace) -> tuple[Cache, LinkedPending]:
    """H_R and H_S in one arena."""
    arena: Arena = work.arena(plan.arena)
    keys = max(int(plan.cache_bytes / Cache.key_bytes(plan.r.row_slot)), 8)
    cache = Cache(arena, work.row_layout, plan.cache_bytes, keys)
    return cache, LinkedPending(arena, work.intake.layout(LinkedPending.HEADER), plan.pending_bytes)


def run(plan: IndexPlan[Options], work: Workplace) -> IndexLoop:
    """The index loop behind a cache of frequent keys."""
    cache, pending = cache_tables(plan, work)
    front = FrequencyFront(plan.options, cache, pending, work)
    return IndexLoop(DiskPhase(work, pending, front), front)


def predict(plan: IndexPlan[Any], workload: Workload) -> Counts:
    """Equations 1 to 3 of the paper. The recorder's 8 bytes are in the directory entry.

    c_F is priced for keys that leave H_S, the only ones whose frequency is looked at, not for all of d.
    """
    return cache_prediction(plan, workload)


def cache_prediction(plan: IndexPlan[Any], workload: Workload) -> Counts:
    """CACHEJOIN and its parallel forms: they differ in what else takes memory, and in what runs side by side."""
    return at_rest(plan, workload, _with_share)


def _with_share(plan: IndexPlan[Any], workload: Workload) -> Counts:
    """With the cache of the plan."""
    h_R = key_capacity(plan.arena, plan.r.v_R, plan.cache_bytes)
    h_S = linked_capacity(plan.arena, plan.slot + plan.s.var_bytes, plan.pending_bytes)
    recalled = 2 * _CACHEFULS * h_R
    lag = min(h_S, workload.batch) if workload.drained else h_S
    cached = workload.keys.recorded(h_R, recalled, entry=1.0, seen=max(workload.seen - lag, 0.0))
    # Keys come in when their pages are read: nobody's are until H_S is full, everybody's when its tuples have gone.
    gone = 0.0 if workload.drained else 2.0 * h_S
    if gone and workload.seen < lag + gone:
        cached = cached * (max(workload.seen - lag, 0.0) / gone)
    shared = disk_phase(plan, workload, h_S, cached)
    missed = max(1.0 - workload.keys.p_N(cached), 1e-12)
    left, churn = left_keys(plan, workload, shared, cached), min(_CHURN, missed)
    filling = workload.keys.fills(h_R, max(workload.seen - lag, 0.0))
    # As long as there is room every key that leaves H_S comes in.
    counts = {
        "frequency_checks": left,
        "switched": left if filling else churn,
        "evicted": 0.0 if filling else churn,
    }
    found = Settled(shared, cached, h_S, h_R, rest=max(recalled, gone) + lag)
    return index_prediction(plan, workload, found, counts)


ALGORITHM = Algorithm(
    name="cachejoin",
    about=__doc__,
    plan=plan,
    run=run,
    options=Options,
    predict=predict,
    pricing=Pricing(CACHE),
    knobs=(BUFFER_KNOB, CACHE_KNOB),
    aliases=("sscj",),
    paper="sscj2013 §4",
    needs_index=True,
    shares_cache=True,
)
