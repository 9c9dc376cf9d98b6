"""SWEEPJOIN: the production default; every batch is finished in one ordered sweep behind a cache.

SWEEPJOIN answers what it can from the cache, then reads, in page order, just the pages the misses need.

Misses of a chunk are sorted by key, so each page is visited once; neighbouring reads merge where reading the gap
is cheaper than a seek, which turns the sweep into a scan when most pages are needed. The cache holds the keys with
the most stream tuples per byte: a missed key enters when a frequency sketch has counted it more often than the
least frequent cached key, and not by chance, all its master tuples at once; a key that R lacks enters without any.
Counts are halved now and then, so the cache follows the stream. When the budget holds all of R, R is loaded once.

Needs of R: an index. Every tuple is finished by the push that brought it; nothing waits.

Memory: M = d·v_R + h_R·(v_R + entry + sketch).
Cost:   c_chunk = w·(c_S + c_H + c_O) + keys·c_L + c_I/O(pages the misses need).

>>> import pyarrow as pa
>>> from semistream import open_join
>>> with open_join("sweepjoin", master=pa.table({"k": [1, 2], "v": [10, 20]}), on="k", memory="1MB") as join:
...     rows = list(join.push(pa.record_batch({"k": [2, 7]})))
>>> pa.Table.from_batches(rows).to_pydict()
{'k': [2], 'v': [20]}

Paper: none; the admission follows tinylfu2017 (G. Einziger, R. Friedman, B. Manes, "TinyLFU: a highly efficient
cache admission policy", ACM TOS 2017), the composition the cache inequality of ssbj2019.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.engine.algorithm import BUFFER_KNOB, Algorithm, Knob, Pricing
from semistream.engine.chunk import Chunk
from semistream.engine.division import Needs, arena_within, divide
from semistream.engine.facts import MasterFacts, StreamFacts
from semistream.engine.options import CommonOptions, option
from semistream.engine.plan import Plan
from semistream.engine.workplace import Workplace
from semistream.loops.lookup import Group, LookupLoop, NothingLeft, Sweep, chunk_tuples, sweep_costs
from semistream.loops.pages import DEFAULT_GAP_BYTES, PageGroups
from semistream.loops.prices import LOOKUP, OUTPUT, PROBE, STREAM, SWITCH
from semistream.loops.resident import fits, load_all, resident_counts
from semistream.parts.arena import ArenaShape
from semistream.parts.cache import Cache
from semistream.parts.frequency import FrequencySketch, beyond_chance
from semistream.predict.counts import Counts, Workload
from semistream.predict.sharing import group_shares

Int64s = npt.NDArray[np.int64]

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
        DEFAULT_GAP_BYTES, "the gap in bytes that is read over instead of a seek, for `direct`", least=0
    )


@dataclass(frozen=True)
class SweepPlan(Plan[Options]):
    """The arena of the cache; whether all of R is held there; else the sizes of the cache and of the sketch."""

    arena: ArenaShape
    resident: bool
    keys: int
    sketch_bytes: int

    @property
    def tables(self) -> int:
        """Bytes for tables, the arena's own apart."""
        return self.division.tables - self.arena.table_bytes


def plan(r: MasterFacts, s: StreamFacts, budget: int, options: Options) -> SweepPlan:
    """Nearly all is the cache's: a chunk's misses need a small disk buffer, and nobody waits."""
    division = divide(r, budget, options, Needs(buffer_share=0.05))
    arena = arena_within(budget, division.tables, r.row_slot)
    tables = division.tables - arena.table_bytes
    keys = _cached_keys(tables, r.row_slot)
    sketch = FrequencySketch.bytes_for(_counters(keys))
    return SweepPlan(
        r, s, budget, options, division, arena=arena, resident=fits(r, tables), keys=keys, sketch_bytes=sketch
    )


def _cached_keys(tables: int, row_bytes: float) -> int:
    """Keys of one master tuple that find room, with what the sketch remembers of each."""
    return max(int(tables / (row_bytes + Cache.entry_bytes() + _SKETCH_BYTES_PER_KEY)), 8)


def _counters(keys: int) -> int:
    return keys * _SKETCH_BYTES_PER_KEY // 2


