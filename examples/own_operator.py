"""PLAINSWEEPJOIN: write an algorithm of your own, register it, and check it against a join that is plainly right.

It sorts the tuples of each chunk by key and reads just the pages that they need, in order. It has no cache.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from semistream import open_join
from semistream.algorithms.registry import ALGORITHMS
from semistream.engine.algorithm import Algorithm
from semistream.engine.chunk import Chunk
from semistream.engine.division import divide
from semistream.engine.facts import MasterFacts, StreamFacts
from semistream.engine.options import CommonOptions
from semistream.engine.plan import Plan
from semistream.engine.workplace import Workplace
from semistream.loops.lookup import LookupLoop, Sweep
from semistream.loops.pages import PageGroups
from semistream.testing import assert_same_rows, reference_join, run_join, split


def plan(r: MasterFacts, s: StreamFacts, budget: int, options: CommonOptions) -> Plan[CommonOptions]:
    """Nothing is kept between chunks, so index and buffers are all there is."""
    return Plan(r, s, budget, options, divide(r, budget, options))


class PlainSweep:
    """Finds the rows of a chunk's tuples in one ordered sweep."""

    def __init__(self, work: Workplace, direct: bool) -> None:
        self._work, self._pages = work, PageGroups(work, direct)

    def join(self, chunk: Chunk, ids: np.ndarray) -> Iterator[pa.RecordBatch]:
        tuples = self._work.output.of_chunk(chunk)
        sweep = Sweep(self._work, self._pages, tuples, [(chunk.codes[ids], ids)])
        for group in sweep.groups():
            yield from sweep.pairs(group)


def run(plan: Plan[CommonOptions], work: Workplace) -> LookupLoop:
    """The look-up loop with this way of finding rows."""
    return LookupLoop(work, PlainSweep(work, plan.r.direct))


ALGORITHM = Algorithm(name="plainsweepjoin", about=__doc__, plan=plan, run=run, needs_index=True)

# In the package this is one line of the registry.
ALGORITHMS[ALGORITHM.name] = ALGORITHM

products = pa.table({"sku": range(5000), "name": [f"product {sku}" for sku in range(5000)]})
orders = pa.table({"order": range(3000), "sku": [order * 17 % 6000 for order in range(3000)]})

with open_join("plainsweepjoin", master=products, on="sku", how="left", memory="4MB") as join:
    rows = run_join(join, split(orders, 1000))
    assert_same_rows(rows, reference_join(orders, products, on="sku", how="left"))
    print(f"{rows.num_rows} rows, {join.stats.unmatched} without a product: the same as the reference join")
