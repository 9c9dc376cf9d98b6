"""P-CACHEJOIN: CACHEJOIN with its two phases in parallel.

P-CACHEJOIN runs the stream-probing phase in the caller's thread and the disk-probing phase in a second one.

Tuples that the cache cannot answer go through the intermediate buffer I_B. The stream phase stops only when I_B is
full, the disk phase only when it is empty. A lock guards the cache while one phase reads or the other changes it;
reads, probes and output building of both phases overlap, since kernels and file reads release the interpreter.
Between two calls of `push` the disk phase rests, so that a snapshot sees no tuple on its way.

Needs of R: an index. Exact as CACHEJOIN is.

Memory: M = (d_B + h_R)·v_R + i_B·v_S + 8·h_R + h_S·(v_S·f + v_Q).
Cost:   c_loop = c_I/O(d_B) + d_B·(c_H + c_F) + w_S·(c_O + c_S + c_A + c_E + c_AI) + w_N·(c_H + c_O + c_S),
the two phases side by side.

>>> import pyarrow as pa
>>> from semistream import open_join
>>> with open_join("pcachejoin", master=pa.table({"k": [1, 2], "v": [10, 20]}), on="k", memory="1MB") as join:
...     rows = [*join.push(pa.record_batch({"k": [2, 7]})), *join.drain()]
>>> pa.Table.from_batches(rows).to_pydict()
{'k': [2, 7], 'v': [20, None]}

Paper: opcachejoin2020 (M. A. Naeem, E. Mehmood, M. G. A. Malik, N. Jamil, "Optimizing semi-stream CACHEJOIN for
near-real-time data warehousing", JDM 2020).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from semistream.algorithms import cache_join
from semistream.algorithms.cache_join import FrequencyFront, cache_plan, cache_prediction, cache_tables
from semistream.engine.algorithm import BUFFER_KNOB, CACHE_KNOB, Algorithm, Knob, Pricing
from semistream.engine.chunk import JoinStats, Scratch
from semistream.engine.division import Division, Needs, divide
from semistream.engine.facts import MasterFacts, StreamFacts
from semistream.engine.options import option
from semistream.engine.workplace import Workplace
from semistream.errors import BudgetError
from semistream.loops.index import DiskPhase, IndexPlan
from semistream.loops.parallel import LockedFront, ParallelLoop
from semistream.loops.prices import HAND_OVER
from semistream.parts.pending import LinkedPending
from semistream.predict.counts import Counts, Workload, chunks_per_tuple


@dataclass(frozen=True)
class Options(cache_join.Options):
    """Options of P-CACHEJOIN: those of CACHEJOIN, and the intermediate buffer."""

    intermediate_bytes: int | None = option(None, "size of I_B (default: 2 % of the budget)", kind=int)
    in_step: bool = option(
        False, "the phases take turns instead of running side by side: slower, but all counts are the same every time"
    )


@dataclass(frozen=True)
class ParallelPlan(IndexPlan[Options]):
    """Bytes of the intermediate buffer."""

    intermediate: int


def plan(r: MasterFacts, s: StreamFacts, budget: int, options: Options) -> ParallelPlan:
    """CACHEJOIN's tables beside the intermediate buffer, and work arrays for two threads."""
    return parallel_plan(r, s, budget, options, divide(r, budget, options, Needs(scratches=2)))


def parallel_plan(r: MasterFacts, s: StreamFacts, budget: int, options: Options, division: Division) -> ParallelPlan:
    """The tables of both parallel forms."""
    size = max(budget // 50, 4096) if options.intermediate_bytes is None else options.intermediate_bytes
    if not 0 < size <= division.tables // 2:
        raise BudgetError(
            f"an intermediate buffer of {size} bytes does not fit: it may take at most half of the "
            f"{division.tables} bytes that are left for tables"
        )
    tables = cache_plan(r, s, budget, options, division, size)
    return ParallelPlan(**{each.name: getattr(tables, each.name) for each in fields(tables)}, intermediate=size)


def run(plan: ParallelPlan, work: Workplace) -> ParallelLoop:
    """Both phases side by side, the disk phase with one disk buffer."""
    front, pending = parallel_tables(plan, work)
    beside = work.beside(JoinStats(), Scratch(plan.division.chunk_rows))
    return ParallelLoop(DiskPhase(beside, pending, front), front, work, plan.intermediate, plan.options.in_step)


def parallel_tables(plan: ParallelPlan, work: Workplace) -> tuple[LockedFront, LinkedPending]:
    """CACHEJOIN's cache between two threads, and H_S."""
    work.budget.hold("intermediate buffer", plan.intermediate)
    cache, pending = cache_tables(plan, work)
    return LockedFront(FrequencyFront(plan.options, cache, pending, work)), pending


def predict(plan: ParallelPlan, workload: Workload) -> Counts:
    """Equations 1 to 3 of the paper.

    Eq 2 is a sum, as if nothing ran side by side, and so larger than CACHEJOIN's. Here c_loop is the time of the slower
    of both phases; the sum is that of all terms of the prediction.
    """
    base = cache_prediction(plan, workload)
    missed = base.per_tuple["cache_misses"]
    chunks = chunks_per_tuple(plan.division.chunk_rows, workload.batch)
    # Into I_B in pieces it can take; what a piece costs is that one thread wakes the other.
    slot = plan.slot + plan.s.var_bytes
    handovers = chunks * math.ceil(missed / chunks / max(plan.intermediate // slot, 1))
    extra = {"intermediate_appends": missed, "handovers": handovers}
    memory = {"intermediate buffer": float(plan.intermediate)}
    return replace(base, per_tuple={**base.per_tuple, **extra}, memory={**base.memory, **memory})


INTERMEDIATE_KNOB = Knob("intermediate_bytes", lambda _r, _m: 4096, lambda _r, m: max(m * 0.2, 8192))

ALGORITHM = Algorithm(
    name="pcachejoin",
    about=__doc__,
    plan=plan,
    run=run,
    options=Options,
    predict=predict,
    pricing=Pricing(HAND_OVER, threads=2),
    knobs=(BUFFER_KNOB, CACHE_KNOB, INTERMEDIATE_KNOB),
    paper="opcachejoin2020",
    needs_index=True,
    shares_cache=True,
)
