"""MESHJOIN: one scan of R shared by all that waits."""

from __future__ import annotations

from semistream.cost.division import Division, arena, divide, fifo_capacity, fifo_slot
from semistream.cost.model import Prediction, predict
from semistream.cost.profile import CostProfile
from semistream.cost.scan import cycle, memory_of, scan_counts, scan_symbols
from semistream.cost.setting import Setting


def mesh_join(s: Setting, profile: CostProfile) -> Prediction:
    """MESHJOIN; ssbj2019 section 2.2, in the notation of its eqs 1 and 2 without a cache.

    Memory: M = b·v_R + w·(R_t/b)·(v_P + f·v_S). Our queue is the order of the slots in H_S, so v_P is in the slot.
    Cost:   c_loop = c_I/O(b) + b·c_H + w·(c_S + c_A + c_O + c_E).

    Option k: the number of partitions; then b = R_t / k.
    """
    wanted = None
    if "k" in s.options:
        pages = max(-(-s.n_pages // int(s.options["k"])), 1)
        wanted = s.buffer_bytes(pages)
    division = divide(s, wanted_buffer=wanted)
    steps = division.pages
    if "k" in s.options:
        steps = min(division.pages, max(-(-s.n_pages // int(s.options["k"])), 1))
    return scan_without_cache("meshjoin", s, profile, division, steps)


def scan_without_cache(
    algorithm: str, s: Setting, profile: CostProfile, division: Division, pages_per_step: int
) -> Prediction:
    """All tables are H_S."""
    slot = fifo_slot(s)
    shape = arena(division.tables, slot, s.v_R)
    h_S = fifo_capacity(shape, slot, shape.spare)
    turn = cycle(s, pages_per_step, h_S, missed=1.0)
    return predict(
        algorithm,
        s,
        profile,
        scan_counts(turn, missed=1.0),
        division,
        memory=memory_of(shape.table, pending_table=shape.spare),
        symbols=scan_symbols(turn, h_S, missed=1.0),
        delay=turn.tuples,
        longest_delay=turn.tuples,
    )
