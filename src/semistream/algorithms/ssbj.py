"""SSBJ: the semi-stream balanced join, whose cache is composed by an inequality instead of a heuristic.

SSBJ keeps every key where it takes fewer bytes: its m master tuples in the cache, or its n tuples per R-cycle
in the pending table.

Disk phase is MESHJOIN's. A key moves into the cache when m·v_R < n·v_S, over three R-cycles (see `CycleState`), and
out again when, over ten R-cycles, the inequality no longer holds. A key that R lacks has m = 0: its absence is
cached. Both tables live in one arena, so what the cache gives up the pending table gets, and the chunk size w
follows. When the budget holds all of R, R is read once and the join is a main-memory hash join (Theorem 3).

Decisions where the paper is silent. m is counted with each waiting tuple, not with its key: a tuple meets all
of R before it leaves, so the count is then complete, which that of a key that came in mid-cycle is not. The
inequality is evaluated once, before the switching cycle, so that either all of a key's tuples are collected or
none. n is a sample, so a key is let in if n − √n satisfies it, and judged again after its first three cycles.
Bytes are the real ones, directory entries included; so that the many rare absent keys need no entry each, a filter
of R's keys (a bit per code, or a Bloom filter) is filled during the first cycle, and dropped if it is of no use.
`literal` leaves all of this out but the first two.

Needs of R: nothing. Exact for many-to-many; optimal in memory for any distribution (Theorem 1).

Memory: M = (b + h_R·f)·v_R + w_S·R_t/b·(v_P + f·v_S).
Cost:   c_loop = c_I/O(b) + b·(c_H + c_B) + w_N·(c_S + c_H + c_O) + w_S·(c_E + c_S + c_A + c_O).

>>> import pyarrow as pa
>>> from semistream import open_join
>>> parts = pa.table({"part": [10, 30, 30], "supplier": ["Chicago", "Houston", "New York"]})
>>> with open_join("ssbj", master=parts, on="part", how="left", memory="1MB") as join:
...     rows = [*join.push(pa.record_batch({"part": [30, 40]})), *join.drain()]
>>> pa.Table.from_batches(rows).sort_by([("part", "ascending"), ("supplier", "ascending")]).to_pydict()
{'part': [30, 30, 40], 'supplier': ['Houston', 'New York', None]}

Paper: ssbj2019 (M. A. Naeem, G. Weber, C. Lutteroth, "A memory-optimal many-to-many semi-stream join", DAPD
2019), section 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import pyarrow as pa

from semistream.engine.algorithm import BUFFER_KNOB, Algorithm, Pricing
from semistream.engine.chunk import Chunk
from semistream.engine.division import divide
from semistream.engine.facts import MasterFacts, StreamFacts
from semistream.engine.options import WaitingOptions, option
from semistream.engine.workplace import Workplace
from semistream.loops.prices import BUILD, OUTPUT, PROBE, STREAM, SWITCH, WAITING
from semistream.loops.resident import fits, load_all, resident_counts
from semistream.loops.scan import (
    PlainFront,
    Round,
    ScanCycle,
    ScanLoop,
    ScanPlan,
    cycle,
    scan_arena,
    scan_counts,
    scan_symbols,
)
from semistream.master.base import PageBlock
from semistream.parts.arena import Arena, BlockPool
from semistream.parts.cache import Balance, Cache, Judged
from semistream.parts.frequency import beyond_chance
from semistream.parts.key_filter import FilterPlan, KeyFilter
from semistream.parts.pending import FifoPending, fifo_tuple_bytes
from semistream.parts.switching import collect_rows
from semistream.predict.counts import Counts, Workload
from semistream.predict.keys import Floats, normal_cdf

EVICTION_CYCLES = 10
#: the directory begins with this part of the tables, and keeps at least this one where few keys pay for a place
_FIRST_DIRECTORY, _LEAST_DIRECTORY = 0.02, 0.001
#: steps whose rows must find room in what is kept free, and extents that are kept free besides
_STEPS_AHEAD, _EXTENTS_AHEAD = 8, 2
_FILTER_TRIAL = 1 << 16
#: a directory grows by a quarter when it is 90 % full: on average it has this many entries per key
_DIRECTORY_SLACK = 1.2
_DRAINED_ROUNDS = 8
#: how exactly W is looked for, as a factor
_NEAR_W = 1.0001
#: ages in R-cycles at which keys meet their first eviction, if there is no probation
_FIRST_JUDGED = (1.0, 4.0, 7.0, 10.0)
#: newcomers that are too few to tell whether luck brought them in, and the most that is taken off a count for luck
_FEW_NEWCOMERS, _MOST_SPREADS = 16, 6.0
#: after so many the cache holds what it will
_CYCLES_TO_REST = 24.0


@dataclass(frozen=True)
class Options(WaitingOptions):
    """Options of SSBJ. Four additions are not the paper's; each can be left out by itself, to see what it gives."""

    switching_factor: float = option(1.0, "hysteresis of the inequality (1: none, which is best)", above=0)
    literal: bool = option(False, "the paper's algorithm: none of our four additions, whatever is said of them")
    absence_filter: bool = option(True, "a filter of R's keys answers tuples whose keys R lacks")
    chance_test: bool = option(True, "a key is let in if n less its spread satisfies the inequality, else if n does")
    probation: bool = option(True, "a new key is judged after three R-cycles, else with all others every tenth")
    cap: bool = option(True, "keys with half as many bytes as H_S has are let in at once, else all that are named")

    def adds(self, addition: str) -> bool:
        """Whether one of our additions, named by its option, is on."""
        return bool(getattr(self, addition)) and not self.literal

    @property
    def spreads(self) -> float:
        """How many times √n a newcomer's count is lessened by, at the beginning."""
        return 1.0 if self.adds("chance_test") else 0.0


