"""R-MESHJOIN: MESHJOIN with the disk buffer set free from the number of queue chunks.

R-MESHJOIN makes the size of the disk buffer a parameter of its own.

In MESHJOIN the number of partitions of R and of chunks in the queue is one parameter, so b follows from R, and w
from b. Here b is given, and stays when R grows. So may w be: then a load is worked off in equal pieces; before
each a chunk of about w tuples comes in, after each the oldest one leaves. An R-cycle finishes as many tuples as
before, for H_S is as large; they wait less for their chunk to be full, and b may be as large as the disk likes it.

Needs of R: nothing. Exact for any key, any number of matches.

Memory: M = b·v_R + h_S·(v_P + f·v_S).
Cost:   c_loop = c_I/O(b) + b·c_H + w·(c_S + c_A + c_O + c_E).

>>> import pyarrow as pa
>>> from semistream import open_join
>>> with open_join("rmeshjoin", master=pa.table({"k": [1, 2], "v": [10, 20]}), on="k", memory="1MB", b=1) as join:
...     rows = [*join.push(pa.record_batch({"k": [2, 2]})), *join.drain()]
>>> pa.Table.from_batches(rows).to_pydict()
{'k': [2, 2], 'v': [20, 20]}

Paper: rmeshjoin2010 (M. A. Naeem, G. Dobbie, G. Weber, S. Alam, "R-MESHJOIN for near-real-time data
warehousing", DOLAP 2010); compared in sscj2013 and oxhybridjoin2012.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from semistream.algorithms.mesh_join import predict, run
from semistream.engine.algorithm import Algorithm, Knob
from semistream.engine.division import Needs, divide
from semistream.engine.facts import MasterFacts, StreamFacts
from semistream.engine.options import WaitingOptions, option
from semistream.loops.prices import MESH
from semistream.loops.scan import ScanPlan, scan_arena
from semistream.parts.pending import fifo_capacity


@dataclass(frozen=True)
class Options(WaitingOptions):
    """Options of R-MESHJOIN."""

    b: int | None = option(
        None, "tuples in the disk buffer (default: what a tenth of the budget holds)", kind=int, least=1
    )
    w: int | None = option(
        None, "stream tuples per chunk, about (default: as many as fill H_S with one per load)", kind=int, least=1
    )


def plan(r: MasterFacts, s: StreamFacts, budget: int, options: Options) -> ScanPlan[Options]:
    """The disk buffer holds b tuples, all that is left is H_S; each load has as many pieces as there are chunks."""
    wanted = None if options.b is None else r.buffer_bytes(-(-options.b // r.page_rows))
    division = divide(r, budget, options, Needs(buffer_bytes=wanted))
    arena, slot = scan_arena(r, s, budget, division.tables)
    whole = ScanPlan(r, s, budget, options, division, pages_per_step=division.pages, arena=arena, slot=slot)
    if options.w is None or whole.loads == 0:
        return whole
    h_S = fifo_capacity(arena, slot + s.var_bytes, whole.tables)
    return replace(whole, pieces=max(min(math.ceil(h_S / whole.loads / options.w), division.rows), 1))


ALGORITHM = Algorithm(
    name="rmeshjoin",
    about=__doc__,
    run=run,
    plan=plan,
    options=Options,
    predict=predict,
    pricing=MESH,
    knobs=(Knob("b", lambda r, m: r.page_rows, lambda r, m: max(r.rows / 2, r.page_rows)),),
    paper="rmeshjoin2010, sscj2013 §2",
    access="scan",
)
