"""MESHJOIN: the scan join all others of the family descend from.

MESHJOIN amortises one scan of R over all tuples that wait in memory.

R is cut into k partitions and the queue into k chunks; every step loads one partition, probes the waiting tuples
with it, drops the chunk that has met all k, and admits a new one. k is the parameter, so the disk buffer of
b = R_t / k tuples grows with R.

Needs of R: nothing (no index, no order, keys may repeat). Skew in the stream does not help it.

Memory: M = b·v_R + w·k·(v_P + f·v_S), b = R_t / k.
Cost:   c_loop = c_I/O(b) + b·c_H + w·(c_S + c_A + c_O + c_E).

>>> import pyarrow as pa
>>> from semistream import open_join
>>> parts = pa.table({"part": [1, 2, 2], "supplier": ["a", "b", "c"]})
>>> with open_join("meshjoin", master=parts, on="part", memory="1MB") as join:
...     rows = [*join.push(pa.record_batch({"part": [2, 9]})), *join.drain()]
>>> pa.Table.from_batches(rows).sort_by("supplier").to_pydict()
{'part': [2, 2, 9], 'supplier': ['b', 'c', None]}

Paper: meshjoin2008 (N. Polyzotis et al., "Meshing streaming updates with persistent data in an active data
warehouse", TKDE 2008); described in ssbj2019, section 2.2.
"""

from __future__ import annotations

from dataclasses import dataclass

from semistream.engine.algorithm import Algorithm, Knob
from semistream.engine.division import Needs, divide
from semistream.engine.facts import MasterFacts, StreamFacts
from semistream.engine.options import CommonOptions, WaitingOptions, option
from semistream.engine.workplace import Workplace
from semistream.loops.prices import MESH
from semistream.loops.scan import PlainFront, ScanLoop, ScanPlan, scan_arena, scan_without_cache
from semistream.parts.pending import FifoPending, fifo_capacity
from semistream.predict.counts import Counts, Workload


@dataclass(frozen=True)
class Options(WaitingOptions):
    """Options of MESHJOIN."""

    k: int | None = option(
        None,
        "number of partitions (default: as many as a disk buffer of a tenth of the budget asks for)",
        kind=int,
        least=1,
    )


def plan(r: MasterFacts, s: StreamFacts, budget: int, options: Options) -> ScanPlan[Options]:
    """k decides the disk buffer: b = R_t / k. All that is left is H_S."""
    pages = None if options.k is None else max(-(-r.n_pages // options.k), 1)
    division = divide(r, budget, options, Needs(buffer_bytes=None if pages is None else r.buffer_bytes(pages)))
    arena, slot = scan_arena(r, s, budget, division.tables)
    step = division.pages if pages is None else min(division.pages, pages)
    return ScanPlan(r, s, budget, options, division, pages_per_step=step, arena=arena, slot=slot)


def run(plan: ScanPlan[CommonOptions], work: Workplace) -> ScanLoop:
    """The scan loop with nothing before it."""
    pending = FifoPending(work.arena(plan.arena), work.intake.layout(FifoPending.HEADER), plan.tables)
    return ScanLoop(plan, work, pending, PlainFront(None, work, pending))


def predict(plan: ScanPlan[CommonOptions], workload: Workload) -> Counts:
    """M = b·v_R + w·(R_t/b)·(v_P + f·v_S). Our queue is the order of the slots in H_S, so v_P is in the slot."""
    slot = plan.slot + plan.s.var_bytes
    return scan_without_cache(plan, workload, fifo_capacity(plan.arena, slot, plan.tables))


ALGORITHM = Algorithm(
    name="meshjoin",
    about=__doc__,
    run=run,
    plan=plan,
    options=Options,
    predict=predict,
    pricing=MESH,
    knobs=(Knob("k", lambda r, m: 2, lambda r, m: max(r.n_pages, 2)),),
    paper="meshjoin2008, ssbj2019 §2.2",
    access="scan",
)
