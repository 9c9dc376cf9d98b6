"""SSJ (CMESHJOIN): MESHJOIN behind a cache of the most frequent master tuples.

SSJ probes the stream in a cache of frequent master tuples first; only misses wait for the scan.

While a partition is probed, a master tuple that meets at least `threshold` waiting tuples is frequent and belongs
in the cache; the least frequent cached one makes room. The threshold falls while the cache has room and rises when
evictions come too often. Since R has no order here, the tuples of a key may stand anywhere: a frequent key is
named in one R-cycle, its tuples are collected during the next, and it is seen by the stream when it is complete.
That is what makes the algorithm right for many master tuples per key, where the paper has one.

Needs of R: nothing. Skew in the stream helps; without skew the cache gives back most of its bytes.

Memory: M = (k + l)·v_P + 8·h_R + h_S·(v_S·f + v_Q), cache of l pages.
Cost:   c_loop = c_I/O(k·v_P) + d·(c_H + c_F) + w_S·(c_O + c_E + c_S + c_A) + w_N·(c_H + c_O + c_S).

>>> import pyarrow as pa
>>> from semistream import open_join
>>> with open_join("ssj", master=pa.table({"k": [1, 2], "v": [10, 20]}), on="k", memory="1MB") as join:
...     rows = [*join.push(pa.record_batch({"k": [2, 7]})), *join.drain()]
>>> pa.Table.from_batches(rows).to_pydict()
{'k': [2, 7], 'v': [20, None]}

Paper: ssj2014 (M. A. Naeem, N. Jamil, "An efficient stream-based join to process end user transactions in
real-time data warehousing", JDIM 2014), section 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semistream.engine.algorithm import BUFFER_KNOB, CACHE_KNOB, Algorithm, Pricing
from semistream.engine.division import divide
from semistream.engine.facts import MasterFacts, StreamFacts
from semistream.engine.options import WaitingOptions, option
from semistream.engine.share import MovingShare, at_rest
from semistream.engine.workplace import Workplace
from semistream.loops.prices import CACHE
from semistream.loops.scan import PlainFront, ScanLoop, ScanPlan, cycle, scan_arena, scan_counts, scan_symbols
from semistream.master.base import PageBlock
from semistream.parts.cache import Cache, key_capacity
from semistream.parts.frequency import AdaptiveThreshold
from semistream.parts.pending import FifoPending, NamedKeys, fifo_capacity
from semistream.parts.switching import collect_rows
from semistream.predict.counts import Counts, Workload
from semistream.predict.keys import Floats

#: evictions per cycle above which the threshold rises, as a part of the cache
_CHURN = 0.05
#: Counts are halved every R-cycle: mean 2 and variance 4/3 of a cycle's, so they tell as much as three cycles do.
_CYCLES_REMEMBERED = 3.0
#: with these, and the cycles that it takes to fill the cache, it is at rest
_CYCLES_TO_REST = 8.0
#: more hits make longer cycles, and these more hits; it is enough when the misses change by less than this
_SETTLED = 1e-3
#: R-cycles that a fresh cache is given to fill before its share is reviewed
_PATIENCE = 4


@dataclass(frozen=True)
class Options(WaitingOptions):
    """Options of SSJ."""

    cache_share: float = option(0.4, "the cache's part of the memory for tables, at most", above=0, below=0.95)
    threshold: int = option(2, "tuples that must wait for a frequent key, at the beginning", least=1)
    literal: bool = option(
        False, "the paper's fixed share: the cache keeps it, also where it answers fewer tuples than could wait there"
    )


@dataclass(frozen=True)
class SSJPlan(ScanPlan[Options]):
    """Places in the list of frequent keys, and bytes of both tables."""

    named: int
    cache_bytes: int
    pending_bytes: int


def plan(r: MasterFacts, s: StreamFacts, budget: int, options: Options) -> SSJPlan:
    """A list of frequent keys, then `cache_share` of what is left is H_R, the rest H_S."""
    division = divide(r, budget, options)
    arena, slot = scan_arena(r, s, budget, division.tables)
    room = division.tables - arena.table_bytes
    named = min(max(int(room * 0.02) // NamedKeys.bytes_for(1), 16), 1 << 20)
    room -= NamedKeys.bytes_for(named)
    share = int(room * options.cache_share)
    return SSJPlan(
        r,
        s,
        budget,
        options,
        division,
        pages_per_step=division.pages,
        arena=arena,
        slot=slot,
        named=named,
        cache_bytes=share,
        pending_bytes=room - share,
    )


class FrequencyFront(PlainFront):
    """The cache of frequent keys, composed while R is scanned."""

    cache: Cache

    def __init__(self, plan: SSJPlan, work: Workplace, cache: Cache, pending: FifoPending) -> None:
        super().__init__(cache, work, pending)
        self._first_threshold = plan.options.threshold
        self._named = NamedKeys(plan.named)
        self._start()
        work.budget.hold("frequent keys", NamedKeys.bytes_for(plan.named))
        if not plan.options.literal:
            self.share = MovingShare(work, cache, pending, fillings=1, patience=_PATIENCE, changed=self._start)

    def _start(self) -> None:
        """Nothing is known of the stream yet."""
        self.threshold = AdaptiveThreshold(self._first_threshold, _CHURN)
        self._named.count = self._least_named = 0
        self._evicted_before = self.cache.evictions

    def settle(self) -> None:
        super().settle()
        self._work.stats.evicted = self.cache.evictions

    def after_probe(self, block: PageBlock) -> None:
        """Name the frequent keys of this partition, and collect rows of those named in the last cycle."""
        work, named = self._work, self._named
        least = max(self.threshold.value, self._least_named)
        self._pending.frequent(work.disk.codes, block.n_rows, least, named)
        if named.count > 0.75 * len(named.codes):
            # Before the list is full: else it would hold those that R has first.
            self._least_named = named.keep_most_frequent(len(named.codes) // 2)
        work.stats.frequency_checks += block.n_rows
        work.stats.switched += collect_rows(self.cache, block, work.disk.codes, work.scratch.slots, make_room=True)

    def begin_cycle(self) -> None:
        """Show the keys that were collected, then open entries for those that were named, the most frequent first.

        Counts are halved every cycle, so a cached key's count is about twice its tuples per cycle, and what a newcomer
        must exceed is the count of the keys that would make room for it.
        """
        cache = self.cache
        cache.activate()
        cache.age()
        codes, counts = self._named.by_frequency()
        lacking = len(codes) - min(cache.row_room, cache.max_keys - cache.keys)
        if lacking > 0 and len(codes):
            level = cache.evict_least(min(lacking, cache.keys // 4 + 1))
            wanted = int(np.searchsorted(-counts, -level, side="left"))
            codes, counts = codes[:wanted], counts[:wanted]
        stop = min(len(codes), cache.max_keys - cache.keys)
        cache.collect(codes[:stop], counts[:stop])
        has_room = cache.row_room > max(0.05 * cache.max_keys, stop)
        self.threshold.adjust(has_room, cache.evictions - self._evicted_before, max(cache.keys, 1))
        if not has_room:
            self.threshold.value = max(self.threshold.value, self._least_named)
        self._evicted_before = cache.evictions
        self._named.count = self._least_named = 0


def run(plan: SSJPlan, work: Workplace) -> ScanLoop:
    """The scan loop behind a cache of frequent keys."""
    arena = work.arena(plan.arena)
    keys = max(int(plan.cache_bytes / Cache.key_bytes(plan.r.row_slot)), 8)
    cache = Cache(arena, work.row_layout, plan.cache_bytes, keys)
    pending = FifoPending(arena, work.intake.layout(FifoPending.HEADER), plan.pending_bytes)
    return ScanLoop(plan, work, pending, FrequencyFront(plan, work, cache, pending))


def predict(plan: SSJPlan, workload: Workload) -> Counts:
    """Equations 1 to 10 of the paper, with as much of the cache's share as it earns."""
    return at_rest(plan, workload, _with_share)


