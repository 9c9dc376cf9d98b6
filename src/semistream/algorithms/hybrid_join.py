"""HYBRIDJOIN: MESHJOIN's amortisation with an index instead of a blind scan.

HYBRIDJOIN lets the oldest waiting tuple pick, through the index, the partition of R that is loaded next.

The load is shared by all waiting tuples whose keys stand on it; they leave at once, and as many new tuples come
in as slots came free. Every load finishes at least one tuple, so bursts and pauses of the stream do no harm.

Needs of R: an index on the key. Keys may repeat; absent keys leave when they are the oldest.

Memory: M = d·v_R + h_S·(v_S·f + v_Q), the queue node v_Q with both neighbours.
Cost:   c_loop = c_I/O(d) + d·c_H + w_S·(c_S + c_A + c_O + c_E).

>>> import pyarrow as pa
>>> from semistream import open_join
>>> with open_join("hybridjoin", master=pa.table({"k": [1, 2], "v": [10, 20]}), on="k", memory="1MB") as join:
...     rows = [*join.push(pa.record_batch({"k": [2, 7]})), *join.drain()]
>>> pa.Table.from_batches(rows).to_pydict()
{'k': [2, 7], 'v': [20, None]}

Paper: hybridjoin2011 (M. A. Naeem, G. Dobbie, G. Weber, "HYBRIDJOIN for near-real-time data warehousing", IJDWM
2011); described in sscj2013, section 3.
"""

from __future__ import annotations

import numpy as np

from semistream.engine.algorithm import BUFFER_KNOB, Algorithm
from semistream.engine.division import divide
from semistream.engine.facts import MasterFacts, StreamFacts
from semistream.engine.options import WaitingOptions
from semistream.engine.plan import Plan
from semistream.engine.workplace import Workplace
from semistream.loops.index import (
    DiskPhase,
    IndexLoop,
    IndexPlan,
    Settled,
    StillFront,
    disk_phase,
    index_prediction,
    index_tables,
)
from semistream.loops.prices import HYBRID
from semistream.parts.pending import LinkedPending, linked_capacity
from semistream.predict.counts import Counts, Workload


def plan(r: MasterFacts, s: StreamFacts, budget: int, options: WaitingOptions) -> IndexPlan[WaitingOptions]:
    """All tables are H_S."""
    division = divide(r, budget, options)
    room = index_tables(r, s, budget, division)
    return room.planned(Plan(r, s, budget, options, division))


def run(plan: IndexPlan[WaitingOptions], work: Workplace) -> IndexLoop:
    """The index loop with nothing before it."""
    layout = work.intake.layout(LinkedPending.HEADER)
    front = StillFront(None, work)
    pending = LinkedPending(work.arena(plan.arena), layout, plan.pending_bytes)
    return IndexLoop(DiskPhase(work, pending, front), front)


def predict(plan: IndexPlan[WaitingOptions], workload: Workload) -> Counts:
    """Equations 1 and 2 of the CACHEJOIN paper without H_R; Q runs through the slots of H_S.

    The papers put w_S = p_S·h_S with the mean p_S of all partitions; `oldest_first` says why it is twice that in a full
    table, and less where partitions are not alike.
    """
    nothing = np.zeros_like(workload.keys.p)
    h_S = linked_capacity(plan.arena, plan.slot + plan.s.var_bytes, plan.pending_bytes)
    return index_prediction(plan, workload, Settled(disk_phase(plan, workload, h_S, nothing), nothing, h_S))


ALGORITHM = Algorithm(
    name="hybridjoin",
    about=__doc__,
    plan=plan,
    run=run,
    options=WaitingOptions,
    predict=predict,
    pricing=HYBRID,
    knobs=(BUFFER_KNOB,),
    paper="hybridjoin2011, sscj2013 §3",
    needs_index=True,
)
