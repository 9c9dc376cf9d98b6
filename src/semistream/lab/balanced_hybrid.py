"""BALANCEDHYBRIDJOIN: HYBRIDJOIN behind a cache that the cache inequality composes. For experiments only.

ssbj2019 (section 5) says that the inequality could be applied over HYBRIDJOIN as well, and leaves it at that. This is
what it takes. In HYBRIDJOIN a key's tuples wait from one load of their page to the next, so their number grows from 0
to the n that leave together, and n/2 of them wait on average. A key belongs in the cache while

    m·v_R + entry < n/2 · v_S

It is let in when its tuples leave H_S, for then its master tuples are at hand and n is known. A cached key is judged
again after ten mean waits: of its hits h in that time, h/10 would have waited.

H_S begins with half of the tables and gets what the cache leaves, little by little: more tuples that wait make more
keys worth caching, so both grow towards their balance from below. Slots of H_S are not given back, which is why it
must not begin with all.

Needs of R: an index on the key.

Memory: M = d·v_R + h_R·(v_R + entry) + h_S·(v_S·f + v_Q).
Cost:   that of CACHEJOIN.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.algorithms.registry import ALGORITHMS
from semistream.engine.algorithm import BUFFER_KNOB, Algorithm, Pricing
from semistream.engine.chunk import Chunk
from semistream.engine.division import divide
from semistream.engine.facts import MasterFacts, StreamFacts
from semistream.engine.options import CommonOptions
from semistream.engine.plan import Plan
from semistream.engine.workplace import Workplace
from semistream.loops.index import DiskPhase, IndexLoop, IndexPlan, StillFront, index_tables
from semistream.loops.prices import CACHE
from semistream.master.base import PageBlock
from semistream.parts.cache import Balance, Cache, Judged
from semistream.parts.pending import LinkedPending, runs_of

Int64s = npt.NDArray[np.int64]

NAME = "balancedhybridjoin"
#: mean waits after which a cached key is judged, as SSBJ judges every tenth R-cycle
_JUDGED_AFTER = 10
#: the directory begins with this part of the tables, and grows by half when it is nine tenths full
_FIRST_DIRECTORY, _FULL = 0.02, 0.9
#: H_S begins with this part, and gets this part of what is free when the cache has grown by no more than so much
_FIRST_PENDING, _GIVEN, _STILL = 0.5, 0.5, 0.01


def plan(r: MasterFacts, s: StreamFacts, budget: int, options: CommonOptions) -> IndexPlan[CommonOptions]:
    """Cache and H_S share the tables; the plan names them under H_S."""
    division = divide(r, budget, options)
    return index_tables(r, s, budget, division).planned(Plan(r, s, budget, options, division))


class BalancedIndexFront(StillFront):
    """The cache of keys that take fewer bytes in it than in H_S."""

    cache: Cache

    def __init__(self, cache: Cache, pending: LinkedPending, work: Workplace, total: int) -> None:
        super().__init__(cache, work)
        self._work, self._pending, self._total = work, pending, total
        row_bytes = cache.pool.slot_bytes + (work.master.row_bytes if cache.layout.has_var else 0.0)
        self._balance = Balance(Cache.entry_bytes(), row_bytes)
        #: bytes of a tuple that waits: its slot, and its entry in a directory that is sized for as many keys
        slot, directory = pending.pool.slot_bytes, pending.directory_bytes
        self._tuple_bytes = slot * (1 + directory / max(total - directory, 1))
        self._since_step = self._since_judged = 0
        #: at the last step: bytes of the cache, hits so far, and the share of the stream that came to wait since
        self._cached_before = self._hits_before = 0
        self._missed_share = 1.0
        self._divide(int(_FIRST_PENDING * total))

    def _divide(self, pending_bytes: int) -> None:
        self._pending.limit_bytes = pending_bytes
        self.cache.limit_bytes = self._total - pending_bytes

    @property
    def mean_wait(self) -> float:
        """Stream tuples that come while one waits, by Little's law: who waits over who comes to wait."""
        return len(self._pending) / self._missed_share

    def settle(self) -> None:
        super().settle()
        self._work.stats.evicted = self.cache.evictions

    def answer(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        # Before the first load H_S only fills, and says nothing about how long a tuple waits.
        if self._work.stats.iterations:
            self._since_step += chunk.n_rows
            self._since_judged += chunk.n_rows
        wait = self.mean_wait
        if self._since_judged >= _JUDGED_AFTER * wait > 0:
            per_hit = self._tuple_bytes * wait / self._since_judged
            self.cache.evict_unbalanced(self._balance, per_hit, Judged.SETTLED)
            self.cache.compact()
            self._since_judged = 0
        if self._since_step >= wait > 0:
            self._give()
        yield from super().answer(chunk)

    def _give(self) -> None:
        """H_S gets a part of what is free, once the cache has about what it wants."""
        hits = self._work.stats.cache_hits
        self._missed_share = max(1.0 - (hits - self._hits_before) / self._since_step, 0.01)
        self._hits_before, self._since_step = hits, 0
        grown = self.cache.bytes_held - self._cached_before
        self._cached_before = self.cache.bytes_held
        free = self._total - self.cache.bytes_held - self._pending.limit_bytes
        if free > 0 and grown <= _STILL * self._total:
            self._divide(self._pending.limit_bytes + int(_GIVEN * free))

    def matched(self, block: PageBlock, codes: Int64s, done: Int64s, count: int) -> None:
        if count == 0:
            return
        self._work.stats.frequency_checks += count
        keys, tuples = self._pending.lengths(done, count)
        # What one master tuple takes is the least there is: most keys need not be looked up.
        wanted = np.flatnonzero(self._worth(np.ones(1, dtype=np.int64), tuples))
        if len(wanted) == 0:
            return
        keys, tuples = keys[wanted], tuples[wanted]
        starts, ends = runs_of(codes, block.n_rows, keys)
        worth = np.flatnonzero(self._worth(ends - starts, tuples))
        ids = block.row_ids(starts[worth])
        self._admit(keys[worth], ids, ids + (ends - starts)[worth], tuples[worth], block)

    def absent(self, done: Int64s, count: int) -> None:
        """A key that R lacks takes its entry only."""
        keys, tuples = self._pending.lengths(done, count)
        worth = np.flatnonzero(self._worth(np.zeros(1, dtype=np.int64), tuples))
        if len(worth):
            nothing = np.zeros(len(worth), dtype=np.int64)
            self._admit(keys[worth], nothing, nothing, tuples[worth], None)

    def _worth(self, rows: Int64s, tuples: Int64s) -> npt.NDArray[np.bool_]:
        """The cache inequality, half of the tuples that left together having waited on average."""
        balance = self._balance
        return np.asarray(balance.entry_bytes + rows * balance.row_bytes < tuples / 2 * self._tuple_bytes)

    def _admit(self, keys: Int64s, starts: Int64s, ends: Int64s, tuples: Int64s, block: PageBlock | None) -> None:
        """Let keys in while there is room, as if their hits had been counted since the others'."""
        if self.cache.keys > _FULL * self.cache.max_keys:
            self._grow_directory()
        # n tuples came in two mean waits.
        hits = tuples * self._since_judged / max(2 * self.mean_wait, 1.0)
        self._work.stats.switched += self.cache.admit(keys, starts, ends, np.ceil(hits).astype(np.int64), block)

    def _grow_directory(self) -> None:
        cache, keys = self.cache, self.cache.max_keys * 3 // 2
        size = Cache.directory_bytes(keys)
        if cache.bytes_held + size <= cache.limit_bytes:
            self.settle()
            self._budget.hold("directory growth", size)
            cache.grow(keys)
            self._budget.hold("directory growth", 0)
            self.settle()


def run(plan: IndexPlan[CommonOptions], work: Workplace) -> IndexLoop:
    """HYBRIDJOIN's loop behind the balanced cache, both tables in one arena."""
    arena, total = work.arena(plan.arena), plan.pending_bytes
    pending = LinkedPending(arena, work.intake.layout(LinkedPending.HEADER), total)
    keys = max(int(_FIRST_DIRECTORY * total / Cache.entry_bytes()), 8)
    cache = Cache(arena, work.row_layout, total, keys)
    front = BalancedIndexFront(cache, pending, work, total)
    return IndexLoop(DiskPhase(work, pending, front), front)


ALGORITHM = Algorithm(
    name=NAME,
    about=__doc__,
    plan=plan,
    run=run,
    pricing=Pricing(CACHE),
    knobs=(BUFFER_KNOB,),
    paper="ssbj2019 §5",
    needs_index=True,
)


@contextmanager
def known() -> Iterator[None]:
    """While this lasts the algorithm can be opened by its name. It is none of those that users are offered."""
    if NAME in ALGORITHMS:
        yield
        return
    ALGORITHMS[NAME] = ALGORITHM
    try:
        yield
    finally:
        del ALGORITHMS[NAME]
