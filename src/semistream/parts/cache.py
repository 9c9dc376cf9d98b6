"""The cache H_R with its frequency recorder: all master tuples of a key, or none."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.rows import INT32_MAX, Paged, RowLayout, take_rows
from semistream.columns.validity import AsOf, Validity
from semistream.kernels import cache as kernel
from semistream.kernels import compact as compact_kernel
from semistream.kernels import rows as row_kernel
from semistream.kernels import switching, validity, versions
from semistream.parts.arena import Arena, ArenaShape, BlockPool, Pool
from semistream.parts.runs import Versions

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
#: what `Cache.find` finds, one per code
References = npt.NDArray[np.uint32]

MAX_LOAD = 0.75
_COUNT_CLASSES = 4096
#: part of a cache that may be free after an eviction
_LEAST_USED = 0.25


@dataclass(frozen=True)
class Balance:
    """The cache inequality m·v_R + entry < n·v_S: bytes of an entry and of a row, and the hysteresis.

    Of a key that is to come in, `spreads` times √n are taken off n, which may be chance.
    """

    entry_bytes: float
    row_bytes: float
    factor: float = 1.0
    spreads: float = 1.0


class Judged(IntEnum):
    """Which keys an eviction looks at: those of whole periods, those on probation, or all."""

    SETTLED = switching.JUDGE_SETTLED
    YOUNG = switching.JUDGE_YOUNG
    ALL = switching.JUDGE_ALL


class PairArrays(Protocol):
    """Work arrays for pairs."""

    left: Int64s
    right: Int64s


class ProbeArrays(PairArrays, Protocol):
    """Work arrays of a probe: pairs, who was found, who was missed."""

    misses: Int64s
    found: Bools


class FoundRows:
    """Pairs of stream tuples and the cached rows that `Cache.find` has found for them.

    Each `step` fills `work.left` and `work.right` once.
    """

    def __init__(self, cache: Cache, references: References, work: PairArrays, first_only: bool) -> None:
        self._references, self._arena, self._work, self._first_only = references, cache.arena.state, work, first_only
        self._cursor = np.zeros(2, dtype=np.int64)

    @property
    def unfinished(self) -> bool:
        return bool(self._cursor[0] < len(self._references))

    def step(self) -> int:
        """The next pairs; returns how many."""
        found, work = self._references, self._work
        return int(
            kernel.cache_follow(found, len(found), self._arena, self._cursor, work.left, work.right, self._first_only)
        )


class ValidRows:
    """Pairs of stream tuples and cached rows that were valid at the tuple's time; found and followed in one."""

    def __init__(self, cache: Cache, codes: Int64s, work: ProbeArrays, as_of: AsOf) -> None:
        work.found[: len(codes)] = False
        self._stop = len(codes)
        self._cursor = np.zeros(3, dtype=np.int64)
        arrays = (cache.entries, cache.arena.state, self._cursor, work.left, work.right, work.found, work.misses)
        bounds = as_of.validity.packed(cache.layout)
        self._step = partial(validity.probe_valid, codes, len(codes), *arrays, cache.counting, as_of.times, *bounds)

    @property
    def unfinished(self) -> bool:
        return bool(self._cursor[0] < self._stop)

    @property
    def missed(self) -> int:
        """Tuples that the cache does not answer, listed in `work.misses`."""
        return int(self._cursor[2])

    def step(self) -> int:
        """The next pairs; returns how many."""
        return int(self._step())


