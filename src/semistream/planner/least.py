"""The smallest budget with which some algorithm can do a join: what an error is to name when there is too little."""

from __future__ import annotations

import pyarrow as pa

from semistream.algorithms.registry import ALGORITHMS
from semistream.cost.situation import master_facts
from semistream.engine.algorithm import Algorithm
from semistream.engine.facts import MasterFacts, StreamFacts
from semistream.engine.join import LEAST_PAGE_ROWS
from semistream.errors import BudgetError
from semistream.master.base import Master
from semistream.spec import JoinSpec

_MOST = 1 << 48
#: the search ends within one part in this many
_EXACT = 128


def least_budget(master: Master, spec: JoinSpec, schema: pa.Schema, *, direct: bool = False) -> int | None:
    """About the smallest budget in bytes with which an algorithm that the planner weighs can join such a stream.

    Plans tell: nothing is opened but R, in the finest cut that it has. None where no algorithm can.
    """
    r = master_facts(master, spec, None if master.has_index else LEAST_PAGE_ROWS, direct)
    s = StreamFacts.of(schema, spec, master.coder.is_key)
    least: int | None = None
    for algorithm in ALGORITHMS.values():
        if algorithm.predict is not None and (master.has_index or not algorithm.needs_index):
            found = _least_of(algorithm, r, s, least)
            least = found if found is not None else least
    return least


def _least_of(algorithm: Algorithm, r: MasterFacts, s: StreamFacts, below: int | None) -> int | None:
    """What one algorithm needs, if that is less than `below`."""
    limit = _MOST if below is None else below
    low, high = 0, 1
    while not _fits(algorithm, r, s, high):
        low, high = high, 2 * high
        if low >= limit:
            return None
    while high - low > max(high // _EXACT, 1):
        middle = (low + high) // 2
        if _fits(algorithm, r, s, middle):
            high = middle
        else:
            low = middle
    return high if high < limit else None


def _fits(algorithm: Algorithm, r: MasterFacts, s: StreamFacts, budget: int) -> bool:
    try:
        algorithm.plan(r, s, budget, algorithm.checked({}))
    except BudgetError:
        return False
    return True