@dataclass(frozen=True)
class SSBJPlan(ScanPlan[Options]):
    """Whether all of R is held."""

    resident: bool


def plan(r: MasterFacts, s: StreamFacts, budget: int, options: Options) -> SSBJPlan:
    """Cache and H_S share one arena: what one gives up the other gets."""
    division = divide(r, budget, options)
    arena, slot = scan_arena(r, s, budget, division.tables, counter=True)
    resident = fits(r, division.tables - arena.table_bytes)
    return SSBJPlan(
        r, s, budget, options, division, pages_per_step=division.pages, arena=arena, slot=slot, resident=resident
    )


class CycleState(Enum):
    """What the current R-cycle does for cache migration; each lasts one full cycle.

        INCREMENTING --> SWITCHING --> PHASE_OUT --> INCREMENTING ...

    Every waiting tuple counts the master tuples m it meets. In INCREMENTING, tuples that leave have met all of R:
    the cache inequality is evaluated with their m, and keys that satisfy it are named. SWITCHING collects the
    master tuples of the named keys. PHASE_OUT begins by showing them to the stream; while it lasts, their waiting
    stream tuples run out of H_S.
    """

    INCREMENTING = 1
    SWITCHING = 2
    PHASE_OUT = 0


class BalancedFront(PlainFront):
    """The cache of keys that take fewer bytes in it than in H_S, and the filter of absent keys.

    `blocks` is the pool of VAR bytes that both tables take from, if there are such bytes.
    """

    cache: Cache

    def __init__(self, plan: SSBJPlan, work: Workplace, tables: Tables, scan: Round) -> None:
        super().__init__(tables.cache, work, tables.pending)
        self._blocks, self._scan = tables.blocks, scan
        self.rc = 0
        self.state = CycleState.PHASE_OUT
        #: tuples of a snapshot that still wait: they have met part of R before, in another join
        self._restored = 0
        #: bytes for both tables, and those that the switching cycle is going to collect
        self._total = tables.total
        self._planned = 0
        self._growth_bytes = self._growth_keys = 0
        self._least_keys = max(int(_LEAST_DIRECTORY * tables.total / Cache.entry_bytes()), 8)
        self.options = plan.options
        row_bytes = tables.cache.pool.slot_bytes + (work.master.row_bytes if tables.cache.layout.has_var else 0.0)
        self._balance = Balance(Cache.entry_bytes(), row_bytes, self.options.switching_factor, self.options.spreads)
        self.filter = tables.filter
        if self.filter is not None:
            work.budget.hold("key filter", self.filter.bytes_held)
        self._share_out()

    # ------------------------------------------------------------------------------- who owns which bytes

    @property
    def _block_bytes(self) -> int:
        return 0 if self._blocks is None else self._blocks.extents * self.cache.arena.extent_bytes

    @property
    def _to_collect(self) -> int:
        """Bytes the switching cycle still has to find room for."""
        return max(self._planned - self.cache.switching_bytes, 0)

    def _share_out(self) -> None:
        """The pending table may take what the cache leaves, less what the next few steps may collect."""
        steps_left = max(self._scan.k - self._scan.position, 1)
        ahead = self._growth_bytes
        if self._to_collect:
            ahead += self._to_collect * min(_STEPS_AHEAD, steps_left) // steps_left
            ahead += _EXTENTS_AHEAD * self.cache.arena.extent_bytes
        self._pending.limit_bytes = self._total - self.cache.bytes_held - self._block_bytes - ahead
        self.cache.limit_bytes = self._total - self._pending.bytes_held - self._block_bytes

    @property
    def tuples_per_cycle(self) -> float:
        """Adapted: they fill what is left when the switching cycle will have collected its rows."""
        room = self._total - self.cache.bytes_held - self._block_bytes - self._to_collect - self._growth_bytes
        if self._pending.layout.has_var:
            room += self._block_bytes
        return room / self._pending.tuple_bytes

    def settle(self) -> None:
        super().settle()
        self._work.budget.hold("var blocks", self._block_bytes)
        self._share_out()

    # ------------------------------------------------------------------------------------------ phases

    def answer(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        yield from super().answer(chunk)
        if self.filter is not None and self.filter.ready and self.missed:
            missed, absent = self.missed, self._work.scratch.done
            self.missed = self.filter.split(chunk.codes, self.misses, missed, absent)
            yield from self.finish(chunk, absent, missed - self.missed)

    def begin_cycle(self) -> None:
        self.rc += 1
        self.state = CycleState(self.rc % 3)
        if self.rc == 2 and self.filter is not None:
            self.filter.ready = True
        if self.state is CycleState.INCREMENTING:
            self._planned = 0
            self._drop_idle_filter()
        elif self.state is CycleState.PHASE_OUT:
            if self.options.adds("probation"):
                self._judge_newcomers()
            self.cache.activate()
            self._planned = 0
        if self.rc % EVICTION_CYCLES == 0:
            self._evict(EVICTION_CYCLES, Judged.SETTLED if self.options.adds("probation") else Judged.ALL)
        self._grow_directory()
        self._share_out()

    def _judge_newcomers(self) -> None:
        """Keys on probation stay or leave; where most leave, luck brought them in, and later ones must have more of it.

        In a uniform stream no key deserves a place, and among very many some come often for a cycle.
        """
        newcomers = self.cache.newcomers
        failed = self._evict(len(CycleState), Judged.YOUNG)
        if self.options.adds("chance_test"):
            few = newcomers < _FEW_NEWCOMERS
            step = 0.5 if not few and failed > 0.5 * newcomers else -0.25 if few or failed < 0.25 * newcomers else 0.0
            spreads = min(max(self._balance.spreads + step, self.options.spreads), _MOST_SPREADS)
            self._balance = replace(self._balance, spreads=spreads)

    def _grow_directory(self) -> None:
        """A cache that runs out of entries gets more, and one that has far too many gives back half of them.

        Room for the other directory is set aside during one cycle and used after it.
        """
        cache, budget = self.cache, self._work.budget
        # Evictions have freed bytes that the ledger does not know of yet.
        budget.hold("pending table", self._pending.bytes_held)
        self.settle()
        if cache.keys * 2 > self._growth_keys and self._growth_keys < cache.max_keys:
            # Keys have come that the smaller directory would hardly hold.
            self._growth_bytes = 0
        if self._growth_bytes and budget.spare >= self._growth_bytes:
            budget.hold("directory growth", self._growth_bytes)
            cache.grow(self._growth_keys)
            budget.hold("directory growth", 0)
            self._growth_bytes = 0
        elif cache.keys > 0.9 * cache.max_keys:
            # By half where keys were turned away for want of an entry.
            self._growth_keys = cache.max_keys * (6 if cache.keys >= cache.max_keys else 5) // 4
            self._growth_bytes = cache.directory_bytes(self._growth_keys)
        elif self.rc > len(CycleState) and cache.keys * 8 < cache.max_keys and cache.max_keys > self._least_keys:
            self._growth_keys = max(cache.max_keys // 2, self._least_keys)
            self._growth_bytes = cache.directory_bytes(self._growth_keys)

    def _drop_idle_filter(self) -> None:
        """A filter that spares H_S fewer of the tuples than it takes of the bytes is of no use: the tables get them."""
        if self.filter is None or self.filter.asked < _FILTER_TRIAL:
            return
        share = self.filter.bytes_held / (self._total + self.filter.bytes_held)
        if self.filter.absent < share * self.filter.asked:
            self._total += self.filter.bytes_held
            self.filter = None
            self._work.budget.hold("key filter", 0)
        else:
            self.filter.asked = self.filter.absent = 0

    def after_probe(self, block: PageBlock) -> None:
        work, cache = self._work, self.cache
        if self.filter is not None and not self.filter.ready:
            self.filter.add(work.disk.codes, block.n_rows)
        if self.state is CycleState.SWITCHING:
            keys = cache.switching_keys
            work.stats.switched += collect_rows(cache, block, work.disk.codes, work.scratch.slots, make_room=False)
            if keys:
                self._planned = self._planned * cache.switching_keys // keys

    def before_expiry(self, count: int) -> None:
        """Incrementing state: tuples that leave know m, so the cache inequality is evaluated for their keys.

        Restored ones do not: they have met part of R before, in another join.
        """
        restored = min(count, self._restored)
        self._restored -= restored
        if self.state is CycleState.INCREMENTING and not restored:
            room = self._pending.bytes_held // (2 if self.options.adds("cap") else 1)
            most = max(room - self._planned, 0)
            self._planned += self._pending.name_balanced(count, self.cache, self._balance, most)

    def restored(self, count: int) -> None:
        self._restored = count

    def _evict(self, cycles: int, whom: Judged) -> int:
        """Keys that have become too rare, or never were frequent enough, go back to the disk phase; -> how many."""
        evicted = self.cache.evict_unbalanced(self._balance, self._pending.tuple_bytes / cycles, whom)
        self._work.stats.evicted = self.cache.evictions
        self.cache.compact()
        return evicted


class ResidentFront(PlainFront):
    """All of R is in the cache: nobody waits."""

    def answer(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        yield from super().answer(chunk)
        yield from self.finish_missed(chunk)


@dataclass(frozen=True)
class Tables:
    """Both tables and the filter, with the bytes that the tables share."""

    cache: Cache
    pending: FifoPending
    blocks: BlockPool | None
    filter: KeyFilter | None
    total: int


def run(plan: SSBJPlan, work: Workplace) -> ScanLoop:
    """The scan loop behind a balanced cache, or behind all of R."""
    arena = work.arena(plan.arena)
    held = load_all(work, arena, plan.tables) if plan.resident else None
    if held is not None:
        pending = FifoPending(arena, work.intake.layout(FifoPending.HEADER), 0)
        work.copy_read_counts()
        return ScanLoop(plan, work, pending, ResidentFront(held, work, pending))
    tables, scan = _tables(plan, work, arena), Round(plan.k)
    return ScanLoop(plan, work, tables.pending, BalancedFront(plan, work, tables, scan), scan)


def _tables(plan: SSBJPlan, work: Workplace, arena: Arena) -> Tables:
    wanted = plan.options.adds("absence_filter")
    filter_plan = FilterPlan.make(plan.r.rows, plan.tables, plan.r.code_range) if wanted else None
    absent = KeyFilter(filter_plan) if filter_plan is not None else None
    total = plan.tables - (absent.bytes_held if absent is not None else 0)
    keys = max(int(_FIRST_DIRECTORY * total / Cache.entry_bytes()), 8)
    layout = work.intake.layout(FifoPending.HEADER, counter=True)
    blocks = BlockPool(arena) if work.row_layout.has_var or layout.has_var else None
    cache = Cache(arena, work.row_layout, total, keys, blocks)
    return Tables(cache, FifoPending(arena, layout, total, blocks), blocks, absent, total)


def predict(plan: SSBJPlan, workload: Workload) -> Counts:
    """Equations 1 to 6 of the paper: the memory is given, W = k·w tuples per R-cycle are looked for.

    A key is cached while m·v_R + entry < n·v_S (theorem 2), n its tuples per R-cycle. SSBJ sees n through one cycle
    when it lets a key in and through three or ten when it looks again, so a key near the border is in the cache for a
    part of the time; that part is the balance of both. c_B is priced for tuples switched, not for all of b.
    """
    if plan.resident:
        return resident_counts(plan.r, plan.arena)
    keys, r, shape, spare = workload.keys, plan.r, plan.arena, plan.tables
    v_S = fifo_tuple_bytes(shape, plan.slot + plan.s.var_bytes)
    entry = Cache.entry_bytes()
    border = (keys.m * r.v_R + entry) / v_S * plan.options.switching_factor

    def cache_bytes(cached: Floats, total: float) -> float:
        directory = float((keys.count * cached).sum()) * entry * _DIRECTORY_SLACK
        return float((keys.count * cached * keys.m).sum()) * r.v_R + max(directory, _LEAST_DIRECTORY * total)

    def settle(absent: FilterPlan | None) -> tuple[Floats, float, float, float]:
        """What passes the filter of each key, bytes left for tables, W, and how many of those wait."""
        passing = np.where(keys.m > 0, 1.0, absent.misses if absent is not None else 1.0)
        total = float(spare - _EXTENTS_AHEAD * shape.extent_bytes - (absent.bytes if absent is not None else 0))
        low, high, fits = 1.0, 1e3 * total / v_S, 1.0
        while high > _NEAR_W * low:
            W = math.sqrt(low * high)
            cached, _ = _in_cache(plan.options, workload, W, border, passing)
            waiting = W * float((keys.count * keys.p * (passing - cached)).sum())
            if cache_bytes(cached, total) + waiting * v_S > total:
                high = W
            else:
                low, fits = W, waiting
        return passing, total, low, fits

    filtered = keys.absent_share > 0 and plan.options.adds("absence_filter")
    absent = FilterPlan.make(r.rows, spare, r.code_range) if filtered else None
    passing, total, W, waiting = settle(absent)
    if absent is not None:
        spared = keys.absent_share * (1.0 - absent.misses)
        if spared < absent.bytes / spare * (spared + waiting / W):
            # A filter that spares so little is dropped.
            absent = None
            passing, total, W, waiting = settle(absent)
    missed, h_S = max(waiting / W, 1e-9), waiting
    turn = cycle(plan, workload, h_S, missed)
    for _ in range(_DRAINED_ROUNDS if workload.drained else 0):
        # A batch that is drained makes cycles short: fewer tuples per cycle are worth a place in the cache.
        cached, _ = _in_cache(plan.options, workload, turn.tuples, border, passing)
        missed = max(float((keys.count * keys.p * (passing - cached)).sum()), 1e-9)
        turn = cycle(plan, workload, h_S, missed)
    cached, moves = _in_cache(plan.options, workload, turn.tuples, border, passing)
    rest = _CYCLES_TO_REST * turn.tuples
    if workload.seen < rest:

        def turn_with(cached: Floats) -> tuple[ScanCycle, float]:
            """The R-cycle, and what of the stream waits, when the cache holds that much of each key."""
            missed = max(float((keys.count * keys.p * (passing - cached)).sum()), 1e-9)
            return cycle(plan, workload, max(total - cache_bytes(cached, total), v_S) / v_S, missed), missed

        cached, moves = _young(plan.options, workload, turn_with, border, passing)
        turn, missed = turn_with(cached)
        h_S = turn.w_S * turn.k
    h_R = float((keys.count * cached * keys.m).sum())
    counts = scan_counts(turn, missed)
    counts["switched"] = float((keys.count * moves * keys.m).sum()) / turn.tuples
    counts["evicted"] = float((keys.count * moves).sum()) / turn.tuples
    return Counts(
        counts,
        memory={
            "arena table": shape.table_bytes,
            "key filter": float(absent.bytes) if absent is not None else 0.0,
            "cache": cache_bytes(cached, total),
            "pending table": h_S * v_S,
        },
        symbols=scan_symbols(turn, h_S, missed, h_R),
        delay=missed * turn.tuples,
        longest_delay=turn.tuples,
        rest=rest,
    )


def _young(
    options: Options,
    workload: Workload,
    turn_with: Callable[[Floats], tuple[ScanCycle, float]],
    border: Floats,
    passing: Floats,
) -> tuple[Floats, Floats]:
    """What `_in_cache` says, after `seen` tuples: in each round of three R-cycles some keys come and some go.

    Of the first cycle only the first step's tuples leave in time to be judged: only their keys are shown after the
    second.
    """
    cached = moves = np.zeros_like(border)
    at, cycles = 0.0, 2.0
    for _ in range(int(_CYCLES_TO_REST) // 3):
        turn, _ = turn_with(cached)
        judged = workload.keys.came(turn.w) if at == 0.0 else 1.0
        at += cycles * turn.tuples
        if at > workload.seen:
            break
        rest, moves = _in_cache(options, workload, turn.tuples, border, passing)
        # Of the keys that are out so many come in, and of those that are in so many leave that `rest` are in at last.
        enter = judged * np.minimum(3.0 * moves / np.maximum(passing - rest, 1e-12), 1.0)
        leave = np.minimum(3.0 * moves / np.maximum(rest, 1e-12), 1.0)
        cached = np.clip(cached + (passing - cached) * enter - cached * leave, 0.0, passing)
        cycles = 3.0
    return cached, moves


def _in_cache(options: Options, workload: Workload, W: float, border: Floats, passing: Floats) -> tuple[Floats, Floats]:
    """Part of the time each key is cached, and how often it moves in (and out) per R-cycle.

    `passing` is the part of the keys that the filter lets through; the others are never seen.

    n is seen as Poisson(W·p): through one cycle when the key is let in, which happens every third cycle and if n is
    above the border by its own spread, or by so many spreads that most who come in stay; through three after its first
    three, then through ten, when it is judged again.
    """
    spreads, count = options.spreads, workload.keys.count
    while True:
        cached, moves, kept = _with_spreads(options, workload, W, border, passing, spreads)
        newcomers = float((count * moves).sum()) * len(CycleState)
        failed = float((count * moves * (1.0 - kept)).sum()) * len(CycleState)
        learns = options.adds("chance_test") and options.adds("probation") and spreads < _MOST_SPREADS
        if not learns or newcomers < _FEW_NEWCOMERS or failed <= 0.5 * newcomers:
            return cached, moves
        spreads += 0.5


def _with_spreads(
    options: Options, workload: Workload, W: float, border: Floats, passing: Floats, spreads: float
) -> tuple[Floats, Floats, Floats]:
    """The same, for a given number of spreads; and the chance of a newcomer to stay."""
    seen = W * workload.keys.p

    def above(least: Floats, cycles: float) -> Floats:
        return normal_cdf(2.0 * (np.sqrt(cycles * seen) - np.sqrt(cycles * least)))

    enter = np.maximum(above(beyond_chance(border, spreads), 1.0), 1e-12)
    leave = np.maximum(1.0 - above(border, 10.0), 1e-9)
    if options.adds("probation"):
        first, kept = 3.0, above(border, 3.0)
    else:
        # Judged first after one, four, seven or ten cycles, by what ten would have brought.
        first = sum(_FIRST_JUDGED) / len(_FIRST_JUDGED)
        kept = np.mean([above(border * 10.0 / cycles, cycles) for cycles in _FIRST_JUDGED], axis=0)
    stay = first + kept * np.minimum(10.0 / leave, 1e9)
    out = 3.0 / enter
    return passing * stay / (stay + out), passing / (stay + out), kept


ALGORITHM = Algorithm(
    name="ssbj",
    about=__doc__,
    plan=plan,
    run=run,
    options=Options,
    predict=predict,
    pricing=Pricing({**STREAM, **PROBE, **WAITING, **BUILD, **OUTPUT, **SWITCH}, seeks="r_cycles"),
    knobs=(BUFFER_KNOB,),
    paper="ssbj2019 §3",
    access="scan",
    shares_cache=True,
)
