"""SSBJ: the semi-stream balanced join, whose cache is composed by an inequality instead of a heuristic."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from enum import Enum
from typing import Any

import pyarrow as pa

from semistream.errors import ConfigError
from semistream.kernels import cache as cache_kernel
from semistream.kernels import fifo as fifo_kernel
from semistream.kernels.fifo import FIFO_HEADER
from semistream.master.base import Master, PageBlock
from semistream.operators.chunk import Chunk
from semistream.operators.resident import load_all, resident_bytes
from semistream.operators.scan import ScanJoin
from semistream.operators.snapshot import Snapshot
from semistream.parts.arena import Arena, block_pool
from semistream.parts.cache import MAX_LOAD, Cache
from semistream.parts.key_filter import FilterPlan, KeyFilter
from semistream.parts.pending import FifoPending
from semistream.parts.switching import collect_rows
from semistream.spec import JoinSpec

EVICTION_CYCLES = 10
_FIRST_DIRECTORY = 0.02
_STEPS_AHEAD = 8
_FILTER_TRIAL = 1 << 16


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


class SSBJ(ScanJoin):
    """SSBJ keeps every key where it takes fewer bytes: its m master tuples in the cache, or its n tuples per R-cycle
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

    Needs of R: nothing. Exact for many-to-many; optimal in memory for any distribution (Theorem 1).

    Memory: M = (b + h_R·f)·v_R + w_S·R_t/b·(v_P + f·v_S).
    Cost:   c_loop = c_I/O(b) + b·(c_H + c_B) + w_N·(c_S + c_H + c_O) + w_S·(c_E + c_S + c_A + c_O).

    Options: `switching_factor`, hysteresis of the inequality (default 1: none, which is best).

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

    name = "ssbj"
    paper = "ssbj2019 §3"
    shares_cache = True

    def __init__(
        self,
        master: Master,
        spec: JoinSpec,
        budget_bytes: int,
        *,
        switching_factor: float = 1.0,
        **common: Any,
    ) -> None:
        if not switching_factor > 0:
            raise ConfigError(f"switching_factor={switching_factor} is out of range; allowed are numbers above 0")
        self.switching_factor = switching_factor
        super().__init__(master, spec, budget_bytes, **common)

    def _build_tables(self, arena: Arena) -> None:
        self._total = self.budget.spare
        held = load_all(self, arena) if self.reader.n_rows > 0 and resident_bytes(self) <= self._total else None
        self.rc = 0
        self._restored = 0
        self.state = CycleState.PHASE_OUT
        self._planned = 0
        self.resident = held is not None
        if held is not None:
            self.cache = held
            self.pending = FifoPending(arena, self._stream_layout(FIFO_HEADER), 0)
            self._copy_read_counts()
            return
        plan = FilterPlan.make(self.reader.n_rows, self._total, self.master.code_range)
        self.filter: KeyFilter | None = KeyFilter(plan) if plan is not None else None
        if self.filter is not None:
            self.budget.hold("key filter", self.filter.bytes_held)
            self._total -= self.filter.bytes_held
        keys = max(int(_FIRST_DIRECTORY * self._total / self.entry_bytes), 8)
        self._growth_bytes = self._growth_keys = 0
        blocks = block_pool(arena) if self._master_layout.has_var or self._stream.has_var else None
        self.cache = Cache(arena, self._master_layout, self._total, keys, blocks)
        layout = self._stream_layout(FIFO_HEADER, counter=True)
        self.pending = FifoPending(arena, layout, self._total, blocks)
        self._blocks = blocks
        self._share_out()

    # ------------------------------------------------------------------------------- who owns which bytes

    @property
    def _block_bytes(self) -> int:
        if self.resident or self._blocks is None:
            return 0
        return self._blocks.extents * self.pending.arena.extent_bytes

    @property
    def _to_collect(self) -> int:
        """Bytes the switching cycle still has to find room for."""
        collected = int(self.cache.state[cache_kernel.C_SWITCHING_ROWS]) * self.cache.pool.slot_bytes
        return max(self._planned - collected, 0)

    def _share_out(self) -> None:
        """The pending table may take what the cache leaves, less what the next few steps may collect."""
        steps_left = max(self.k - self.position, 1)
        ahead = self._to_collect * min(_STEPS_AHEAD, steps_left) // steps_left
        ahead += 2 * self.cache.arena.extent_bytes + self._growth_bytes
        self.pending.limit_bytes = self._total - self.cache.bytes_held - self._block_bytes - ahead
        self.cache.limit_bytes = self._total - self.pending.bytes_held - self._block_bytes

    @property
    def _tuples_per_cycle(self) -> float:
        """Adapted: they fill what is left when the switching cycle will have collected its rows."""
        room = self._total - self.cache.bytes_held - self._block_bytes - self._to_collect - self._growth_bytes
        if self.pending.layout.has_var:
            room += self._block_bytes
        return room / self.pending.tuple_bytes

    def _settle(self) -> None:
        super()._settle()
        self.budget.hold("cache", self.cache.bytes_held)
        if not self.resident:
            self.budget.hold("var blocks", self._block_bytes)
            self._share_out()

    # ------------------------------------------------------------------------------------------ phases

    def _consume(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        if not self.resident:
            yield from super()._consume(chunk)
            return
        missed = yield from self._probe_cache(self.cache, chunk, self.scratch)
        self.stats.cache_hits += missed
        self.stats.cache_misses -= missed
        self.stats.finished += missed
        yield from self._emit_unmatched(self._take_chunk(chunk), self.scratch.misses, missed)

    def _cache_phase(self, chunk: Chunk) -> Generator[pa.RecordBatch, None, int]:
        missed = yield from self._probe_cache(self.cache, chunk, self.scratch)
        if self.filter is None or not self.filter.ready or missed == 0:
            return missed
        absent = self.scratch.done
        kept = self.filter.split(chunk.codes, self.scratch.misses, missed, absent)
        lost = missed - kept
        self.stats.cache_hits += lost
        self.stats.cache_misses -= lost
        self.stats.finished += lost
        yield from self._emit_unmatched(self._take_chunk(chunk), absent, lost)
        return kept

    def _begin_cycle(self) -> None:
        super()._begin_cycle()
        self.rc += 1
        self.state = CycleState(self.rc % 3)
        if self.rc == 2 and self.filter is not None:
            self.filter.ready = True
        if self.state is CycleState.INCREMENTING:
            self._planned = 0
            self._drop_idle_filter()
        elif self.state is CycleState.PHASE_OUT:
            self._evict(len(CycleState), probation=True)
            cache_kernel.cache_activate(self.cache.entries, self.cache.state)
            self._planned = 0
        if self.rc % EVICTION_CYCLES == 0:
            self._evict(EVICTION_CYCLES, probation=False)
        self._grow_directory()
        self._share_out()

    def _grow_directory(self) -> None:
        """A cache that runs out of entries gets more: room is set aside during one cycle and used after it."""
        cache = self.cache
        # Evictions have freed bytes that the ledger does not know of yet.
        self._settle()
        if self._growth_bytes and self.budget.spare >= self._growth_bytes:
            self.budget.hold("directory growth", self._growth_bytes)
            cache.grow(self._growth_keys)
            self.budget.hold("directory growth", 0)
            self._growth_bytes = 0
        elif cache.keys > 0.9 * cache.max_keys:
            # By half where keys were turned away for want of an entry.
            self._growth_keys = cache.max_keys * (6 if cache.keys >= cache.max_keys else 5) // 4
            self._growth_bytes = cache.directory_bytes(self._growth_keys)

    def _drop_idle_filter(self) -> None:
        """A filter that spares H_S fewer of the tuples than it takes of the bytes is of no use: the tables get them."""
        if self.filter is None or self.filter.asked < _FILTER_TRIAL:
            return
        share = self.filter.bytes_held / (self._total + self.filter.bytes_held)
        if self.filter.absent < share * self.filter.asked:
            self._total += self.filter.bytes_held
            self.filter = None
            self.budget.hold("key filter", 0)
        else:
            self.filter.asked = self.filter.absent = 0

    @property
    def entry_bytes(self) -> float:
        """What a cached key takes besides its rows."""
        return cache_kernel.ENTRY_BYTES / MAX_LOAD

    def _before_expiry(self, count: int) -> None:
        """Incrementing state: tuples that leave know m, so the cache inequality is evaluated for their keys.

        Restored ones do not: they have met part of R before, in another join.
        """
        restored = min(count, self._restored)
        self._restored -= restored
        if self.state is not CycleState.INCREMENTING or restored:
            return
        pending, cache = self.pending, self.cache
        self._planned += int(
            fifo_kernel.fifo_name_keys(
                count,
                pending.buckets,
                pending.arena.state,
                pending.pool.state,
                pending.layout.counter_at,
                cache.entries,
                cache.state,
                pending.tuple_bytes,
                self.entry_bytes,
                self._row_bytes,
                self.switching_factor,
                cache.max_keys,
                max(pending.bytes_held // 2 - self._planned, 0),
            )
        )

    @property
    def _row_bytes(self) -> float:
        """v_R as it really is."""
        size = float(self.cache.pool.slot_bytes)
        if self.cache.layout.has_var:
            size += self.master.row_bytes
        return size

    def _after_probe(self, block: PageBlock) -> None:
        if self.filter is not None and not self.filter.ready:
            self.filter.add(self.disk.codes, block.n_rows)
        if self.state is CycleState.SWITCHING:
            keys = int(self.cache.state[cache_kernel.C_SWITCHING_KEYS])
            taken = collect_rows(self.cache, block, self.disk.codes, self.scratch.slots, make_room=False)
            self.stats.switched += taken
            if keys:
                self._planned = self._planned * int(self.cache.state[cache_kernel.C_SWITCHING_KEYS]) // keys

    def _evict(self, cycles: int, probation: bool) -> None:
        """Keys that have become too rare, or never were frequent enough, go back to the disk phase."""
        cache = self.cache
        cache.evictions += int(
            cache_kernel.cache_evict_unbalanced(
                cache.entries,
                cache.arena.state,
                cache.pool.state,
                cache.state,
                cache.blocks.state,
                cache.layout.chain_at,
                self.pending.tuple_bytes / cycles,
                self.entry_bytes,
                self._row_bytes,
                self.switching_factor,
                probation,
            )
        )
        self.stats.evicted = cache.evictions
        cache.compact()

    def _restore(self, snapshot: Snapshot) -> None:
        super()._restore(snapshot)
        self._restored = len(self.pending)
