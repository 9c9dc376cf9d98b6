"""OP-CACHEJOIN: P-CACHEJOIN with two disk buffers, one loaded while the other is probed."""

from __future__ import annotations

from semistream.cost.cache_join import cached_index_join
from semistream.cost.division import divide
from semistream.cost.model import Prediction
from semistream.cost.pcache_join import intermediate_bytes
from semistream.cost.profile import CostProfile
from semistream.cost.setting import Setting


def opcache_join(s: Setting, profile: CostProfile) -> Prediction:
    """OP-CACHEJOIN; opcachejoin2020, eqs 1 and 2 with two buffers.

    Memory: M = (2·d_B + h_R)·v_R + i_B·v_S + h_S·(f·v_S + v_Q), and a second page index: a reader serves one thread.
    Cost:   eq 2 with c_I/O(d_B) / 2 in the paper, as if the disk served both loads at once. Here loads run beside the
    disk phase, and c_loop is the slowest of stream phase, disk phase and loads.

    Options: cache_share, intermediate_bytes (i_B).
    """
    division = divide(s, buffers=2, scratches=2, share=0.2, extra_fixed=s.index_bytes)
    return cached_index_join("opcachejoin", s, profile, division, intermediate=intermediate_bytes(s))
