"""The main-memory join that SSBJ and SWEEPJOIN become when the budget holds all of R (ssbj2019, Theorem 3)."""

from __future__ import annotations

from semistream.cost.division import ArenaShape, Division
from semistream.cost.model import Prediction, predict
from semistream.cost.profile import CostProfile
from semistream.cost.scan import memory_of
from semistream.cost.setting import Setting
from semistream.kernels.cache import ENTRY_BYTES

#: load of the directory, room for extents that are not full, and for the arena's own needs (operators/resident.py)
_LOAD, _EXTENTS, _REST = 0.7, 1.01, 1 << 17


def resident_bytes(s: Setting) -> float:
    """Bytes of all of R in the cache."""
    return s.R_t * (s.v_R + ENTRY_BYTES / _LOAD) * _EXTENTS + _REST


def resident_join(
    algorithm: str, s: Setting, profile: CostProfile, division: Division, shape: ArenaShape
) -> Prediction:
    """c = w·(c_S + c_H + c_O): every tuple is answered at once, a miss being a key that R lacks."""
    return predict(
        algorithm,
        s,
        profile,
        {"cache_hits": 1.0, "cache_misses": 0.0},
        division,
        memory=memory_of(shape.table, cache=resident_bytes(s) - _REST),
        symbols={"h_R": s.R_t, "h_S": 0.0, "p_N": 1.0},
    )
