"""SSIJ: semi-streaming index join, with a cache of disk blocks and a plan for the others.

SSIJ gathers stream tuples, answers what cached disk blocks answer, and reads for the rest all at once.

    pending phase: input buffer, until `input_tuples` are there
    online phase:  probe the cached blocks -> hits are output, misses go to the stream buffer
    join phase:    stream buffer full -> read the blocks it needs in disk order, join, all leave

Each block of R has a utility counter, the tuples it could answer lately; a block that was read takes the place of the
cached one with the least utility if its own is higher. A block is cached whole, rare tuples and all.

Needs of R: an index. Keys may repeat: a key is a hit when all blocks of its run are cached.

Memory: M = h_S·v_S + l·v_P + 24 bytes per block of R, cache of l blocks.
Cost:   c_loop = w·(c_H + c_A) + w_N·c_O + blocks·c_I/O(v_P) + w_S·(c_H + c_O + c_E).

>>> import pyarrow as pa
>>> from semistream import open_join
>>> with open_join("ssij", master=pa.table({"k": [1, 2], "v": [10, 20]}), on="k", memory="1MB") as join:
...     rows = [*join.push(pa.record_batch({"k": [2, 7]})), *join.drain()]
>>> pa.Table.from_batches(rows).to_pydict()
{'k': [2, 7], 'v': [20, None]}

Paper: ssij2011 (M. A. Bornea, A. Deligiannakis, Y. Kotidis, V. Vassalos, "Semi-streamed index join for
near-real time execution of ETL transformations", ICDE 2011); described in ssbj2019, section 2.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from semistream.engine.algorithm import Algorithm, Knob, Pricing
from semistream.engine.chunk import JoinStats
from semistream.engine.facts import MasterFacts, StreamFacts
from semistream.engine.options import option
from semistream.engine.snapshot import Snapshot
from semistream.engine.workplace import Workplace
from semistream.loops import blocks
from semistream.loops.lookup import sweep_costs
from semistream.loops.pages import DEFAULT_GAP_BYTES
from semistream.loops.prices import BLOCKS
from semistream.master.base import PageBlock
from semistream.predict.counts import Counts, Workload

Int64s = npt.NDArray[np.int64]

_NO_LISTS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Options(blocks.BlockOptions):
    """Options of SSIJ."""

    input_tuples: int | None = option(
        None,
        "threshold of the input buffer (default: a chunk; a longer batch is its own input buffer)",
        kind=int,
        least=1,
    )
    stream_tuples: int | None = option(
        None, "threshold of the stream buffer (default: what it holds)", kind=int, least=1
    )


def plan(r: MasterFacts, s: StreamFacts, budget: int, options: Options) -> blocks.BlockPlan[Options]:
    """A list per block, and the input buffer."""
    return blocks.plan_blocks(r, s, budget, options, blocks.Lists(input_buffer=True))


class StreamBufferPolicy:
    """Everything that waits is read for at once, and the most useful blocks of that are kept."""

    def __init__(self, plan: blocks.BlockPlan[Options], tables: blocks.BlockTables, stats: JoinStats) -> None:
        self._tables, self._cache, self._area, self._stats = tables, tables.cache, tables.area, stats
        options, capacity = plan.options, tables.area.capacity
        self.input_tuples = min(options.input_tuples or plan.division.chunk_rows, max(capacity // 4, 1))
        self.stream_tuples = options.stream_tuples or capacity

    def arriving(self, count: int) -> None:
        """Nothing to do."""

    def waits(self, lists: Int64s) -> None:
        """Nothing to do."""

    def due(self) -> Int64s:
        full = len(self._area) - self._tables.gathered >= self.stream_tuples
        return self._tables.occupied if full else _NO_LISTS

    def fullest(self) -> Int64s:
        return self._tables.occupied

    def oldest(self) -> Int64s:
        return self._tables.occupied

    def in_turn(self, lists: Int64s) -> Iterator[Int64s]:
        yield lists

    def before_read(self, lists: Int64s) -> None:
        utility, area = self._cache.utility, self._area
        utility[lists] += area.counts[lists]
        # The run at the end of a block is a hit only with the next block in the cache too.
        utility[lists[area.reach[lists] > lists] + 1] += 1

    def keep(self, block: PageBlock, whole: bool) -> None:
        """Cache the blocks just read that are worth more than the least useful ones in the cache."""
        if not whole:
            return
        cache = self._cache
        fresh = np.flatnonzero(cache.directory[block.pages] < 0)
        worth = cache.utility[block.pages[fresh]]
        best = np.argsort(-worth, kind="stable")[: cache.n_frames]
        held = np.where(cache.pages >= 0, cache.utility[cache.pages], np.float32(-1))
        frames = np.argsort(held, kind="stable")[: len(best)]
        count = int(np.count_nonzero(worth[best] > held[frames]))
        self._stats.evicted += int(np.count_nonzero(cache.pages[frames[:count]] >= 0))
        self._stats.switched += count
        cache.store(block, fresh[best[:count]], frames[:count])

    def after_read(self, lists: Int64s) -> None:
        """Nothing to do."""

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, snapshot: Snapshot) -> None:
        """Nothing to do."""


def run(plan: blocks.BlockPlan[Options], work: Workplace) -> blocks.BlockLoop:
    """The block loop that reads for a full stream buffer at once."""
    tables = blocks.BlockTables.make(plan, work)
    return blocks.BlockLoop(plan, work, tables, StreamBufferPolicy(plan, tables, work.stats))


def predict(plan: blocks.BlockPlan[Options], workload: Workload) -> Counts:
    """The SSBJ paper says of SSIJ that it "does not include a mathematical cost model"; this one is ours.

    One join phase works off a full stream buffer of w_S tuples, which lack the l most useful blocks.
    """
    h_S, by_use = blocks.waiting_capacity(plan), blocks.list_shares(plan, workload)
    full = min(plan.options.stream_tuples or h_S, h_S)
    rest = blocks.tuples_to_rest(plan) + full
    if workload.seen < rest:
        # Nothing is read, and so nothing learnt, before the stream buffer is full.
        late = min(full, workload.batch) if workload.drained else full
        left = by_use * (1.0 - blocks.known_lists(by_use, plan.frames, max(workload.seen - late, 0.0)))
    else:
        left = by_use[plan.frames :]
    total = float(left.sum())
    hit = 1.0 - total
    shares = left / total if total > 0 else left
    missed = max(1.0 - hit, 1e-9)
    if workload.drained:
        full = min(full, workload.batch * missed)
    phase = sweep_costs(plan.r, plan.division, DEFAULT_GAP_BYTES, shares, full)
    w = full / missed
    return Counts(
        {
            "cache_hits": hit,
            "cache_misses": missed,
            "appended": missed,
            "expired": missed,
            "iterations": phase.groups / w,
            "reads": phase.reads / w,
            "pages_read": phase.pages / w,
            "bytes_read": phase.bytes / w,
            "master_rows_probed": 1.0,
        },
        memory=blocks.block_memory(plan),
        symbols={"l": plan.frames, "h_S": h_S, "w_N": w * hit, "w_S": full, "p_N": hit},
        delay=missed * w / 2,
        longest_delay=w,
        rest=rest,
    )


ALGORITHM = Algorithm(
    name="ssij",
    about=__doc__,
    plan=plan,
    run=run,
    options=Options,
    predict=predict,
    pricing=Pricing(BLOCKS, mapped=True),
    knobs=(Knob.share("cache_share", 0.0, 0.9),),
    aliases=("semistreamingindexjoin",),
    paper="ssij2011, ssbj2019 §2.3",
    needs_index=True,
)