def _with_share(plan: SSJPlan, workload: Workload) -> Counts:
    """With the cache of the plan, for any distribution of the keys.

    p_N (eqs 4-7) is that of the keys the recorder takes for the most frequent, w_S = h_S / k (eq 10 for a scan: the
    tuples of a chunk leave together, whatever they matched). The recorder's 8 bytes are in the directory entry.
    """
    keys = workload.keys
    h_R = key_capacity(plan.arena, plan.r.v_R, plan.cache_bytes)
    h_S = fifo_capacity(plan.arena, plan.slot + plan.s.var_bytes, plan.pending_bytes)
    missed, before, cached = 1.0, 0.0, np.zeros_like(keys.p)
    while abs(missed - before) > _SETTLED:
        turn = cycle(plan, workload, h_S, missed)
        cached = keys.recorded(h_R, _CYCLES_REMEMBERED * turn.tuples)
        # What R lacks is not cached: a key is named by a master tuple that finds its stream tuples waiting.
        before, missed = missed, max(1.0 - keys.p_N(cached * (keys.m > 0)), 1e-9)
    rest = _CYCLES_TO_REST * turn.tuples
    if workload.seen < rest:
        cached = _young(plan, workload, h_R, h_S)
        missed = max(1.0 - keys.p_N(cached), 1e-9)
    turn = cycle(plan, workload, h_S, missed)
    switched = _turnover(workload, cached, h_R) / turn.tuples
    counts = scan_counts(turn, missed)
    counts |= {"frequency_checks": counts["master_rows_probed"], "switched": switched, "evicted": switched}
    return Counts(
        counts,
        memory={
            "arena table": plan.arena.table_bytes,
            "frequent keys": NamedKeys.bytes_for(plan.named),
            "pending table": plan.pending_bytes,
            "cache": plan.cache_bytes,
        },
        symbols=scan_symbols(turn, h_S, missed, h_R),
        delay=missed * turn.tuples,
        longest_delay=turn.tuples,
        rest=rest,
    )


