"""SSBJ: every key where it takes fewer bytes, in the cache or in H_S."""

from __future__ import annotations

import math

import numpy as np

from semistream.cost.division import arena, divide, fifo_slot, fifo_tuple_bytes
from semistream.cost.model import Prediction, predict
from semistream.cost.probability import Floats, normal_cdf
from semistream.cost.profile import CostProfile
from semistream.cost.resident import resident_bytes, resident_join
from semistream.cost.scan import cycle, memory_of, scan_counts, scan_symbols
from semistream.cost.setting import Setting
from semistream.kernels.cache import ENTRY_BYTES
from semistream.kernels.chance import beyond_chance
from semistream.parts.cache import MAX_LOAD
from semistream.parts.key_filter import FilterPlan

#: a directory grows by a quarter when it is 90 % full: on average it has this many entries per key
_DIRECTORY_SLACK = 1.2
#: the directory begins with this part of the tables; this many extents are kept free for what a step may collect
_FIRST_DIRECTORY, _EXTENTS_AHEAD = 0.02, 2
_DRAINED_ROUNDS = 8


def ssbj(s: Setting, profile: CostProfile) -> Prediction:
    """SSBJ; ssbj2019.

    Memory (eq 1): M = (b + h_R·f)·v_R + w_S·(R_t/b)·(v_P + f·v_S).
    Cost (eq 2):   c_loop = c_I/O(b) + b·(c_H + c_B) + w_N·(c_S + c_H + c_O) + w_S·(c_E + c_S + c_A + c_O).
    Rate (eqs 3-6): mu = (w_N + w_S) / c_loop; the memory is given, W = k·w tuples per R-cycle are looked for.

    A key is cached while m·v_R + entry < n·v_S (Theorem 2), n its tuples per R-cycle. SSBJ sees n through one cycle
    when it lets a key in and through three or ten when it looks again, so a key near the border is in the cache for
    a part of the time; that part is the balance of both. c_B is priced for tuples switched, not for all of b.

    Options: switching_factor.
    """
    division = divide(s)
    slot = fifo_slot(s, counter=True)
    shape = arena(division.tables, slot, s.v_R)
    if s.R_t > 0 and resident_bytes(s) <= shape.spare:
        return resident_join("ssbj", s, profile, division, shape)
    v_S = fifo_tuple_bytes(shape, slot)
    entry = ENTRY_BYTES / MAX_LOAD

    def cache_bytes(cached: Floats, total: float) -> float:
        directory = float((s.keys.count * cached).sum()) * entry * _DIRECTORY_SLACK
        return float((s.keys.count * cached * s.keys.m).sum()) * s.v_R + max(directory, _FIRST_DIRECTORY * total)

    def settle(plan: FilterPlan | None) -> tuple[Floats, float, float, float]:
        """What passes the filter of each key, bytes left for tables, W, and how many of those wait."""
        passing = np.where(s.keys.m > 0, 1.0, plan.misses if plan is not None else 1.0)
        total = float(shape.spare - _EXTENTS_AHEAD * shape.extent - (plan.bytes if plan is not None else 0))
        low, high = 1.0, 1e3 * total / v_S
        for _ in range(60):
            W = math.sqrt(low * high)
            cached, _ = _in_cache(s, W, v_S, entry, passing)
            waiting = W * float((s.keys.count * s.keys.p * (passing - cached)).sum())
            if cache_bytes(cached, total) + waiting * v_S > total:
                high = W
            else:
                low = W
        return passing, total, W, waiting

    plan = FilterPlan.make(s.R_t, shape.spare, s.code_range) if s.keys.absent_share > 0 else None
    passing, total, W, waiting = settle(plan)
    if plan is not None:
        absent = s.keys.absent_share * (1.0 - plan.misses)
        if absent < plan.bytes / shape.spare * (absent + waiting / W):
            # A filter that spares so little is dropped.
            plan = None
            passing, total, W, waiting = settle(plan)
    filter_bytes = float(plan.bytes) if plan is not None else 0.0
    missed = max(waiting / W, 1e-9)
    h_S = waiting
    turn = cycle(s, division.pages, h_S, missed)
    for _ in range(_DRAINED_ROUNDS if s.drained else 0):
        # A batch that is drained makes cycles short: fewer tuples per cycle are worth a place in the cache.
        cached, _ = _in_cache(s, turn.tuples, v_S, entry, passing)
        missed = max(float((s.keys.count * s.keys.p * (passing - cached)).sum()), 1e-9)
        turn = cycle(s, division.pages, h_S, missed)
    cached, moves = _in_cache(s, turn.tuples, v_S, entry, passing)
    h_R = float((s.keys.count * cached * s.keys.m).sum())
    switched = float((s.keys.count * moves * s.keys.m).sum()) / turn.tuples
    counts = scan_counts(turn, missed)
    counts |= {"switched": switched, "evicted": float((s.keys.count * moves).sum()) / turn.tuples}
    return predict(
        "ssbj",
        s,
        profile,
        counts,
        division,
        memory=memory_of(
            shape.table, key_filter=filter_bytes, cache=cache_bytes(cached, total), pending_table=h_S * v_S
        ),
        symbols=scan_symbols(turn, h_S, missed, h_R),
        delay=missed * turn.tuples,
        longest_delay=turn.tuples,
    )


def _in_cache(s: Setting, W: float, v_S: float, entry: float, passing: Floats) -> tuple[Floats, Floats]:
    """Part of the time each key is cached, and how often per R-cycle it moves in (and out).

    `passing` is the part of the keys that the filter lets through; the others are never seen.

    n is seen as Poisson(W·p): through one cycle when the key is let in, which happens every third cycle and if n is
    above the border by its own spread; through three after its first three, then through ten, when it is judged again.
    """
    factor = s.options.get("switching_factor", 1.0)
    border = (s.keys.m * s.v_R + entry) / v_S * factor
    seen = W * s.keys.p

    def above(least: Floats, cycles: float) -> Floats:
        return normal_cdf(2.0 * (np.sqrt(cycles * seen) - np.sqrt(cycles * least)))

    enter = np.maximum(above(beyond_chance(border), 1.0), 1e-12)
    leave_first, leave = 1.0 - above(border, 3.0), np.maximum(1.0 - above(border, 10.0), 1e-9)
    stay = 3.0 + (1.0 - leave_first) * np.minimum(10.0 / leave, 1e9)
    out = 3.0 / enter
    return passing * stay / (stay + out), passing / (stay + out)
