"""PARTITIONJOIN: partitions of R in memory, a waiting area for each of the others, and a deadline.

PARTITIONJOIN cuts R into ranges of pages and joins at once what falls on a partition in memory.

Other tuples wait in the area of their partition. When all areas together are full, the partition with the most waiting
tuples is loaded, joined with all of them, and kept if it is more useful than the least useful one in memory, whose
place it takes. In the paper a tuple of an unpopular partition may wait for ever; here a partition whose oldest tuple
has waited for `deadline` further stream tuples is loaded first, whoever else waits.

    stream -> partition directory -> in memory: page -> row    (two levels)
                                  -> else: waiting area of the partition -> most waiting, or overdue: load

Needs of R: an index; a range of R is a partition, so with R in key order neighbouring keys are read together. A run of
equal keys may cross partitions.

Memory: M = h_S·v_S + l·v_P + 32 bytes per partition + 4 bytes per page, l pages in memory.
Cost:   c_loop = c_I/O(partition) + w·(c_H + c_A) + w_N·c_O + w_S·(c_H + c_O + c_E).

>>> import pyarrow as pa
>>> from semistream import open_join
>>> master = pa.table({"k": [1, 2], "v": [10, 20]})
>>> with open_join("partitionjoin", master=master, on="k", memory="1MB") as join:
...     rows = [*join.push(pa.record_batch({"k": [2, 7]})), *join.drain()]
>>> pa.Table.from_batches(rows).to_pydict()
{'k': [2, 7], 'v': [20, None]}

Paper: partitionjoin2009 (A. Chakraborty, A. Singh, "A partition-based approach to support streaming updates
over persistent data in an active datawarehouse", IPDPS 2009); described in ssbj2019, section 2.3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from semistream.engine.algorithm import Algorithm, Knob, Pricing
from semistream.engine.chunk import JoinStats
from semistream.engine.facts import MasterFacts, StreamFacts
from semistream.engine.options import option
from semistream.engine.snapshot import MOST, Snapshot, whole
from semistream.engine.workplace import Workplace
from semistream.loops.blocks import (
    BlockLoop,
    BlockOptions,
    BlockPlan,
    BlockTables,
    Lists,
    block_memory,
    known_lists,
    list_shares,
    plan_blocks,
    tuples_to_rest,
    waiting_capacity,
)
from semistream.loops.pages import mapped_group
from semistream.loops.prices import BLOCKS
from semistream.master.base import ALIGNMENT, PageBlock
from semistream.predict.counts import Counts, Workload
from semistream.predict.keys import Floats
from semistream.predict.sharing import needed_pages

Int64s = npt.NDArray[np.int64]

#: reading this many bytes in a row costs little more than the seek before them
_PARTITION_BYTES = 256 << 10
_LEAST_PARTITIONS = 16
_DEADLINE_FILLS = 10
#: arrival of the oldest tuple, and the place of the partition in memory
_BYTES_PER_PARTITION = 12
#: no arrival: it is later than any, and those of restored tuples may be below 0
_NOBODY = np.iinfo(np.int64).max
_FREE = -1
_NO_LISTS = np.empty(0, dtype=np.int64)
#: utilities are halved after eight stream tuples per page: on average they hold twelve
_REMEMBERED_PER_PAGE = 12.0


@dataclass(frozen=True)
class Options(BlockOptions):
    """Options of PARTITIONJOIN."""

    partition_pages: int | None = option(
        None, "pages per partition (default: 256 KiB of them, but at least 16 partitions)", kind=int, least=1
    )
    deadline: int | None = option(
        None,
        "stream tuples after a tuple's own for which it may wait, looked at after each chunk "
        "(default: ten times what the waiting area holds)",
        kind=int,
        least=1,
    )


def plan(r: MasterFacts, s: StreamFacts, budget: int, options: Options) -> BlockPlan[Options]:
    """A list per partition."""
    pages = max(r.n_pages, 1)
    if options.partition_pages is not None:
        partition = min(options.partition_pages, pages)
    else:
        page_bytes = max(r.page_rows * r.row_bytes, 1.0)
        partition = max(min(int(_PARTITION_BYTES / page_bytes), -(-pages // _LEAST_PARTITIONS)), 1)
    return plan_blocks(r, s, budget, options, Lists(partition, extra_bytes=_BYTES_PER_PARTITION))


class PartitionPolicy:
    """One partition at a time: the one that is overdue, or for which the most tuples wait."""

    input_tuples = 1

    def __init__(self, plan: BlockPlan[Options], tables: BlockTables, stats: JoinStats) -> None:
        self._cache, self._area, self._stats = tables.cache, tables.area, stats
        self._pages = plan.lists.pages
        self.deadline = plan.options.deadline or _DEADLINE_FILLS * tables.area.capacity
        #: stream tuples so far
        self.seen = 0
        #: number of the stream tuple that waits longest for each partition
        self.oldest_of = np.full(tables.n_lists, _NOBODY, dtype=np.int64)
        #: partition in each place of the cache
        self.resident = np.full(tables.cache.n_frames // self._pages, _FREE, dtype=np.int64)
        #: place of the partition that is being read; -1: it is not kept
        self._place = -1
        self._begin = 0

    def arriving(self, count: int) -> None:
        self.seen += count

    def waits(self, lists: Int64s) -> None:
        fresh = lists[self.oldest_of[lists] == _NOBODY]
        self.oldest_of[fresh] = self.seen

    # ------------------------------------------------------------------------------ what is read first

    def due(self) -> Int64s:
        """The partition whose oldest tuple is past the deadline the longest."""
        longest = self.oldest()
        if len(longest) and self.seen - int(self.oldest_of[longest[0]]) >= self.deadline:
            return longest
        return _NO_LISTS

    def oldest(self) -> Int64s:
        longest = self.oldest_of.argmin()
        return _NO_LISTS if self.oldest_of[longest] == _NOBODY else _only(longest)

    def fullest(self) -> Int64s:
        overdue = self.due()
        return overdue if len(overdue) else _only(np.argmax(self._area.counts))

    def in_turn(self, lists: Int64s) -> Iterator[Int64s]:
        return iter(lists.reshape(-1, 1))

    # -------------------------------------------------------------------------------------- what is kept

    def before_read(self, lists: Int64s) -> None:
        partition = int(lists[0])
        self._cache.utility[partition] += self._area.counts[partition]
        self._begin = partition * self._pages
        self._place = self._place_for(partition)

    def _place_for(self, partition: int) -> int:
        """A place in memory that is free or held by a less useful partition, emptied; -1: there is none."""
        if len(self.resident) == 0:
            return -1
        utility = self._cache.utility
        worth = np.where(self.resident >= 0, utility[self.resident], np.float32(-1))
        place = int(np.argmin(worth))
        before = int(self.resident[place])
        if before == partition:
            return -1
        if before != _FREE:
            if worth[place] >= utility[partition]:
                return -1
            self._stats.evicted += 1
            self._cache.drop(place * self._pages + np.arange(self._pages, dtype=np.int64))
        return place

    def keep(self, block: PageBlock, whole: bool) -> None:
        """A run of equal keys may go on behind the partition: its own pages are kept."""
        if self._place >= 0:
            own = block.pages[block.pages < self._begin + self._pages]
            frames = own + (self._place * self._pages - self._begin)
            self._cache.store(block, np.arange(len(own), dtype=np.int64), frames)

    def after_read(self, lists: Int64s) -> None:
        partition = int(lists[0])
        if self._place >= 0:
            self.resident[self._place] = partition
            self._stats.switched += 1
        self.oldest_of[partition] = _NOBODY

    # ------------------------------------------------------------------------------------- the snapshot

    def state(self) -> dict[str, Any]:
        occupied = np.flatnonzero(self.oldest_of != _NOBODY)
        ages = self.seen - self.oldest_of[occupied]
        return {
            "partition_pages": self._pages,
            "waiting": [[int(p), int(age)] for p, age in zip(occupied, ages, strict=True)],
        }

    def restore(self, snapshot: Snapshot) -> None:
        cut_as_here = snapshot.whole("partition_pages", 1, MOST) == self._pages
        most = len(self.oldest_of) - 1 if cut_as_here else MOST
        waiting = {
            whole(partition, 0, most, "partition"): whole(age, 0, MOST, "age")
            for partition, age in snapshot.pairs("waiting")
        }
        if cut_as_here:
            for partition, age in waiting.items():
                self.oldest_of[partition] = self.seen - age
        elif waiting:
            # Cut anew, a partition may hold the oldest tuple of all.
            self.oldest_of[self._area.counts > 0] = self.seen - max(waiting.values())
        # Whatever the state says, nobody may wait without an age.
        self.waits(np.flatnonzero(self._area.counts))


def _only(partition: np.int64) -> Int64s:
    return np.array([partition], dtype=np.int64)


def run(plan: BlockPlan[Options], work: Workplace) -> BlockLoop:
    """The block loop that reads one partition at a time."""
    tables = BlockTables.make(plan, work)
    return BlockLoop(plan, work, tables, PartitionPolicy(plan, tables, work.stats))


def predict(plan: BlockPlan[Options], workload: Workload) -> Counts:
    """The papers that describe PARTITIONJOIN give no equation; this one is ours.

    The partition with the most waiting tuples is loaded, so all are loaded at about the same number n and hold n/2 on
    average: n = 2·h_S over the partitions that are not in memory, whatever the skew. A partition that is asked for too
    rarely to get there before the deadline is loaded with fewer.
    """
    r, pages, h_S = plan.r, plan.lists.pages, waiting_capacity(plan)
    places = plan.frames // pages
    hit, shares, n = _in_memory(plan, workload, places, h_S)
    rest = tuples_to_rest(plan) + h_S
    if workload.seen < rest:
        late = min(h_S, workload.batch) if workload.drained else h_S
        by_use = list_shares(plan, workload)
        hit = min(hit, float((by_use * known_lists(by_use, places, max(workload.seen - late, 0.0))).sum()))
    missed = max(1.0 - hit, 1e-9)
    deadline = (plan.options.deadline or _DEADLINE_FILLS * h_S) * missed
    asked = shares[shares > 0]
    n_of = [max(min(n, deadline * share), 1.0) for share in asked.tolist()]
    loads = sum(share / number for share, number in zip(asked.tolist(), n_of, strict=True)) * missed
    if workload.drained:
        waiting = workload.batch * missed
        last = min(h_S, waiting)
        loads = (max(waiting - last, 0.0) * loads / missed + needed_pages(shares, last)) / workload.batch
    group = plan.division.pages if r.direct else mapped_group(r, plan.division.buffer)
    reads = loads * math.ceil(pages / group)
    read_pages = min(pages, r.n_pages)
    counts = {
        "cache_hits": hit,
        "cache_misses": missed,
        "appended": missed,
        "expired": missed,
        "iterations": loads,
        "reads": reads,
        "pages_read": loads * read_pages,
        "bytes_read": loads * read_pages * r.page_bytes + reads * ALIGNMENT
        if r.direct
        else loads * read_pages * r.page_rows * r.row_bytes,
        "master_rows_probed": 1.0,
    }
    w_S = missed / loads if loads else math.inf
    return Counts(
        counts,
        memory=block_memory(plan),
        symbols={"l": places, "h_S": h_S, "w_N": w_S * hit / missed, "w_S": w_S, "p_N": hit},
        delay=h_S,
        longest_delay=deadline / missed,
        rest=rest,
    )


def _in_memory(plan: BlockPlan[Options], workload: Workload, places: int, h_S: float) -> tuple[float, Floats, float]:
    """Share of the stream that partitions in memory answer, the shares of those that are loaded, and n.

    A partition just loaded is worth the n tuples that waited for it. It takes the place of any that answered fewer
    lately, so only those above stay; the other places go round.
    """
    shares = list_shares(plan, workload)
    n = 2.0 * h_S / max(len(shares) - places, 1)
    worth = shares * _REMEMBERED_PER_PAGE * max(plan.r.n_pages, 1)
    stay = min(int(np.count_nonzero(worth > n)), places)
    rest = shares[stay:]
    total = float(rest.sum())
    if total <= 0:
        return 1.0, rest, n
    # A partition is loaded as often as it is asked for, so it is met in memory with its share.
    going_round = (places - stay) * float((rest * rest).sum()) / total
    return min(float(shares[:stay].sum()) + going_round, 1.0), rest / total, n


ALGORITHM = Algorithm(
    name="partitionjoin",
    about=__doc__,
    plan=plan,
    run=run,
    options=Options,
    predict=predict,
    pricing=Pricing(BLOCKS, seeks="iterations", mapped=True),
    knobs=(
        Knob.share("cache_share", 0.0, 0.9),
        Knob("partition_pages", lambda r, m: 1, lambda r, m: max(r.n_pages / 4, 1)),
    ),
    aliases=("partitionbasedjoin",),
    paper="partitionjoin2009, ssbj2019 §2.3",
    needs_index=True,
)
