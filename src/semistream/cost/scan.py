"""The scan loop as a formula, shared as `operators/scan.py` is: R goes round in k steps, a tuple waits for all."""

from __future__ import annotations

import math
from dataclasses import dataclass

from semistream.cost.setting import Setting


@dataclass(frozen=True)
class ScanCycle:
    """One R-cycle: k steps, each loading b tuples and taking in w_S that wait, of w stream tuples."""

    k: int
    b: float
    w_S: float
    w: float
    pages: float
    bytes: float

    @property
    def tuples(self) -> float:
        """Stream tuples an R-cycle finishes."""
        return self.k * self.w


def cycle(s: Setting, pages_per_step: int, h_S: float, missed: float) -> ScanCycle:
    """The R-cycle of a pending table of h_S tuples, when this share of the stream waits.

    Drained after every batch, R goes round once more for it: k steps that take nothing in.
    """
    k = max(-(-s.n_pages // max(pages_per_step, 1)), 1)
    w_S = max(h_S / k, 1.0)
    w = w_S / missed if missed > 0 else math.inf
    if s.drained and missed > 0:
        w = 1.0 / (1.0 / w + k / s.batch)
        w_S = w * missed
    last = s.n_pages - (k - 1) * pages_per_step
    size = ((k - 1) * s.read_bytes(pages_per_step) + s.read_bytes(last)) / k
    return ScanCycle(k, s.R_t / k, w_S, w, s.n_pages / k, size)


def scan_counts(turn: ScanCycle, missed: float) -> dict[str, float]:
    """Operations per stream tuple: c_I/O(b), b·c_H, w_S·(c_A + c_E), one step for w tuples."""
    steps = 1.0 / turn.w if math.isfinite(turn.w) else 0.0
    return {
        "cache_hits": 1.0 - missed,
        "cache_misses": missed,
        "appended": missed,
        "expired": missed,
        "iterations": steps,
        "r_cycles": steps / turn.k,
        "reads": steps,
        "pages_read": steps * turn.pages,
        "bytes_read": steps * turn.bytes,
        "master_rows_probed": steps * turn.b,
    }


def scan_symbols(turn: ScanCycle, h_S: float, missed: float, h_R: float = 0.0) -> dict[str, float]:
    """b, k, w_S, w_N, h_S, h_R of a turn."""
    w_N = turn.w - turn.w_S if math.isfinite(turn.w) else math.inf
    return {"b": turn.b, "k": turn.k, "h_S": h_S, "h_R": h_R, "w_S": turn.w_S, "w_N": w_N, "p_N": 1.0 - missed}


def memory_of(arena_table: int, **parts: float) -> dict[str, float]:
    """Bytes of the tables by component, for `join.memory`'s names (blanks as underscores)."""
    return {"arena table": arena_table, **{name.replace("_", " "): size for name, size in parts.items()}}
