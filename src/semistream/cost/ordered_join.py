"""ORDEREDJOIN: a waiting queue worked off in batches, so that the output keeps the order of the stream."""

from __future__ import annotations

import math

from semistream.cost.division import arena, divide, key_bytes
from semistream.cost.lookup import sweep
from semistream.cost.model import Prediction, group_shares, predict
from semistream.cost.profile import CostProfile
from semistream.cost.scan import memory_of
from semistream.cost.setting import Setting
from semistream.kernels.waiting import QUEUE_HEADER

_QUEUE_SHARE = 0.25
_PLAN_BYTES, _REORDER_BYTES = 56, 40
_PLAN_SHARE = 0.12
_ANSWER_SHARE = 0.25
_MOST_CODES = 1 << 20
#: counts are halved after five tuples per cached key; what they tell is worth twice that
_WINDOW_PER_KEY = 10.0


def ordered_join(s: Setting, profile: CostProfile) -> Prediction:
    """ORDEREDJOIN; described in ssbj2019 section 2.3 (its ref. 37), without an equation.

    Memory: M = h_Q·v_S + h_R·(v_R + entry) + access plan + buffers.
    Cost:   c_batch = w·(c_S + c_A + c_H + c_O + c_E) + keys·(c_L + c_B) + c_I/O(pages the missing keys need).

    A batch is as many tuples as lack `codes` keys, what the access plan and a quarter of the cache take. So three
    quarters of the cache are what the last batches left there.

    Options: queue_share, batch.
    """
    division = divide(s)
    slot = QUEUE_HEADER + s.v_S
    spare = division.tables
    size = min(max(int(spare * s.options.get("queue_share", _QUEUE_SHARE)), 9 * 4096 + 1024), spare - 2048)
    queue = arena(size, slot)
    h_Q = float(queue.extents * queue.slots(slot))
    spare -= size
    bytes_per_code = _PLAN_BYTES + (_REORDER_BYTES if s.order == "frequency" else 0)
    codes = min(int(_ANSWER_SHARE * spare / key_bytes(s)), int(_PLAN_SHARE * spare) // bytes_per_code)
    codes = min(max(codes, 16), _MOST_CODES)
    spare -= codes * bytes_per_code
    h_R = max(int(0.98 * spare / key_bytes(s)), 8)
    kept = h_R - min(_ANSWER_SHARE * h_R, codes)
    cached = s.keys.recorded(kept, _WINDOW_PER_KEY * h_R, entry=1.0)
    missed = max(1.0 - s.keys.p_N(cached), 1e-9)
    full = min(h_Q, s.options.get("batch", h_Q), s.batch if s.drained else h_Q)
    batches = max(math.ceil(full * missed / codes), 1)
    w = full / batches
    left = s.keys.without(cached)
    keys = left.distinct(w * missed)
    pass_ = sweep(s, division, group_shares(left, max(s.n_pages, 1), s.order == "frequency"), w * missed)
    counts = {
        "cache_hits": 1.0 - missed,
        "cache_misses": missed,
        "appended": 1.0,
        "expired": 1.0,
        "iterations": 1.0 / w,
        "reads": pass_.reads / w,
        "pages_read": pass_.pages / w,
        "bytes_read": pass_.bytes / w,
        "master_rows_probed": keys / w,
        "switched": keys / w,
        "evicted": keys / w,
    }
    return predict(
        "orderedjoin",
        s,
        profile,
        counts,
        division,
        memory=memory_of(0, waiting_queue=size, access_plan=codes * bytes_per_code, cache=spare),
        symbols={"h_R": h_R, "h_Q": h_Q, "w_N": w * (1 - missed), "w_S": w * missed, "p_N": 1 - missed},
        delay=full / 2,
        longest_delay=full,
    )
