"""What all formulas share: the shape of a prediction, and how loads are shared by tuples that wait.

A formula says, per stream tuple, how often each counter of `JoinStats` goes up; the cost clock prices that just as it
prices a run. c_loop is then the price of one turn of the main loop, w tuples, and the service rate is w / c_loop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from semistream.cost.clock import CostClock, chunks_per_tuple, deep_counts, hit_share
from semistream.cost.division import Division
from semistream.cost.probability import Floats, KeyClasses
from semistream.cost.profile import CostProfile
from semistream.cost.setting import Setting

#: ranks whose place among the page groups is drawn one by one; the others spread evenly
_PLACED_KEYS = 1 << 18
_PLACING_SEED = 20_140_209


@dataclass(frozen=True)
class Prediction:
    """What a formula says about an algorithm in a setting."""

    algorithm: str
    #: bytes by component, named as in `join.memory`
    memory: Mapping[str, int]
    #: the papers' symbols: d, h_R, h_S, k, w_N, w_S ...
    symbols: Mapping[str, float]
    #: operations per stream tuple, named as in `join.stats`, "chunks" and `deep_counts`
    counts: Mapping[str, float]
    #: stream tuples per turn of the main loop, and what the turn takes
    w: float
    c_loop: float
    #: seconds per turn by term; their sum is the papers' serial c_loop
    terms: Mapping[str, float]
    hit_rate: float
    #: stream tuples that come while a tuple waits: on average over all tuples, and at most
    delay_tuples: float
    longest_delay_tuples: float

    @property
    def service_rate_per_s(self) -> float:
        """mu = w / c_loop."""
        return self.w / self.c_loop if self.c_loop > 0 else math.inf

    @property
    def memory_bytes(self) -> int:
        return sum(self.memory.values())

    @property
    def reads_per_tuple(self) -> float:
        return self.counts.get("reads", 0.0)

    @property
    def delay_s(self) -> float:
        """Mean delay at full speed."""
        return self.delay_tuples / self.service_rate_per_s

    @property
    def longest_delay_s(self) -> float:
        return self.longest_delay_tuples / self.service_rate_per_s


def predict(
    algorithm: str,
    s: Setting,
    profile: CostProfile,
    counts: Mapping[str, float],
    division: Division,
    *,
    memory: Mapping[str, float],
    symbols: Mapping[str, float],
    delay: float = 0.0,
    longest_delay: float = 0.0,
) -> Prediction:
    """Complete a formula's counts: chunks, price, c_loop. Counts are per stream tuple."""
    full = {
        "tuples_in": 1.0,
        "finished": 1.0,
        "rows_out": s.rows_out,
        "unmatched": s.keys.absent_share,
        "chunks": chunks_per_tuple(division.chunk, s.batch),
        **counts,
    }
    full |= deep_counts(algorithm, full, s.M, s.R_t * s.row_bytes)
    price = CostClock(profile).price(algorithm, full, direct=s.direct, parquet=not s.has_index, row_bytes=s.v_O)
    turns = full.get("iterations", 0.0)
    w = 1.0 / turns if turns > 0 else float(s.batch)
    parts = {"index": division.index, "scratch": division.scratch, "disk buffer": division.buffer, **memory}
    return Prediction(
        algorithm=algorithm,
        memory={name: int(size) for name, size in parts.items()},
        symbols={"M": s.M, "R_t": s.R_t, "d": division.d, **symbols},
        counts=full,
        w=w,
        c_loop=w * price.seconds,
        terms={symbol: w * seconds for symbol, seconds in price.terms.items()},
        hit_rate=hit_share(full),
        delay_tuples=delay,
        longest_delay_tuples=longest_delay,
    )


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
    placed = int(np.searchsorted(upto, _PLACED_KEYS, side="right"))
    random = np.random.default_rng(_PLACING_SEED)
    weights = np.repeat(mass[:placed] / number[:placed], number[:placed])
    if placed == len(number):
        # All keys have a place of their own, so groups are equally large.
        where = random.permutation(len(weights)) * groups // max(len(weights), 1)
    else:
        where = random.integers(0, groups, len(weights))
    return np.asarray(np.bincount(where, weights, minlength=groups) + float(mass[placed:].sum()) / groups)


@dataclass(frozen=True)
class Shared:
    """How loads are shared: loads per waiting tuple, and how long (in such tuples) one waits at most."""

    loads: float
    longest: float
    #: tuples of each load on average, and waiting on average
    w_S: float
    waiting: float


def oldest_first(shares: Floats, h_S: float, absent: float = 0.0) -> Shared:
    """HYBRIDJOIN's disk phase: the oldest tuple picks the load, and all that wait for the same group leave with it.

    A group asked for with probability P is loaded when its first tuple has become the oldest, L tuples after it
    came; then 1/P tuples pass until the next one. So it is loaded P / (1 + P·L) times per tuple, each time for 1 + P·L
    tuples. L is where those that wait, P·L·(1 + P·L/2) / (1 + P·L) a group, fill H_S. Where H_S is small every load
    serves one tuple; where it is large, twice h_S over the number of groups: twice MESHJOIN's, for a tuple waits
    half as long.

    Tuples of absent keys stay until they are the oldest, L.
    """
    P = shares[shares > 0]
    low, high = 0.0, 4.0 * h_S * max(len(P), 1) + 16
    for _ in range(60):
        L = (low + high) / 2
        x = P * L
        waiting = float((x * (1 + x / 2) / (1 + x)).sum()) * (1 - absent) + absent * L
        w_S = 1.0 / max(float((P / (1 + x)).sum()), 1e-12)
        # H_S is full when a load begins and has room for w_S when it is done.
        if waiting + w_S / 2 > h_S:
            high = L
        else:
            low = L
    loads = min(float((P / (1 + P * low)).sum()), 1.0)
    return Shared(loads, low, 1.0 / loads if loads else math.inf, waiting)


def needed_pages(shares: Floats, tuples: float) -> float:
    """Number of different pages that `tuples` tuples need."""
    return float(-np.expm1(-shares * tuples).sum())


def page_runs(pages: float, n_pages: float, gap_pages: float) -> float:
    """Reads for `pages` of the pages of R when neighbours up to `gap_pages` apart come in one read.

    With needed pages spread at random the way to the next one is geometric.
    """
    if pages <= 1 or n_pages <= 1:
        return min(pages, 1.0) if pages <= 1 else 1.0
    density = min(pages / n_pages, 1.0)
    return max(pages * math.pow(1.0 - density, 1.0 + gap_pages), 1.0)
