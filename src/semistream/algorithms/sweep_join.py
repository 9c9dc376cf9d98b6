"""SWEEPJOIN: the production default; every batch is finished in one ordered sweep behind a cache.

SWEEPJOIN answers what it can from the cache, then reads, in page order, just the pages the misses need.

Misses are gathered until the batch ends, or until their part of the memory is full. Then they are sorted by key, so
each page is visited once; neighbouring reads merge where reading the gap is cheaper than a seek, which turns the sweep
into a scan when most pages are needed. A sweep reads no more than R, whatever the batch. With direct reads the next
pages are read while those before are joined, and while rows of hits are made. The cache holds the keys with the most
stream tuples per byte: a missed key enters when a frequency sketch has counted it more often than the least frequent
cached key, and not by chance, all its master tuples at once; a key that R lacks enters without any. Of a history the
versions enter that are asked for. Counts are halved now and then, so the cache follows the stream. When the budget
holds all of R, R is loaded once.

Needs of R: an index. Every tuple is finished by the push that brought it; nothing waits.

Memory: M = d·v_R + h_R·(v_R + entry + sketch) + misses·(v_S + place).
Cost:   c_batch = w·(c_S + c_H + c_O) + keys·c_L + c_I/O(pages the misses need).

>>> import pyarrow as pa
>>> from semistream import open_join
>>> with open_join("sweepjoin", master=pa.table({"k": [1, 2], "v": [10, 20]}), on="k", memory="1MB") as join:
...     rows = list(join.push(pa.record_batch({"k": [2, 7]})))
>>> pa.Table.from_batches(rows).to_pydict()
{'k': [2, 7], 'v': [20, None]}

Paper: none; the admission follows tinylfu2017 (G. Einziger, R. Friedman, B. Manes, "TinyLFU: a highly efficient
cache admission policy", ACM TOS 2017), the composition the cache inequality of ssbj2019.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.engine.algorithm import BUFFER_KNOB, Algorithm, Knob, Pricing
from semistream.engine.chunk import Chunk
from semistream.engine.division import arena_within, divide
from semistream.engine.facts import MasterFacts, StreamFacts
from semistream.engine.options import CommonOptions, option
from semistream.engine.output import Tuples
from semistream.engine.plan import Plan
from semistream.engine.workplace import Workplace
from semistream.loops.gathered import GatheredTuples, Gathering, GatheringLoop
from semistream.loops.late import LateHits
from semistream.loops.lookup import (
    AskedRuns,
    Group,
    LookupLoop,
    NothingLeft,
    Part,
    Sweep,
    chunk_tuples,
    sweep_costs,
)
from semistream.loops.pages import DEFAULT_GAP_BYTES, PageGroups, reading_needs
from semistream.loops.prices import LOOKUP, OUTPUT, PROBE, STREAM, SWITCH
from semistream.loops.resident import fits, load_all, resident_counts
from semistream.parts.arena import ArenaShape
from semistream.parts.cache import Cache
from semistream.parts.frequency import FrequencySketch, beyond_chance
from semistream.predict.counts import Counts, Workload
from semistream.predict.sharing import group_shares

Int64s = npt.NDArray[np.int64]

#: part of the memory for tables that misses may take until they are looked up: mapped pages are at hand, so that it
#: matters less how often they are visited. Past the page cache a small budget gives more, up to half of it, so that
#: this many tuples, those that a cache of usual size lacks of half a million, find room
_GATHERED_DIRECT, _MOST_GATHERED, _GATHERED_MAPPED = 1 / 5, 1 / 2, 1 / 16
_GATHERED_TUPLES = 150_000
#: extents of a cache that can spare some for that
_LEAST_EXTENTS = 16
_SKETCH_BYTES_PER_KEY = 4
#: stream tuples per key of the cache after which all counts are halved
_WINDOW_PER_KEY = 40
#: part of the misses that drive out a cached key, as runs show it: most where keys are alike and few are cached, for
#: then the sketch takes one for another all the time
_LET_IN, _LET_IN_FALLS, _LEAST_LET_IN = 0.058, 2.0, 0.025


@dataclass(frozen=True)
class Options(CommonOptions):
    """Options of SWEEPJOIN."""

    gap_bytes: int = option(
        DEFAULT_GAP_BYTES, "the gap in bytes that is read over instead of a seek, past the page cache", least=0
    )


@dataclass(frozen=True)
class SweepPlan(Plan[Options]):
    """The arena of the cache; whether all of R is held there; else the sizes of the cache and of the sketch.

    Without `gathering` each chunk has a sweep of its own.
    """

    arena: ArenaShape
    resident: bool
    gathering: Gathering | None
    keys: int
    sketch_bytes: int

    @property
    def tables(self) -> int:
        """Bytes for cache and sketch, the arena's own table apart."""
        return self.division.tables - self.gathered_bytes - self.arena.table_bytes

    @property
    def gathered_bytes(self) -> int:
        """Bytes for misses until they are looked up."""
        return 0 if self.gathering is None else self.gathering.size


