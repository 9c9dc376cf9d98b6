"""The index loop as a formula, shared as `operators/index.py` is: the oldest tuple picks the group of pages to load."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from semistream.cost.division import ArenaShape, Division, arena, divide, linked_capacity, linked_slot
from semistream.cost.model import Prediction, Shared, group_shares, needed_pages, oldest_first, predict
from semistream.cost.probability import Floats
from semistream.cost.profile import CostProfile
from semistream.cost.scan import memory_of
from semistream.cost.setting import Setting


@dataclass(frozen=True)
class Tables:
    """The memory for tables after the common parts, with an arena for slots of both sides."""

    division: Division
    #: bytes of the load times and of the arena's table, and what is left
    load_times: int
    arena_table: int
    spare: int
    shape: ArenaShape


def tables(s: Setting, division: Division, reserved: int = 0) -> Tables:
    """As `IndexJoin._build`: load times of every group of pages, then the arena."""
    groups = max(-(-s.n_pages // division.pages), 1)
    load_times = 8 * groups
    shape = arena(division.tables - load_times - reserved, linked_slot(s), s.v_R)
    return Tables(division, load_times, shape.table, shape.spare, shape)


def disk_phase(s: Setting, division: Division, h_S: float, cached: Floats) -> Shared:
    """Loads for what the cache leaves, per waiting tuple."""
    left = s.keys.without(cached)
    groups = max(-(-s.n_pages // division.pages), 1)
    contiguous = s.order == "frequency"
    if contiguous:
        # The groups of R in order, less what is cached of each.
        whole = group_shares(s.keys, groups, True)
        rows = np.cumsum(s.keys.count * np.maximum(s.keys.m, 1e-9))
        per_class = np.minimum((rows / max(rows[-1], 1e-9) * groups).astype(np.int64), groups - 1)
        hit = np.bincount(per_class, s.keys.count * s.keys.p * cached, minlength=groups)
        shares = np.clip(whole - hit, 0.0, None)
        shares = shares / max(float(shares.sum()), 1e-12)
    else:
        shares = group_shares(left, groups, False)
    missed = max(1.0 - s.keys.p_N(cached), 1e-12)
    shared = oldest_first(shares, h_S, left.absent_share)
    return _drained(s, shared, shares, h_S, missed) if s.drained else shared


def _drained(s: Setting, shared: Shared, shares: Floats, h_S: float, missed: float) -> Shared:
    """With every batch finished by itself: what fills H_S is worked off as ever, the rest group by group."""
    waiting = s.batch * missed
    rest = min(h_S, waiting)
    loads = (waiting - rest) * shared.loads + needed_pages(shares, rest)
    per_tuple = min(loads / max(waiting, 1e-12), 1.0)
    return Shared(per_tuple, min(shared.longest, waiting), 1.0 / per_tuple if per_tuple else math.inf, rest / 2)


def index_counts(s: Setting, division: Division, shared: Shared, missed: float) -> dict[str, float]:
    """Operations per stream tuple: c_I/O(d), d·c_H, w_S·(c_A + c_E), one load for w_S that waited."""
    loads = shared.loads * missed
    rows = division.d
    return {
        "cache_hits": 1.0 - missed,
        "cache_misses": missed,
        "appended": missed,
        "expired": missed,
        "iterations": loads,
        "reads": loads,
        "pages_read": loads * min(division.pages, s.n_pages),
        "bytes_read": loads * s.read_bytes(min(division.pages, s.n_pages)),
        "master_rows_probed": loads * rows,
    }


def left_keys(s: Setting, shared: Shared, division: Division, cached: Floats) -> float:
    """Keys that leave H_S a stream tuple, c_F's number: a key's tuples since the last load of its group are one."""
    groups = max(-(-s.n_pages // division.pages), 1)
    missed = float((s.keys.count * s.keys.p * (1 - cached)).sum())
    between = groups / max(shared.loads * missed, 1e-12)
    seen = -np.expm1(-s.keys.p * between)
    return float((s.keys.count * (1 - cached) * (s.keys.m > 0) * seen).sum()) / between


def index_symbols(shared: Shared, h_S: float, missed: float, h_R: float = 0.0) -> dict[str, float]:
    """h_S, h_R, w_S, w_N of a turn."""
    w = shared.w_S / missed if missed else 0.0
    return {"h_S": h_S, "h_R": h_R, "w_S": shared.w_S, "w_N": w * (1 - missed), "p_N": 1 - missed}


def index_join(
    algorithm: str,
    s: Setting,
    profile: CostProfile,
    room: Tables,
    cached: Floats,
    h_S: float,
    *,
    memory: dict[str, float],
    extra: dict[str, float] | None = None,
    h_R: float = 0.0,
    shared: Shared | None = None,
) -> Prediction:
    """A prediction from what is cached and how many may wait."""
    missed = max(1.0 - s.keys.p_N(cached), 1e-12)
    shared = disk_phase(s, room.division, h_S, cached) if shared is None else shared
    counts = {**index_counts(s, room.division, shared, missed), **(extra or {})}
    return predict(
        algorithm,
        s,
        profile,
        counts,
        room.division,
        memory={"load times": room.load_times, **memory_of(room.arena_table), **memory},
        symbols=index_symbols(shared, h_S, missed, h_R),
        delay=shared.waiting,
        longest_delay=shared.longest / missed,
    )


def hybrid_tables(s: Setting) -> tuple[Tables, float]:
    """HYBRIDJOIN's memory: all tables are H_S."""
    room = tables(s, divide(s))
    return room, linked_capacity(room.shape, linked_slot(s), room.spare)
