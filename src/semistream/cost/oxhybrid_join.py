"""Optimised X-HYBRIDJOIN: the first tuples of R in a hash table that the stream probes first."""

from __future__ import annotations

from semistream.cost.division import cache_capacity, divide, linked_capacity, linked_slot
from semistream.cost.index import index_join, tables
from semistream.cost.model import Prediction
from semistream.cost.profile import CostProfile
from semistream.cost.setting import Setting
from semistream.cost.xhybrid_join import pinned_part

_CACHE_SHARE = 0.3


def oxhybrid_join(s: Setting, profile: CostProfile) -> Prediction:
    """Optimised X-HYBRIDJOIN; oxhybridjoin2012.

    Memory (eq 1): M = (k + l)·v_P + h_S·(f·v_S + v_Q).
    Cost (eq 2):   c_loop = c_I/O(k·v_P) + d·c_H + w_S·(c_O + c_E + c_S + c_A) + w_N·(c_H + c_O + c_S).
    Rate (eq 3):   mu = (w_N + w_S) / c_loop.

    p_N (eqs 4-6) is exact here: H_R holds the first tuples of R, which are the most frequent in that order. w_S
    (eqs 7-9) is `oldest_first` over the groups of R in that order.

    Option cache_share: H_R's part of the tables.
    """
    division = divide(s)
    room = tables(s, division)
    share = int(room.spare * s.options.get("cache_share", _CACHE_SHARE))
    h_R = min(cache_capacity(s, room.shape, share), s.R_t) if share else 0.0
    cached = pinned_part(s, h_R)
    if h_R >= s.R_t:
        cached = cached * 0 + 1.0
    h_S = linked_capacity(room.shape, linked_slot(s), room.spare - share)
    return index_join(
        "oxhybridjoin",
        s,
        profile,
        room,
        cached,
        h_S,
        memory={"pending table": room.spare - share, "cache": share},
        h_R=h_R,
    )