def _young(plan: SSJPlan, workload: Workload, h_R: float, h_S: float) -> Floats:
    """What is cached after `seen` tuples, R-cycle by R-cycle: named in one, collected in the next, then shown."""
    keys = workload.keys
    cached = named = np.zeros_like(keys.p)
    at = 0.0
    for number in range(int(_CYCLES_TO_REST)):
        turn = cycle(plan, workload, h_S, max(1.0 - keys.p_N(cached), 1e-9))
        if at + turn.tuples > workload.seen:
            break
        # In the first cycle H_S is half full on average.
        cached, known = named, min(number + 0.5, _CYCLES_REMEMBERED) * turn.tuples
        named = keys.recorded(h_R, known, seen=known) * (keys.m > 0)
        at += turn.tuples
    return cached


def _turnover(workload: Workload, cached: Floats, h_R: float) -> float:
    """Tuples that change in the cache per cycle: those on the border, and no more than the threshold lets in."""
    keys = workload.keys
    border = float((keys.count * keys.m * cached * (1 - cached)).sum())
    return min(border / _CYCLES_REMEMBERED, _CHURN * h_R)


ALGORITHM = Algorithm(
    name="ssj",
    about=__doc__,
    plan=plan,
    run=run,
    options=Options,
    predict=predict,
    pricing=Pricing(CACHE, seeks="r_cycles"),
    knobs=(BUFFER_KNOB, CACHE_KNOB),
    aliases=("cmeshjoin",),
    paper="ssj2014 §4",
    access="scan",
    shares_cache=True,
)
