"""INLJ: one look-up and one read per tuple."""

from __future__ import annotations

from semistream.cost.division import divide
from semistream.cost.lookup import chunk_tuples
from semistream.cost.model import Prediction, predict
from semistream.cost.profile import CostProfile
from semistream.cost.setting import Setting
from semistream.master.base import ALIGNMENT

_BUFFER_SHARE = 0.5
_PAGE_BYTES = 64


def inlj(s: Setting, profile: CostProfile) -> Prediction:
    """Index nested loop join; described in opcachejoin2020, without an equation.

    Memory: M = v_P, one page; more lets a call read for several tuples.
    Cost:   c_loop = w·(c_I/O(v_P) + c_L + c_S + c_O), one read per tuple.
    """
    division = divide(s, share=_BUFFER_SHARE)
    if s.direct:
        # A read begins and ends on whole blocks.
        page = s.v_P + ALIGNMENT
        room = max(int(division.pages * s.v_P / page), 1)
    else:
        page = s.page_rows * s.row_bytes
        room = max(division.buffer // max(s.held_bytes, _PAGE_BYTES), _PAGE_BYTES)
    turn = min(room, chunk_tuples(s, division))
    counts = {
        "cache_hits": 0.0,
        "cache_misses": 1.0,
        "iterations": 1.0 / turn,
        "reads": 1.0,
        "pages_read": 1.0,
        "bytes_read": page,
    }
    return predict("inlj", s, profile, counts, division, memory={}, symbols={"w_S": turn, "w_N": 0.0})
