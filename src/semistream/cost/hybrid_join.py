"""HYBRIDJOIN: the oldest tuple picks the load."""

from __future__ import annotations

import numpy as np

from semistream.cost.index import hybrid_tables, index_join
from semistream.cost.model import Prediction
from semistream.cost.profile import CostProfile
from semistream.cost.setting import Setting


def hybrid_join(s: Setting, profile: CostProfile) -> Prediction:
    """HYBRIDJOIN; sscj2013 section 3, its eqs 1 and 2 without H_R.

    Memory: M = d·v_R + h_S·(f·v_S + v_Q); Q runs through the slots of H_S.
    Cost:   c_loop = c_I/O(d) + d·c_H + w_S·(c_S + c_A + c_O + c_E).

    The papers put w_S = p_S·h_S with the mean p_S of all partitions (ssj2014 eq 10, oxhybridjoin2012 eq 9);
    `oldest_first` says why it is twice that in a full table, and less where partitions are not alike.
    """
    room, h_S = hybrid_tables(s)
    nothing = np.zeros_like(s.keys.p)
    return index_join("hybridjoin", s, profile, room, nothing, h_S, memory={"pending table": room.spare})
