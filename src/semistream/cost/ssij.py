"""SSIJ: a cache of disk blocks, and a plan for all that the others must answer."""

from __future__ import annotations

from semistream.cost.blocks import block_tables, most_useful
from semistream.cost.lookup import sweep
from semistream.cost.model import Prediction, predict
from semistream.cost.profile import CostProfile
from semistream.cost.setting import Setting


def ssij(s: Setting, profile: CostProfile) -> Prediction:
    """SSIJ; described in ssbj2019 section 2.3, without an equation ("does not include a mathematical cost model").

    Memory: M = h_S·v_S + l·v_P + 24 bytes per block of R, cache of l blocks.
    Cost:   c_join = w·(c_S + c_L + c_O) + w_S·(c_A + c_L + c_E) + c_I/O(blocks the stream buffer needs).

    One join phase works off a full stream buffer of w_S tuples, which lack the l most useful blocks.

    Options: cache_share, stream_tuples.
    """
    room = block_tables(s, s.n_pages + 1)
    hit, shares = most_useful(s, s.n_pages, room.frames)
    missed = max(1.0 - hit, 1e-9)
    full = min(s.options.get("stream_tuples", room.h_S), room.h_S)
    if s.drained:
        full = min(full, s.batch * missed)
    pass_ = sweep(s, room.division, shares, full)
    w = full / missed
    counts = {
        "cache_hits": hit,
        "cache_misses": missed,
        "appended": missed,
        "expired": missed,
        "iterations": pass_.groups / w,
        "reads": pass_.reads / w,
        "pages_read": pass_.pages / w,
        "bytes_read": pass_.bytes / w,
        "master_rows_probed": 1.0,
    }
    return predict(
        "ssij",
        s,
        profile,
        counts,
        room.division,
        memory=room.memory,
        symbols={"l": room.frames, "h_S": room.h_S, "w_N": w * hit, "w_S": full, "p_N": hit},
        delay=missed * w / 2,
        longest_delay=w,
    )
