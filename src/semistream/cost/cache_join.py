"""CACHEJOIN: HYBRIDJOIN behind a cache of the most frequent master tuples."""

from __future__ import annotations

import math

from semistream.cost.clock import chunks_per_tuple
from semistream.cost.division import Division, cache_capacity, divide, linked_capacity, linked_slot
from semistream.cost.index import disk_phase, index_join, left_keys, tables
from semistream.cost.model import Prediction
from semistream.cost.profile import CostProfile
from semistream.cost.setting import Setting

_CACHE_SHARE = 0.15
#: counts are halved every sixteen cachefuls of tuples; what they tell is worth twice that
_CACHEFULS_REMEMBERED = 32.0
#: keys let in a stream tuple: the threshold rises above 5 % of the cache every two cachefuls, and keeps below that
_CHURN = 0.01


def cache_join(s: Setting, profile: CostProfile) -> Prediction:
    """CACHEJOIN; sscj2013 (as SSCJ).

    Memory (eq 1): M = d·v_R + h_R·v_R + 8·h_R + h_S·(f·v_S + v_Q). The recorder's 8 bytes are in the directory entry.
    Cost (eq 2):   c_loop = c_I/O(d) + d·(c_H + c_F) + w_S·(c_O + c_E + c_S + c_A) + w_N·(c_H + c_O + c_S).
    Rate (eq 3):   mu = (w_N + w_S) / c_loop.

    c_F is priced for keys that leave H_S, the only ones whose frequency is looked at, not for all of d.

    Option cache_share: H_R's part of the tables.
    """
    return cached_index_join("cachejoin", s, profile, divide(s))


def cached_index_join(
    algorithm: str,
    s: Setting,
    profile: CostProfile,
    division: Division,
    *,
    intermediate: int = 0,
) -> Prediction:
    """CACHEJOIN and its parallel forms: they differ in what else takes memory, and in what runs side by side."""
    room = tables(s, division, reserved=intermediate)
    share = int(room.spare * s.options.get("cache_share", _CACHE_SHARE))
    h_R = cache_capacity(s, room.shape, share)
    h_S = linked_capacity(room.shape, linked_slot(s), room.spare - share)
    cached = s.keys.recorded(h_R, _CACHEFULS_REMEMBERED * h_R, entry=1.0)
    shared = disk_phase(s, division, h_S, cached)
    missed = max(1.0 - s.keys.p_N(cached), 1e-12)
    extra = {
        "frequency_checks": left_keys(s, shared, division, cached),
        "switched": min(_CHURN, missed),
        "evicted": min(_CHURN, missed),
    }
    memory = {"pending table": float(room.spare - share), "cache": float(share)}
    if intermediate:
        memory["intermediate buffer"] = float(intermediate)
        extra["intermediate_appends"] = missed
        # Into I_B in pieces it can take; what a piece costs is that one thread wakes the other.
        chunks = chunks_per_tuple(division.chunk, s.batch)
        extra["handovers"] = chunks * math.ceil(missed / chunks / max(intermediate // linked_slot(s), 1))
    return index_join(algorithm, s, profile, room, cached, h_S, memory=memory, extra=extra, h_R=h_R, shared=shared)
