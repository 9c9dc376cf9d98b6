"""P-CACHEJOIN: CACHEJOIN with its two phases side by side."""

from __future__ import annotations

from semistream.cost.cache_join import cached_index_join
from semistream.cost.division import divide
from semistream.cost.model import Prediction
from semistream.cost.profile import CostProfile
from semistream.cost.setting import Setting


def pcache_join(s: Setting, profile: CostProfile) -> Prediction:
    """P-CACHEJOIN; opcachejoin2020.

    Memory (eq 1): M = (d_B + h_R)·v_R + i_B·v_S + h_S·(f·v_S + v_Q).
    Cost (eq 2):   c_loop = c_I/O(d_B) + d_B·(c_H + c_F) + w_S·(c_O + c_S + c_A + c_E + c_AI) + w_N·(c_H + c_O + c_S).
    Rate (eq 3):   mu = (w_N + w_S) / c_loop.

    Eq 2 is a sum, as if nothing ran side by side, and so larger than CACHEJOIN's. Here c_loop is the time of the slower
    of both phases; the sum is `sum(prediction.terms.values())`.

    Options: cache_share, intermediate_bytes (i_B).
    """
    return cached_index_join("pcachejoin", s, profile, divide(s, scratches=2), intermediate=intermediate_bytes(s))


def intermediate_bytes(s: Setting) -> int:
    """Size of I_B: 2 % of the budget unless asked otherwise."""
    return int(s.options.get("intermediate_bytes", max(s.M // 50, 4096)))
