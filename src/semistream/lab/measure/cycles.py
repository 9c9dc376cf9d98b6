"""A run of a scan told by its R-cycles, for settings in which a cycle is long.

`steady.py` warms up by cycles of about R's length. With memory for nearly all of R, an R-cycle finishes fifty times as
many tuples as R has, and a cache whose keys move once per cycle needs as many tuples again and again to come to rest.
Here the warm-up goes by whole cycles, however long they are, up to a limit of tuples; what every cycle did is kept.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from semistream.cost.clock import row_bytes
from semistream.engine.join import SemiStreamJoin
from semistream.lab.measure.pace import Pace
from semistream.lab.measure.steady import cached_rows, push_next, turn
from semistream.lab.measure.together import Together

_TURNS = 4
_MOST_TURN_TUPLES = 1_000_000
#: at rest: the share of hits in the last three cycles is that of the three before them, to this share of the stream
_HITS_CHANGE, _ROUND = 0.01, 3
#: a join that nobody waits for after so many times R's tuples has no cycles any more: it holds all of R
_WITHOUT_CYCLES = 4


def run_cycles(
    join: SemiStreamJoin,
    stream: Iterator[pa.RecordBatch],
    batch: int,
    cycles: int,
    most_tuples: int,
    together: Together | None = None,
    pace: Pace | None = None,
) -> dict[str, Any]:
    """Warm up by whole R-cycles, then measure in turns; JSON values, as `run_steady` gives them, and the cycles."""
    stats, others, machine = join.stats, together or Together(), pace or Pace()
    # The first cycle begins with an empty H_S, and none is left to count where all of R is held.
    found: list[dict[str, float]] = []
    resident = False
    while len(found) < cycles and stats.tuples_in < most_tuples and not resident:
        before = copy.copy(stats)
        while stats.r_cycles == before.r_cycles and stats.tuples_in < most_tuples and not resident:
            push_next(join, stream, others)
            resident = not join.waiting and stats.tuples_in >= _WITHOUT_CYCLES * join.reader.n_rows
        if stats.r_cycles > before.r_cycles and not resident:
            seen = stats.tuples_in - before.tuples_in
            found.append({"tuples": seen, "hits": (stats.cache_hits - before.cache_hits) / max(seen, 1)})
    length = found[-1]["tuples"] if found else join.reader.n_rows
    count = max(int(min(length / 2, _MOST_TURN_TUPLES)) // batch, 2)
    with others.alone():
        watch, turns = machine.watch(join), []
        for _ in range(_TURNS):
            turns.append(turn(join, stream, batch, count))
            watch.look()
    symbols = {"d": float(join.plan.division.rows), "h_R": float(cached_rows(join)), "h_S": float(join.waiting)}
    return {
        "turns": turns,
        "symbols": symbols,
        "row_bytes": row_bytes(join),
        "peak_bytes": join.memory.peak_bytes,
        "cycles": found,
        "resident": resident,
        "steady": resident or _rests([cycle["hits"] for cycle in found]),
        "taken": watch.taken(),
    }


def _rests(hits: list[float]) -> bool:
    if len(hits) < 2 * _ROUND:
        return False
    last, before = hits[-_ROUND:], hits[-2 * _ROUND : -_ROUND]
    return abs(sum(last) - sum(before)) / _ROUND <= _HITS_CHANGE