class AdmittingSweep:
    """Sweeps for what the cache lacks, and offers to the cache what was read."""

    def __init__(self, plan: SweepPlan, work: Workplace, cache: Cache) -> None:
        self._work, self._cache = work, cache
        self._pages = PageGroups(work, plan.r.direct, plan.options.gap_bytes)
        self.sketch = FrequencySketch(_counters(plan.keys), plan.keys * _WINDOW_PER_KEY)
        #: count of the most frequent key that had to leave last; 0 until the cache was full once
        self._level = 0
        self._asked = 0
        work.budget.hold("frequency sketch", self.sketch.bytes_held)

    def join(self, chunk: Chunk, ids: Int64s) -> Iterator[pa.RecordBatch]:
        self._maybe_age(chunk.n_rows)
        sweep = Sweep(self._work, self._pages, chunk.codes[ids], ids, self._work.output.of_chunk(chunk))
        for group in sweep.groups():
            yield from sweep.pairs(group)
            if group.whole:
                self._admit(group, sweep.asked(group))

    def _admit(self, found: Group, asked: Int64s) -> None:
        """Offer what was read to the cache: all of it until the cache was full once, then what is more frequent."""
        cache, codes, starts, ends = self._cache, found.codes, found.starts, found.ends
        estimates = self.sketch.add(codes, asked)
        rest = np.flatnonzero(estimates > self._border)
        for _ in range(2):
            if len(rest) == 0:
                return
            dealt = cache.admit(codes[rest], starts[rest], ends[rest], estimates[rest], found.block)
            self._work.stats.switched += dealt
            rest = rest[dealt:]
            rest = rest[estimates[rest] > self._border]
            if len(rest) == 0:
                return
            self._level = max(cache.evict_least(max(cache.keys // 50, min(len(rest), cache.keys // 4))), 1)
            rest = rest[estimates[rest] > self._border]

    @property
    def _border(self) -> float:
        """Counts above this are above the least frequent cached key's by more than chance."""
        return float(beyond_chance(self._level)) if self._level else 0.0

    def _maybe_age(self, asked: int) -> None:
        self._asked += asked
        if self._asked >= self.sketch.window:
            self._asked = 0
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
    sweep = AdmittingSweep(plan, work, cache)
    return LookupLoop(work, sweep if plan.r.n_pages else NothingLeft(work), cache)


def predict(plan: SweepPlan, workload: Workload) -> Counts:
    """A turn is a chunk; its misses share a page only with each other."""
    r, division, shape, keys = plan.r, plan.division, plan.arena, workload.keys
    if plan.resident:
        return resident_counts(r, shape)
    most_keys = _cached_keys(plan.tables, r.v_R)
    sketch = most_keys * _SKETCH_BYTES_PER_KEY
    room = plan.tables - sketch
    rows = int((room - Cache.directory_bytes(most_keys)) // shape.extent_bytes) * shape.slots(r.v_R)
    h_R = float(min(most_keys, rows))
    cached = keys.recorded(h_R, _WINDOW_PER_KEY * h_R, entry=1.0)
    missed = max(1.0 - keys.p_N(cached), 0.0)
    w = chunk_tuples(workload, division)
    left = keys.without(cached)
    shares = group_shares(left, max(r.n_pages, 1), r.order == "frequency")
    sweep = sweep_costs(r, division, plan.options.gap_bytes, shares, w * missed)
    let_in = max(_LET_IN * missed**_LET_IN_FALLS, _LEAST_LET_IN) * missed
    return Counts(
        {
            "cache_hits": 1.0 - missed,
            "cache_misses": missed,
            "iterations": sweep.groups / w,
            "reads": sweep.reads / w,
            "pages_read": sweep.pages / w,
            "bytes_read": sweep.bytes / w,
            "master_rows_probed": left.distinct(w * missed) / w,
            "switched": let_in,
            "evicted": let_in,
        },
        memory={"arena table": shape.table_bytes, "frequency sketch": sketch, "cache": room},
        symbols={"h_R": h_R, "h_S": 0.0, "w_N": w * (1 - missed), "w_S": w * missed, "p_N": 1 - missed},
    )


ALGORITHM = Algorithm(
    name="sweepjoin",
    about=__doc__,
    plan=plan,
    run=run,
    options=Options,
    predict=predict,
    paper="ours",
    pricing=Pricing({**STREAM, **PROBE, **LOOKUP, **OUTPUT, **SWITCH}, mapped=True),
    knobs=(BUFFER_KNOB, Knob("gap_bytes", lambda r, m: r.page_bytes, lambda r, m: 4 << 20)),
    needs_index=True,
    shares_cache=True,
)