def key_capacity(shape: ArenaShape, row_bytes: float, limit_bytes: float) -> float:
    """h_R: keys of one master tuple of `row_bytes` that a cache of `limit_bytes` holds."""
    keys = max(int(limit_bytes / (row_bytes + Cache.entry_bytes())), 8)
    rows = int((limit_bytes - Cache.directory_bytes(keys)) // shape.extent_bytes) * shape.slots(row_bytes)
    return float(max(min(keys, rows), 1))


class Cache:
    """Keys with their master tuples, inside `limit_bytes` for directory, rows and VAR bytes together.

    `max_keys` sizes the directory once; a full directory refuses further keys as a full arena refuses rows. A
    directory that stands elsewhere, in a mapped file, is given as `entries`.
    """

    #: bytes of a cached row before its payload
    HEADER = kernel.ROW_HEADER

    def __init__(
        self,
        arena: Arena,
        layout: RowLayout,
        limit_bytes: int,
        max_keys: int,
        blocks: BlockPool | None = None,
        entries: Int64s | None = None,
    ) -> None:
        self.arena = arena
        self.layout = layout
        self.limit_bytes = limit_bytes
        self.pool = Pool(arena, layout.slot_bytes)
        self.shares_blocks = blocks is not None
        self.blocks = blocks if blocks is not None else BlockPool(arena)
        if entries is None:
            entries = np.full(self.directory_bytes(max_keys) // 8, kernel.EMPTY, dtype=np.int64)
        self.entries = entries
        self.max_keys = max_keys
        self.state = np.zeros(4, dtype=np.int64)
        self.nulls_seen = np.zeros(len(layout.physical), dtype=np.bool_)
        self.evictions = 0
        #: how often it began anew, with other sizes
        self.restarts = 0
        #: a cache that never evicts need not count
        self.counting = True
        #: all of R is here: a key that is not, does not exist
        self.complete = False
        #: how often all counts were halved
        self.halvings = 0
        self._salt = 0
        self._histogram = np.empty(_COUNT_CLASSES, dtype=np.int64)

    @property
    def table(self) -> tuple[Int64s, Int64s, Int64s, Int64s, Int64s, int]:
        """What kernels that free rows want, in the order of `kernels.cache.CACHE`."""
        return self.entries, self.state, self.arena.state, self.pool.state, self.blocks.state, self.layout.chain_at

    @staticmethod
    def directory_bytes(max_keys: int) -> int:
        """Bytes of a directory for `max_keys` keys."""
        return kernel.ENTRY_BYTES * (int(max_keys / MAX_LOAD) + 2)

    def restart(self, limit_bytes: int, max_keys: int) -> None:
        """Forget all keys and go on with other sizes; the arena has taken back all extents."""
        self.entries = np.empty(0, dtype=np.int64)
        self.entries = np.full(self.directory_bytes(max_keys) // 8, kernel.EMPTY, dtype=np.int64)
        self.limit_bytes, self.max_keys = limit_bytes, max_keys
        self.restarts += 1
        self.state[:] = 0
        self.pool.reset()
        self.blocks.reset()

    def grow(self, max_keys: int) -> None:
        """A directory for more keys, or for fewer; old and new exist side by side for a moment."""
        assert self.keys <= max_keys, f"{self.keys} keys do not fit a directory for {max_keys}"
        fresh = np.full(self.directory_bytes(max_keys) // 8, kernel.EMPTY, dtype=np.int64)
        kernel.cache_rehash(self.entries, fresh)
        self.entries = fresh
        self.max_keys = max_keys

    @staticmethod
    def entry_bytes(load: float = MAX_LOAD) -> float:
        """Bytes of the directory per key."""
        return kernel.ENTRY_BYTES / load

    @staticmethod
    def key_bytes(row_slot: int) -> float:
        """Bytes of a key with one master tuple, directory included."""
        return row_slot + Cache.entry_bytes()

    @property
    def keys(self) -> int:
        return int(self.state[kernel.C_KEYS])

    @property
    def rows(self) -> int:
        return int(self.state[kernel.C_ROWS])

    @property
    def extents(self) -> int:
        return self.pool.extents + (0 if self.shares_blocks else self.blocks.extents)

    @property
    def bytes_held(self) -> int:
        return self.entries.nbytes + self.extents * self.arena.extent_bytes

    @property
    def spare_extents(self) -> int:
        within = (self.limit_bytes - self.entries.nbytes) // self.arena.extent_bytes - self.extents
        return max(min(self.arena.free_extents, within), 0)

    @property
    def row_room(self) -> int:
        """Rows that fit without eviction (VAR bytes apart)."""
        return self.pool.ready + self.spare_extents * self.pool.slots_per_extent

    @property
    def is_full(self) -> bool:
        return self.keys >= self.max_keys or self.row_room == 0

    def find(self, codes: Int64s, references: References, misses: Int64s) -> int:
        """Look codes up, for `following`; lists those that are not cached and returns how many they are."""
        return int(kernel.cache_find(codes, len(codes), self.entries, references, misses, self.counting))

    @staticmethod
    def found(references: References) -> Bools:
        """Which of the codes that were looked up are cached, perhaps as absent."""
        return np.not_equal(references, kernel.MISSED)

    def following(self, references: References, work: PairArrays, first_only: bool) -> FoundRows:
        """The rows that were found, step by step; no key may leave the cache between `find` and the last step."""
        return FoundRows(self, references, work, first_only)

    def valid(self, codes: Int64s, work: ProbeArrays, as_of: AsOf) -> ValidRows:
        """A look-up for rows that were valid at the times of an as-of join, step by step."""
        return ValidRows(self, codes, work, as_of)

    @property
    def form(self) -> RowLayout:
        """How the rows stand in memory."""
        return self.layout

    def take(self, rows: Int64s, start: int, count: int, limit: int = INT32_MAX) -> list[pa.Array] | int:
        """Physical master columns of cached rows."""
        return take_rows(self.layout, rows, start, count, self.arena.state, nulls=self.nulls_seen, limit=limit)

    def admit(self, codes: Int64s, starts: Int64s, ends: Int64s, counts: Int64s, block: Paged | None) -> int:
        """Admit keys in order while they fit; run r is rows `starts[r]..ends[r]` of the block, all the key has.

        Without a block all runs are empty: keys known to be absent. Returns how many runs were dealt with (keys
        that are cached already count as such).
        """
        runs = min(len(codes), self.max_keys - self.keys)
        if runs <= 0:
            return 0
        lengths = ends[:runs] - starts[:runs]
        rows_after = np.cumsum(lengths)
        total = int(rows_after[-1])
        ids = np.repeat(starts[:runs] - rows_after + lengths, lengths) + np.arange(total, dtype=np.int64)
        runs = self._fitting_runs(ids, rows_after, block)
        if runs == 0:
            return 0
        slots = np.empty(int(rows_after[runs - 1]), dtype=np.int64)
        filled = kernel.cache_admit(
            codes, starts, ends, counts, runs, self.entries, self.state, self.pool.view, slots, ids
        )
        if block is not None:
            self.pack(block, ids, filled, slots)
        return runs

    def admit_versions(self, codes: Int64s, wanted: Versions, counts: Int64s, block: Paged, between: Validity) -> int:
        """The same for an as-of join: keys with those of their versions that were asked for.

        A key that has some versions already gets the others as well.
        """
        runs = min(len(codes), self.max_keys - self.keys)
        if runs <= 0:
            return 0
        rows_after = wanted.stops[:runs]
        runs = self._fitting_runs(wanted.rows[: int(rows_after[-1])], rows_after, block)
        if runs == 0:
            return 0
        slots, ids = (np.empty(int(rows_after[runs - 1]), dtype=np.int64) for _ in range(2))
        offered = (codes, wanted.stops, wanted.rows, wanted.times, wanted.is_whole, counts, runs)
        rows = (self.pool.view, self.blocks.state, self.layout.chain_at)
        filled = versions.admit_versions(
            *offered, self.entries, self.state, *rows, slots, ids, *between.packed(self.layout)
        )
        self.pack(block, ids, int(filled), slots)
        return runs

    def _fitting_runs(self, ids: Int64s, rows_after: Int64s, block: Paged | None) -> int:
        """How many runs, from the first on, find room; run r has rows of a block, `ids`, as far as `rows_after[r]`."""
        if block is not None and self.layout.has_var:
            return self._fitting_var(ids, rows_after, block)
        return int(np.searchsorted(rows_after, self.row_room, side="right"))

    def fitting(self, ids: Int64s, block: Paged) -> int:
        """How many of these rows of a block, from the first on, the cache has room for."""
        if not self.layout.has_var:
            return min(self.row_room, len(ids))
        return self._fitting_var(ids, np.arange(1, len(ids) + 1), block)

    def _fitting_var(self, ids: Int64s, rows_after: Int64s, block: Paged) -> int:
        """Runs whose rows and VAR blocks both fit."""
        var_bytes = self.layout.var_bytes(block, ids, 0, len(ids))
        room = row_kernel.BLOCK_ROOM
        blocks_after = np.concatenate(([0], np.cumsum(-(-var_bytes // room))))[rows_after]
        extents = -(-np.maximum(rows_after - self.pool.ready, 0) // self.pool.slots_per_extent)
        extents += -(-np.maximum(blocks_after - self.blocks.ready, 0) // self.blocks.slots_per_extent)
        return int(np.searchsorted(extents, self.spare_extents, side="right"))

    def pack(self, block: Paged, ids: Int64s, count: int, slots: Int64s) -> None:
        """Write the payload of rows that have their slots."""
        if count == 0:
            return
        self.layout.pack(block, ids, 0, count, slots)
        self.nulls_seen |= (block.valid[:, : len(self.nulls_seen)] >= 0).any(axis=0)
        if self.layout.has_var:
            self.blocks.pack(self.layout, block, ids, 0, count, slots)

    @property
    def is_nearly_full(self) -> bool:
        """Whether it is full but for what was evicted lately to make room."""
        room = self.row_room
        return self.keys >= (1 - _LEAST_USED) * self.max_keys or room <= _LEAST_USED * (self.rows + room)

    @property
    def is_mostly_empty(self) -> bool:
        """Whether it has room for more than it holds."""
        return self.row_room > self.rows and 2 * self.keys < self.max_keys

    def coldest(self, keys: int) -> float:
        """Requests that the `keys` least frequent keys have had, all together."""
        kernel.cache_count_histogram(self.entries, self._histogram)
        reached = np.minimum(np.cumsum(self._histogram), keys)
        return float(np.diff(reached, prepend=0) @ np.arange(_COUNT_CLASSES))

    def drop_known(self, other: Cache) -> int:
        """Give up all keys that another cache has too, which is asked before this one; returns how many."""
        return int(kernel.cache_drop_known(self.table, other.entries))

    def evict_least(self, keys: int) -> int:
        """Evict about `keys` of the least frequent keys.

        Returns the count of the most frequent key evicted: what a newcomer must exceed to be worth a place.
        """
        kernel.cache_count_histogram(self.entries, self._histogram)
        reached = np.cumsum(self._histogram)
        keys = min(keys, int(reached[-1]))
        if keys == 0:
            return 0
        below = int(np.searchsorted(reached, keys))
        if below >= _COUNT_CLASSES - 1:
            self.age()
            return self.evict_least(keys)
        equal = int(self._histogram[below])
        chance = min((keys - int(reached[below]) + equal) / equal, 1.0)
        self._salt += 1
        self.evictions += int(
            kernel.cache_evict(
                self.table,
                below,
                int(chance * 2**32),
                self._salt * 0x9E3779B97F4A7C1 & (2**63 - 1),
            )
        )
        return below

    def compact(self) -> int:
        """Return extents that the live rows do not need; worth it when many do. Returns how many."""
        wanted = -(-self.pool.live // self.pool.slots_per_extent) + 1
        if self.pool.extents < wanted + max(wanted // 16, 2):
            return 0
        live = np.empty(self.arena.extents_total, dtype=np.int32)
        compact_kernel.live_rows(self.entries, self.arena.state, self.pool.state, live)
        owned = np.flatnonzero(live >= 0)
        by_use = owned[np.argsort(-live[owned], kind="stable")]
        kept = np.full(len(live), -1, dtype=np.int32)
        kept[by_use[wanted:]] = -2
        kept[by_use[:wanted]] = np.arange(len(by_use[:wanted]), dtype=np.int32)
        used = np.zeros((len(by_use[:wanted]), self.pool.slots_per_extent), dtype=np.bool_)
        return int(
            compact_kernel.vacate(
                self.entries,
                self.arena.state,
                self.arena.stack,
                self.pool.state,
                kept,
                by_use[:wanted].astype(np.int32),
                used,
            )
        )

    # ------------------------------------------------------ keys whose rows are collected during a scan of R

    @property
    def switching_keys(self) -> int:
        """Keys that are being collected, not yet seen by the stream."""
        return int(self.state[kernel.C_SWITCHING_KEYS])

    @property
    def newcomers(self) -> int:
        """Keys on probation."""
        metas = self.entries[1::2]
        return int(((metas & (kernel.YOUNG | kernel.SWITCHING) == kernel.YOUNG) & (metas != kernel.EMPTY)).sum())

    @property
    def switching_bytes(self) -> int:
        """Bytes of the rows collected so far."""
        return int(self.state[kernel.C_SWITCHING_ROWS]) * self.pool.slot_bytes

    def collect(self, codes: Int64s, counts: Int64s) -> None:
        """Open entries for keys whose rows are to be collected."""
        switching.mark_switching(codes, counts, len(codes), self.entries, self.state)

    def activate(self) -> None:
        """Show the collected keys to the stream."""
        switching.activate(self.entries, self.state)

    def evict_unbalanced(self, balance: Balance, tuple_bytes: float, whom: Judged) -> int:
        """Evict keys that take more bytes here than their `tuple_bytes` each elsewhere; returns how many."""
        evicted = int(
            switching.evict_unbalanced(
                self.table, tuple_bytes, balance.entry_bytes, balance.row_bytes, balance.factor, whom
            )
        )
        self.evictions += evicted
        return evicted

    def load(self, codes: Int64s, at: int, stop: int, slots: Int64s, ids: Int64s) -> int:
        """Slots for rows `at .. stop - 1` in a cache that is to hold all of R; returns how many were dealt with."""
        return int(kernel.cache_load(codes, at, stop, self.entries, self.state, self.pool.view, slots, ids))

    def age(self) -> None:
        """The past counts half: old favourites fade when the stream changes."""
        self.halvings += 1
        kernel.cache_age(self.entries)
