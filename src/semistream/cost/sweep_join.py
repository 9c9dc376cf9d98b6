"""SWEEPJOIN: a cache, and for each chunk one ordered sweep over the pages its misses need."""

from __future__ import annotations

from semistream.cost.division import arena, divide, key_bytes
from semistream.cost.lookup import chunk_tuples, sweep
from semistream.cost.model import Prediction, group_shares, predict
from semistream.cost.profile import CostProfile
from semistream.cost.resident import resident_bytes, resident_join
from semistream.cost.scan import memory_of
from semistream.cost.setting import Setting
from semistream.kernels.cache import ENTRY_BYTES
from semistream.parts.cache import MAX_LOAD

_BUFFER_SHARE = 0.05
_SKETCH_BYTES_PER_KEY = 4
#: tuples per key of the cache after which the sketch is halved
_WINDOW_PER_KEY = 40.0
#: part of the misses that drive out a cached key, as runs show it: most where keys are alike and few are cached, for
#: then the sketch takes one for another all the time
_LET_IN, _LET_IN_FALLS, _LEAST_LET_IN = 0.058, 2.0, 0.025


def sweep_join(s: Setting, profile: CostProfile) -> Prediction:
    """SWEEPJOIN; ours, in the papers' symbols.

    Memory: M = d·v_R + h_R·(v_R + entry + sketch).
    Cost:   c_chunk = w·(c_S + c_H + c_O) + keys·c_L + c_I/O(pages the misses need).

    A turn is a chunk; its misses share a page only with each other.

    Option gap_bytes: the gap worth reading over.
    """
    division = divide(s, share=_BUFFER_SHARE)
    shape = arena(division.tables, s.v_R)
    if s.R_t > 0 and resident_bytes(s) <= shape.spare:
        return resident_join("sweepjoin", s, profile, division, shape)
    keys = max(int(shape.spare / (key_bytes(s) + _SKETCH_BYTES_PER_KEY)), 8)
    sketch = keys * _SKETCH_BYTES_PER_KEY
    directory = ENTRY_BYTES * (int(keys / MAX_LOAD) + 2)
    room = shape.spare - sketch
    h_R = float(min(keys, int((room - directory) // shape.extent) * shape.slots(s.v_R)))
    cached = s.keys.recorded(h_R, _WINDOW_PER_KEY * h_R, entry=1.0)
    missed = max(1.0 - s.keys.p_N(cached), 0.0)
    w = chunk_tuples(s, division)
    left = s.keys.without(cached)
    shares = group_shares(left, max(s.n_pages, 1), s.order == "frequency")
    pass_ = sweep(s, division, shares, w * missed)
    let_in = max(_LET_IN * missed**_LET_IN_FALLS, _LEAST_LET_IN) * missed
    counts = {
        "cache_hits": 1.0 - missed,
        "cache_misses": missed,
        "iterations": pass_.groups / w,
        "reads": pass_.reads / w,
        "pages_read": pass_.pages / w,
        "bytes_read": pass_.bytes / w,
        "master_rows_probed": left.distinct(w * missed) / w,
        "switched": let_in,
        "evicted": let_in,
    }
    return predict(
        "sweepjoin",
        s,
        profile,
        counts,
        division,
        memory=memory_of(shape.table, frequency_sketch=sketch, cache=room),
        symbols={"h_R": h_R, "h_S": 0.0, "w_N": w * (1 - missed), "w_S": w * missed, "p_N": 1 - missed},
    )
