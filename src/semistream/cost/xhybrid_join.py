"""X-HYBRIDJOIN: half of the disk buffer holds the first pages of R for good."""

from __future__ import annotations

import math

import numpy as np

from semistream.cost.division import divide, linked_capacity, linked_slot
from semistream.cost.index import disk_phase, index_counts, index_symbols, tables
from semistream.cost.model import Prediction, predict
from semistream.cost.probability import Floats
from semistream.cost.profile import CostProfile
from semistream.cost.scan import memory_of
from semistream.cost.setting import Setting


def xhybrid_join(s: Setting, profile: CostProfile) -> Prediction:
    """X-HYBRIDJOIN; oxhybridjoin2012 section 3.

    Memory: M = 2·d·v_R + h_S·(f·v_S + v_Q), d tuples in each half.
    Cost:   c_loop = c_I/O(d) + 2·d·c_H + w·(c_S + c_A + c_O + c_E): all tuples pass through H_S, those that the pinned
    half answers too, until the next turn. A turn builds two output batches where the pinned half answers some tuple and
    one where it does not, and for few tuples that is much of its time, so c_T is paid for batches too.

    Option pinned_pages.
    """
    pinned = s.options.get("pinned_pages")
    if pinned is None:
        division = divide(s, buffers=2)
        pages = min(division.pages, s.n_pages)
    else:
        pages = min(int(pinned), s.n_pages)
        division = divide(s, buffers=2, halves=1, extra_fixed=s.buffer_bytes(pages))
    room = tables(s, division)
    h_S = linked_capacity(room.shape, linked_slot(s), room.spare)
    rows = min(pages * s.page_rows, s.R_t)
    held = pinned_part(s, rows)
    answered = s.keys.p_N(held)
    missed = max(1.0 - answered, 1e-9)
    free = h_S
    for _ in range(8):
        shared = disk_phase(s, division, free, held)
        # Between two turns w tuples come; those of the pinned half wait among the others until the next one.
        free = max(h_S - shared.w_S * answered / missed, h_S * 0.05)
    counts = index_counts(s, division, shared, missed)
    counts |= {"appended": 1.0, "expired": 1.0, "master_rows_probed": counts["iterations"] * (division.d + rows)}
    from_pinned = -math.expm1(-answered / max(counts["iterations"], 1e-12))
    counts["batches_out"] = counts["iterations"] * (1.0 + from_pinned)
    return predict(
        "xhybridjoin",
        s,
        profile,
        counts,
        division,
        memory={
            "load times": room.load_times,
            **memory_of(room.arena_table, pending_table=room.spare),
        },
        symbols={**index_symbols(shared, h_S, missed), "pinned": rows},
        delay=shared.waiting,
        longest_delay=shared.longest / missed,
    )


def pinned_part(s: Setting, rows: float) -> Floats:
    """Part of each class in the first `rows` tuples of R: the most frequent keys, or just any in key order."""
    if s.order == "frequency":
        return s.keys.most_frequent(rows)
    return np.where(s.keys.m > 0, rows / max(s.R_t, 1), 0.0)
