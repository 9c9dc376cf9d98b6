"""ORDEREDJOIN: the output keeps the order in which the stream came.

ORDEREDJOIN gives its rows in exactly the order of the stream, through a cache and a waiting queue.

While nothing waits, what the cache answers goes out at once. The first tuple that it cannot answer waits,
and behind it all that follow, also those that the cache could answer: order is worth their delay. The
queue is worked off in turns: the keys that the cache lacks are read in one ordered sweep and enter the
cache, so that every tuple at the front has its answer there, and the least frequent keys leave before the
next turn. In left and anti joins unmatched tuples and those with a null key stand in their place.

    stream -> [hit, nothing waits] ----------------------------> output in order
           -> Q ... Q -> missing keys -> sweep -> cache -> answer Q from its head

Needs of R: an index. Keys may repeat; a key whose master tuples are too many for the cache is read page
by page for each tuple.

Memory: M = h_Q·v_S + h_R·(v_R + entry) + access plan + buffers.
Cost:   c_batch = w·(c_S + c_A + c_H + c_O + c_E) + keys·(c_L + c_B) + c_I/O(pages the missing keys need).

>>> import pyarrow as pa
>>> from semistream import open_join
>>> master = pa.table({"k": [1, 2], "v": [10, 20]})
>>> with open_join("orderedjoin", master=master, on="k", how="left", memory="1MB") as join:
...     rows = [*join.push(pa.record_batch({"k": [2, 7, None, 1]})), *join.drain()]
>>> pa.Table.from_batches(rows).to_pydict()
{'k': [2, 7, None, 1], 'v': [20, None, None, 10]}

Paper: orderedjoin2013 (R. Derakhshan, A. Sattar, B. Stantic, "A new operator for efficient stream-relation join
processing in data streaming engines", CIKM 2013); described in ssbj2019, section 2.3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from semistream.engine.algorithm import Algorithm, Knob, Pricing
from semistream.engine.division import divide
from semistream.engine.facts import MasterFacts, StreamFacts
from semistream.engine.options import CommonOptions, option
from semistream.engine.workplace import Workplace
from semistream.errors import BudgetError
from semistream.loops.lookup import sweep_costs
from semistream.loops.ordered import ANSWER_SHARE, WINDOW_PER_KEY, OrderedLoop, OrderedPlan
from semistream.loops.pages import DEFAULT_GAP_BYTES, reading_needs
from semistream.loops.prices import LOOKUP, OUTPUT, PROBE, STREAM, SWITCH, WAITING
from semistream.parts.arena import ArenaShape
from semistream.parts.cache import Cache
from semistream.parts.queue import WaitingQueue
from semistream.predict.counts import Counts, Workload
from semistream.predict.sharing import group_shares

#: bytes of the access plan per missing key: code, pages and rows, and all of it once more where page order is another
_ACCESS_BYTES, _REORDER_BYTES = 56, 40
_ACCESS_SHARE = 0.12
_LEAST_CODES, _MOST_CODES = 16, 1 << 20
#: part of what is left for the cache that its keys are counted for; the rest is for extents that are not full
_KEY_SHARE = 0.98
#: what is left of the cache's bytes for the table of its arena
_ARENA_SHARE, _CACHE_REST = 0.998, 1024
#: extents that the queue must have, and those that it is given
_LEAST_EXTENTS, _FIRST_EXTENTS = 8, 9
_QUEUE_REST, _LEFT_BY_QUEUE = 1024, 2048
#: what counts tell that are halved now and then is worth twice their window
_WORTH_OF_COUNTS = 2.0


@dataclass(frozen=True)
class Options(CommonOptions):
    """Options of ORDEREDJOIN."""

    queue_share: float = option(0.25, "the queue's part of the memory for tables", above=0, below=0.95)
    batch: int | None = option(
        None, "tuples that wait before the queue is worked off (default: as many as it holds)", kind=int, least=1
    )


def plan(r: MasterFacts, s: StreamFacts, budget: int, options: Options) -> OrderedPlan[Options]:
    """`queue_share` is the queue's; the access plan is for a quarter of the cache's keys; the cache is the rest."""
    division = divide(r, budget, options, reading_needs(r, budget, options.buffer_bytes, share=0.1))
    slot = s.slot(WaitingQueue.HEADER, with_key=s.null_keys)
    spare = division.tables
    least = _FIRST_EXTENTS * ArenaShape.of(0, slot).extent_bytes + _QUEUE_REST
    size = min(max(int(spare * options.queue_share), least), spare - _LEFT_BY_QUEUE)
    queue = ArenaShape.within(size, slot)
    if queue.extents < _LEAST_EXTENTS:
        raise BudgetError(
            f"a budget of {budget} bytes leaves {size} for waiting tuples of {slot} bytes; "
            f"it needs at least {budget + least - size} bytes for this stream",
            minimum_bytes=budget + least - size,
        )
    spare -= size
    per_code = _ACCESS_BYTES + (_REORDER_BYTES if r.order != "key" else 0)
    codes = min(int(ANSWER_SHARE * spare / Cache.key_bytes(r.row_slot)), int(_ACCESS_SHARE * spare) // per_code)
    codes = min(max(codes, _LEAST_CODES), _MOST_CODES)
    spare -= codes * per_code
    keys = _cached_keys(spare, r.row_slot)
    cache_bytes = spare - _CACHE_REST
    rows = ArenaShape.of(int((cache_bytes - Cache.directory_bytes(keys)) * _ARENA_SHARE), r.row_slot)
    return OrderedPlan(
        r,
        s,
        budget,
        options,
        division,
        queue_bytes=size,
        queue_arena=queue,
        slot=slot,
        codes=codes,
        access_bytes=codes * per_code,
        cache_bytes=cache_bytes,
        cache_arena=rows,
        keys=keys,
    )


def _cached_keys(spare: int, row_bytes: float) -> int:
    """Keys of one master tuple that find room."""
    return max(int(_KEY_SHARE * spare / (row_bytes + Cache.entry_bytes())), 8)


def run(plan: OrderedPlan[Options], work: Workplace) -> OrderedLoop:
    """The loop of the queue."""
    return OrderedLoop(plan, work, plan.options.batch)


def predict(plan: OrderedPlan[Options], workload: Workload) -> Counts:
    """The papers describe it without an equation.

    A batch is as many tuples as lack `codes` keys, what the access plan and a quarter of the cache take. So three
    quarters of the cache are what the last batches left there.
    """
    r, keys, queue = plan.r, workload.keys, plan.queue_arena
    h_Q = float(queue.extents * queue.slots(plan.slot + plan.s.var_bytes))
    spare = plan.cache_bytes + _CACHE_REST
    h_R = _cached_keys(spare, r.v_R)
    kept = h_R - min(ANSWER_SHARE * h_R, plan.codes)
    full = min(h_Q, plan.options.batch or h_Q, workload.batch if workload.drained else h_Q)
    fills = workload.seen < full and not workload.drained
    # Of a queue that is not full yet nothing is read; in the end it is what waits.
    waiting = workload.seen if fills else full
    memory = _WORTH_OF_COUNTS * WINDOW_PER_KEY * h_R
    # A tuple is answered when those before it are known, but for those whose keys are read together with its own.
    together = min(plan.codes, waiting)
    learnt = max(waiting - together, 0.0) ** 2 / max(2.0 * waiting, 1e-9) if fills else workload.seen - together
    cached = keys.recorded(kept, memory, entry=1.0, seen=max(learnt, 0.0))
    missed = max(1.0 - keys.p_N(cached), 1e-9)
    turns = max(math.ceil(waiting * missed / plan.codes), 1)
    w = max(waiting / turns, 1.0)
    left = keys.without(cached)
    read = left.distinct(w * missed)
    shares = group_shares(left, max(r.n_pages, 1), r.order == "frequency")
    sweep = sweep_costs(r, plan.division, DEFAULT_GAP_BYTES, shares, w * missed)
    reading = {"iterations": 1.0, "reads": sweep.reads, "pages_read": sweep.pages, "bytes_read": sweep.bytes}
    return Counts(
        {
            "cache_hits": 1.0 - missed,
            "cache_misses": missed,
            "appended": 1.0,
            "expired": 1.0,
            **{name: 0.0 if fills else count / w for name, count in reading.items()},
            "master_rows_probed": read / w,
            "switched": read / w,
            "evicted": read / w,
        },
        memory={"waiting queue": plan.queue_bytes, "access plan": plan.access_bytes, "cache": spare},
        symbols={"h_R": h_R, "h_Q": h_Q, "w_N": w * (1 - missed), "w_S": w * missed, "p_N": 1 - missed},
        delay=full / 2,
        longest_delay=full,
        rest=memory + full,
        leave={} if workload.drained else {name: turns * count for name, count in reading.items()},
    )


ALGORITHM = Algorithm(
    name="orderedjoin",
    about=__doc__,
    plan=plan,
    run=run,
    options=Options,
    predict=predict,
    pricing=Pricing({**STREAM, **PROBE, **WAITING, **LOOKUP, **OUTPUT, **SWITCH}, mapped=True),
    knobs=(Knob.share("queue_share", 0.05, 0.9),),
    paper="orderedjoin2013, ssbj2019 §2.3",
    needs_index=True,
    keeps_null_keys=True,
)
