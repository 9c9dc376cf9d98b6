"""SSJ: MESHJOIN behind a cache of the most frequent master tuples."""

from __future__ import annotations

from semistream.cost.division import arena, cache_capacity, divide, fifo_capacity, fifo_slot
from semistream.cost.model import Prediction, predict
from semistream.cost.probability import Floats
from semistream.cost.profile import CostProfile
from semistream.cost.scan import cycle, memory_of, scan_counts, scan_symbols
from semistream.cost.setting import Setting

_CACHE_SHARE = 0.4
#: Counts are halved every R-cycle: mean 2 and variance 4/3 of a cycle's, so they tell as much as three cycles do.
_CYCLES_REMEMBERED = 3.0
#: evictions per cycle above which the threshold rises, as a part of the cache
_CHURN = 0.05
#: more hits make longer cycles, and these more hits; it is enough when the misses change by less than this
_SETTLED = 1e-3


def ssj(s: Setting, profile: CostProfile) -> Prediction:
    """SSJ; ssj2014.

    Memory (eq 1): M = (k + l)·v_P + 8·h_R + h_S·(f·v_S + v_Q). The recorder's 8 bytes are in the directory entry.
    Cost (eq 2):   c_loop = c_I/O(k·v_P) + d·(c_H + c_F) + w_S·(c_O + c_E + c_S + c_A) + w_N·(c_H + c_O + c_S).
    Rate (eq 3):   mu = (w_N + w_S) / c_loop.

    p_N (eqs 4-7) is that of the keys the recorder takes for the most frequent, w_S = h_S / k (eq 10 for a scan: the
    tuples of a chunk leave together, whatever they matched).

    Option cache_share: H_R's part of the tables.
    """
    division = divide(s)
    slot = fifo_slot(s)
    shape = arena(division.tables, slot, s.v_R)
    named = 16 * min(max(int(shape.spare * 0.02) // 16, 16), 1 << 20)
    room = shape.spare - named
    share = int(room * s.options.get("cache_share", _CACHE_SHARE))
    h_R = cache_capacity(s, shape, share)
    h_S = fifo_capacity(shape, slot, room - share)
    missed, before = 1.0, 0.0
    while abs(missed - before) > _SETTLED:
        turn = cycle(s, division.pages, h_S, missed)
        cached = s.keys.recorded(h_R, _CYCLES_REMEMBERED * turn.tuples)
        # What R lacks is not cached: a key is named by a master tuple that finds its stream tuples waiting.
        before, missed = missed, max(1.0 - s.keys.p_N(cached * (s.keys.m > 0)), 1e-9)
    turn = cycle(s, division.pages, h_S, missed)
    switched = _turnover(s, cached, h_R) / turn.tuples
    counts = scan_counts(turn, missed)
    counts |= {
        "frequency_checks": counts["master_rows_probed"],
        "switched": switched,
        "evicted": switched,
    }
    return predict(
        "ssj",
        s,
        profile,
        counts,
        division,
        memory=memory_of(shape.table, frequent_keys=named, pending_table=room - share, cache=share),
        symbols=scan_symbols(turn, h_S, missed, h_R),
        delay=missed * turn.tuples,
        longest_delay=turn.tuples,
    )


def _turnover(s: Setting, cached: Floats, h_R: float) -> float:
    """Tuples that change in the cache per cycle: those on the border, and no more than the threshold lets in."""
    border = float((s.keys.count * s.keys.m * cached * (1 - cached)).sum())
    return min(border / _CYCLES_REMEMBERED, _CHURN * h_R)