def plan(r: MasterFacts, s: StreamFacts, budget: int, options: Options) -> SweepPlan:
    """Nearly all is the cache's; misses need disk buffers, and room to be gathered in."""
    needs = reading_needs(r, budget, options.buffer_bytes, share=0.05)
    division = divide(r, budget, options, replace(needs, long_chunks=not r.direct))
    spare, gathering = division.tables, None
    arena = arena_within(budget, spare, r.row_slot)
    resident = fits(r, spare - arena.table_bytes)
    if resident:
        # All of R is loaded once, one read after another.
        division = replace(division, reads_ahead=False)
    if not resident and arena.extents >= _LEAST_EXTENTS:
        gathering = Gathering.within(r, s, division, _gathered_share(r, s, spare))
    if gathering is not None:
        spare -= gathering.size
        arena = arena_within(budget, spare, r.row_slot)
    keys = _cached_keys(spare - arena.table_bytes, r.row_slot)
    sketch = FrequencySketch.bytes_for(_counters(keys))
    return SweepPlan(
        r,
        s,
        budget,
        options,
        division,
        arena=arena,
        resident=resident,
        gathering=gathering,
        keys=keys,
        sketch_bytes=sketch,
    )


def _gathered_share(r: MasterFacts, s: StreamFacts, tables: int) -> float:
    """Part of the memory for tables that is given to misses."""
    if not r.direct:
        return _GATHERED_MAPPED
    enough = _GATHERED_TUPLES * Gathering.tuple_bytes(s) / max(tables, 1)
    return min(max(enough, _GATHERED_DIRECT), _MOST_GATHERED)


def _cached_keys(tables: int, row_bytes: float) -> int:
    """Keys of one master tuple that find room, with what the sketch remembers of each."""
    return max(int(tables / (row_bytes + Cache.entry_bytes() + _SKETCH_BYTES_PER_KEY)), 8)


def _counters(keys: int) -> int:
    return keys * _SKETCH_BYTES_PER_KEY // 2


