"""How loads are shared by tuples that wait, and how many pages some tuples need."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from semistream.predict.keys import Floats, KeyClasses

#: keys whose place among the page groups is drawn one by one: those with this part of a group's share or more, and so
#: many at most; the others spread evenly
_PLACED_SHARE = 1 / 32
_PLACED_KEYS = 1 << 18
_PLACING_SEED = 20_140_209
#: how exactly a waiting time is looked for, as a part of it
_WAIT_STEP = 1e-4
#: up to so many groups are looked at one by one; more of them by kinds of which a factor of e has so many
_FEW_GROUPS, _KINDS_PER_E = 1024, 100


def group_shares(keys: KeyClasses, groups: int, contiguous: bool) -> Floats:
    """Share of the stream that asks for each group of pages.

    In key order hot keys stand anywhere: the most frequent ones are placed by a fixed draw, the long tail evenly. In
    order of frequency (`contiguous`) the groups are consecutive ranks.
    """
    mass = keys.count * keys.p
    if contiguous:
        rows = keys.count * np.maximum(keys.m, 1e-9)
        edges = np.linspace(0.0, float(rows.sum()), groups + 1)
        upto = np.interp(edges, np.concatenate(([0.0], np.cumsum(rows))), np.concatenate(([0.0], np.cumsum(mass))))
        return np.diff(upto)
    number = np.maximum(np.rint(keys.count), 1).astype(np.int64)
    upto = np.cumsum(number)
    rare = int(np.searchsorted(-keys.p, -_PLACED_SHARE / groups, side="right"))
    placed = min(int(np.searchsorted(upto, _PLACED_KEYS, side="right")), rare)
    weights = np.repeat(mass[:placed] / number[:placed], number[:placed])
    if placed == len(number):
        # All keys have a place of their own, so groups are equally large.
        random = np.random.default_rng(_PLACING_SEED)
        where = random.permutation(len(weights)) * groups // max(len(weights), 1)
    else:
        where = _places(groups, len(weights))
    return np.asarray(np.bincount(where, weights, minlength=groups) + float(mass[placed:].sum()) / groups)


def _places(groups: int, keys: int) -> npt.NDArray[np.int64]:
    """The group of each of the most frequent keys."""
    # In powers of two, of which few are asked for again and again.
    return _drawn_places(groups, 1 << max(keys - 1, 0).bit_length())[:keys]


@lru_cache(maxsize=16)
def _drawn_places(groups: int, keys: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(_PLACING_SEED).integers(0, groups, keys)


@dataclass(frozen=True)
class Shared:
    """How loads are shared: loads per waiting tuple, and how long (in such tuples) one waits at most."""

    loads: float
    longest: float
    #: tuples of each load on average, and waiting on average
    w_S: float
    waiting: float
    #: loads for those that wait when the stream ends
    left: float = 0.0


def oldest_first(shares: Floats, h_S: float, absent: float = 0.0) -> Shared:
    """HYBRIDJOIN's disk phase: the oldest tuple picks the load, and all that wait for the same group leave with it.

    A group asked for with probability P is loaded when its first tuple has become the oldest, L tuples after it
    came; then 1/P tuples pass until the next one. So it is loaded P / (1 + P·L) times per tuple, each time for 1 + P·L
    tuples. L is where those that wait, P·L·(1 + P·L/2) / (1 + P·L) a group, fill H_S. Where H_S is small every load
    serves one tuple; where it is large, twice h_S over the number of groups: twice MESHJOIN's, for a tuple waits
    half as long.

    Tuples of absent keys stay until they are the oldest, L.
    """
    P, groups = _alike(shares[shares > 0])
    # At least half of the tuples that come in that time wait.
    low, high = 0.0, 2.0 * h_S + 16
    while high - low > _WAIT_STEP * max(high, 1.0):
        L = (low + high) / 2
        x = P * L
        waiting = float((groups * x * (1 + x / 2) / (1 + x)).sum()) * (1 - absent) + absent * L
        w_S = 1.0 / max(float((groups * P / (1 + x)).sum()), 1e-12)
        # H_S is full when a load begins and has room for w_S when it is done.
        if waiting + w_S / 2 > h_S:
            high = L
        else:
            low = L
    loads = min(float((groups * P / (1 + P * low)).sum()), 1.0)
    return Shared(loads, low, 1.0 / loads if loads else math.inf, waiting)


def _alike(P: Floats) -> tuple[Floats, Floats]:
    """Groups by their share, to a part in a hundred: the mean share of those that are alike, and how many they are.

    A large R has a hundred thousand groups, nearly all of which are asked for about equally often.
    """
    if len(P) <= _FEW_GROUPS:
        return P, np.ones_like(P)
    kind = (np.log(P) * _KINDS_PER_E).astype(np.int64)
    kind -= kind.min()
    number = np.bincount(kind)
    there = number > 0
    return np.bincount(kind, P)[there] / number[there], number[there].astype(np.float64)


def needed_pages(shares: Floats, tuples: float) -> float:
    """Number of different pages that `tuples` tuples need."""
    return float(-np.expm1(-shares * tuples).sum())


def fresh_pages(keys: KeyClasses, n_pages: float, seen: float) -> float:
    """Pages per tuple that nobody has asked for before, after `seen` tuples.

    Neither the tuple's key has come before nor another one on its page. Keys that have a page's share of the stream or
    more stand on few pages; what the others have is spread evenly.
    """
    mass = keys.count * keys.p
    there = keys.m > 0
    spread = float(mass[there & (keys.p * n_pages <= 1.0)].sum())
    return float((mass * np.exp(-keys.p * seen))[there].sum()) * math.exp(-seen * spread / n_pages)


def page_runs(pages: float, n_pages: float, gap_pages: float) -> float:
    """Reads for `pages` of the pages of R when neighbours up to `gap_pages` apart come in one read.

    With needed pages spread at random the way to the next one is geometric.
    """
    if pages <= 1 or n_pages <= 1:
        return min(pages, 1.0) if pages <= 1 else 1.0
    density = min(pages / n_pages, 1.0)
    return max(pages * math.pow(1.0 - density, 1.0 + gap_pages), 1.0)
