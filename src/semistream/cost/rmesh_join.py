"""R-MESHJOIN: MESHJOIN with b as a parameter of its own."""

from __future__ import annotations

from semistream.cost.division import divide
from semistream.cost.mesh_join import scan_without_cache
from semistream.cost.model import Prediction
from semistream.cost.profile import CostProfile
from semistream.cost.setting import Setting


def rmesh_join(s: Setting, profile: CostProfile) -> Prediction:
    """R-MESHJOIN; compared in sscj2013 and oxhybridjoin2012, which give no equation of their own for it.

    Memory: M = b·v_R + h_S·(v_P + f·v_S), b free.
    Cost:   c_loop = c_I/O(b) + b·c_H + w·(c_S + c_A + c_O + c_E).

    Option b: tuples in the disk buffer.
    """
    wanted = None
    if "b" in s.options:
        wanted = s.buffer_bytes(-(-int(s.options["b"]) // s.page_rows))
    division = divide(s, wanted_buffer=wanted)
    return scan_without_cache("rmeshjoin", s, profile, division, division.pages)