class AdmittingSweep:
    """Sweeps for what the cache lacks, and offers to the cache what was read."""

    def __init__(self, plan: SweepPlan, work: Workplace, cache: Cache) -> None:
        self._work, self._cache = work, cache
        self._pages = PageGroups(work, plan.r.direct, plan.options.gap_bytes, plan.division.buffers)
        self.sketch = FrequencySketch(_counters(plan.keys), plan.keys * _WINDOW_PER_KEY)
        #: count of the most frequent key that had to leave last; 0 while the cache takes all keys
        self._level = 0
        self._tuples = 0
        work.budget.hold("frequency sketch", self.sketch.bytes_held)

    @property
    def hurries(self) -> bool:
        """While the cache takes all keys, pages that are at hand are better visited twice than keys missed twice."""
        return self._pages.mapped and not self._level

    @property
    def reads_ahead(self) -> bool:
        """Past the page cache, where there are buffers for it."""
        return self._pages.reads_ahead

    def join(self, chunk: Chunk, ids: Int64s) -> Iterator[pa.RecordBatch]:
        self.asked(chunk.n_rows)
        return self.join_parts(self._work.output.of_chunk(chunk), [(chunk.codes[ids], ids)])

    def join_parts(
        self, tuples: Tuples, parts: Iterable[Part], late: LateHits | None = None
    ) -> Iterator[pa.RecordBatch]:
        if self._level and self._cache.is_mostly_empty:
            # Keys have left for a cache in front of this one: there is room for all again.
            self._level = 0
        sweep, switched = Sweep(self._work, self._pages, tuples, parts), self._work.stats.switched
        with closing(sweep.groups_and_pauses(lambda: bool(late))) as groups:
            for group in groups:
                if group is None:
                    assert late
                    yield from late.some()
                    continue
                yield from sweep.pairs(group)
                if group.whole:
                    yield from self._admit(sweep, group, late)
        if late is not None:
            yield from late.rest()
            self._make_room(self._work.stats.switched - switched)

    def _make_room(self, keys: int) -> None:
        """Have room for as many keys as the last sweep let in: the next one need not evict while rows are late."""
        cache = self._cache
        if self._level and min(cache.row_room, cache.max_keys - cache.keys) < min(keys, self._usual_eviction):
            self._evict(0)

    def _evict(self, keys: int) -> None:
        """Let the least frequent keys go, at least `keys` of them if that is not too many."""
        cache = self._cache
        self._level = max(cache.evict_least(max(self._usual_eviction, min(keys, cache.keys // 4))), 1)

    @property
    def _usual_eviction(self) -> int:
        return self._cache.keys // 50

    def _admit(self, sweep: Sweep, found: Group[AskedRuns], late: LateHits | None) -> Iterator[pa.RecordBatch]:
        """Offer what was read to the cache: all of it until the cache was full once, then what is more frequent."""
        estimates = self.sketch.add(found.codes, sweep.asked(found))
        rest = np.flatnonzero(estimates > self._border)
        for _ in range(2):
            if len(rest) == 0:
                return
            dealt = self._offer(sweep, found, rest, estimates[rest])
            self._work.stats.switched += dealt
            rest = rest[dealt:]
            rest = rest[estimates[rest] > self._border]
            if len(rest) == 0:
                return
            if late is not None:
                yield from late.rest()
            self._evict(len(rest))
            rest = rest[estimates[rest] > self._border]

    def _offer(self, sweep: Sweep, found: Group[AskedRuns], rest: Int64s, counts: Int64s) -> int:
        """Offer the codes `rest` of a group to the cache; returns how many were dealt with."""
        cache, codes, validity = self._cache, found.codes[rest], self._work.output.sides.validity
        if validity is not None and (wanted := sweep.versions(found, rest, validity)) is not None:
            return cache.admit_versions(codes, wanted, counts, found.block, validity)
        return cache.admit(codes, found.starts[rest], found.ends[rest], counts, found.block)

    @property
    def _border(self) -> float:
        """Counts above this are above the least frequent cached key's by more than chance."""
        return float(beyond_chance(self._level, 1.0)) if self._level else 0.0

    def asked(self, count: int) -> None:
        """Count tuples that came; old counts fade now and then."""
        self._tuples += count
        if self._tuples >= self.sketch.window:
            self._tuples = 0
            self.sketch.age()
            self._cache.age()
            self._level //= 2


def run(plan: SweepPlan, work: Workplace) -> LookupLoop:
    """Look-ups by sweeps behind a cache, or behind all of R."""
    arena = work.arena(plan.arena)
    held = load_all(work, arena, plan.tables) if plan.resident else None
    if held is not None:
        return LookupLoop(work, NothingLeft(work), held)
    cache = Cache(arena, work.row_layout, plan.tables - plan.sketch_bytes, plan.keys)
    if not plan.r.n_pages:
        return LookupLoop(work, NothingLeft(work), cache)
    sweep = AdmittingSweep(plan, work, cache)
    if plan.gathering is None:
        return LookupLoop(work, sweep, cache)
    return GatheringLoop(work, sweep, cache, GatheredTuples(work, plan.gathering))


def predict(plan: SweepPlan, workload: Workload) -> Counts:
    """A turn is what one sweep serves, a batch or a part of it; its misses share a page only with each other."""
    r, division, shape, keys = plan.r, plan.division, plan.arena, workload.keys
    if plan.resident:
        return resident_counts(r, shape)
    most_keys = _cached_keys(plan.tables, r.v_R)
    sketch = most_keys * _SKETCH_BYTES_PER_KEY
    room = plan.tables - sketch
    rows = int((room - Cache.directory_bytes(most_keys)) // shape.extent_bytes) * shape.slots(r.v_R)
    h_R = float(min(most_keys, rows))
    memory = _WINDOW_PER_KEY * h_R
    w, parts = chunk_tuples(workload, division), 1.0
    # What a chunk asks for is in the cache when it is done.
    cached = keys.recorded(h_R, memory, entry=1.0, seen=max(workload.seen - w / 2, 0.0))
    missed = max(1.0 - keys.p_N(cached), 0.0)
    if plan.gathering is not None:
        w = workload.batch / plan.gathering.sweeps(plan.s, round(workload.batch / w), w * missed)
        parts = plan.gathering.parts(w * missed)
    left = keys.without(cached)
    shares = group_shares(left, max(r.n_pages, 1), r.order == "frequency")
    sweep = sweep_costs(r, division, plan.options.gap_bytes, shares, w * missed, parts)
    looked_up = left.distinct(w * missed) / w
    let_in = max(_LET_IN * missed**_LET_IN_FALLS, _LEAST_LET_IN) * missed
    filling = keys.fills(h_R, workload.seen)
    return Counts(
        {
            "cache_hits": 1.0 - missed,
            "cache_misses": missed,
            "iterations": sweep.groups / w,
            "reads": sweep.reads / w,
            "pages_read": sweep.pages / w,
            "bytes_read": sweep.bytes / w,
            "master_rows_probed": looked_up,
            # As long as there is room whoever was looked up comes in.
            "switched": looked_up if filling else let_in,
            "evicted": 0.0 if filling else let_in,
        },
        memory={
            "arena table": shape.table_bytes,
            "frequency sketch": sketch,
            "cache": room,
            "gathered misses": plan.gathered_bytes,
        },
        symbols={"h_R": h_R, "h_S": 0.0, "w_N": w * (1 - missed), "w_S": w * missed, "p_N": 1 - missed},
        rest=memory,
    )


ALGORITHM = Algorithm(
    name="sweepjoin",
    about=__doc__,
    plan=plan,
    run=run,
    options=Options,
    predict=predict,
    paper="ours",
    # Rows of hits are made while pages are read.
    pricing=Pricing({**STREAM, **PROBE, **LOOKUP, **OUTPUT, **SWITCH}, mapped=True, hidden_ahead=2 / 3),
    knobs=(BUFFER_KNOB, Knob("gap_bytes", lambda r, m: r.page_bytes, lambda r, m: 4 << 20)),
    needs_index=True,
    shares_cache=True,
    follows=True,
)
