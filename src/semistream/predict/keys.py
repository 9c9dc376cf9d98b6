"""How likely stream tuples meet what is in memory: w_N and w_S for any distribution of the keys.

The papers take Zipf's law with exponent 1 and one master tuple per key, and approximate its sums by logarithms (ssj2014
eqs 4-10, oxhybridjoin2012 eqs 4-9). Here a stream is a list of key classes: a number of keys, each with probability p
and m master tuples. That says all of it at once: any exponent, many master tuples per key, keys that R lacks (m = 0),
and what a sample of a real stream shows. A formula is then a sum over classes, a few hundred terms for any number of
keys: a plan asks for hundreds of such sums before the first tuple is joined.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from semistream.errors import ConfigError

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

#: the last rank of a class is so many times the last one of the class before; up to where that is one rank further
#: each rank is a class
_CLASS_GROWTH = 1.03
_SINGLE_RANKS = math.ceil(1.0 / (_CLASS_GROWTH - 1.0))
#: how exactly the level of a frequency recorder is looked for: as a part of the cache, and as the root of a count
_LEVEL_STEP = 1e-4
#: so many powers of e below what is looked for a line says nothing
_FAR_BELOW = 50.0
#: terms summed one by one before the Euler-Maclaurin formula takes over
_FIRST_TERMS = 32
_MOST_ROWS_PER_KEY = 12
#: a key seen so often in a sample has a probability of its own; the rarer ones form the tail
_SURE_COUNT = 5


def harmonic(n: Any, exponent: float) -> Floats:
    """Generalised harmonic numbers H(n) = sum of k^-exponent, k = 1 .. n, for numbers or arrays of them.

    Euler-Maclaurin from the 32nd term on: twelve correct digits for any n, in no time. At exponent 1 it is
    ln n + gamma + 1/(2n), the form the papers use.

    >>> round(float(harmonic(100_000_000, 1.0)), 6)
    18.997896
    """
    n = np.asarray(n, dtype=np.float64)
    s = float(exponent)
    if s < 0:
        raise ConfigError(f"exponent={exponent} is out of range; allowed are numbers from 0 (uniform), 1 is usual")
    a = float(_FIRST_TERMS)
    terms = np.arange(1, _FIRST_TERMS, dtype=np.float64) ** -s
    few = np.concatenate(([0.0], np.cumsum(terms)))
    x = np.maximum(n, a)
    y = (1.0 - s) * np.log(x / a)
    if abs(1.0 - s) < 1e-12:
        integral = np.log(x / a)
    else:
        integral = a ** (1.0 - s) * np.expm1(y) / (1.0 - s)
    tail = integral + (a**-s + x**-s) / 2 + s / 12 * (a ** (-s - 1) - x ** (-s - 1))
    tail -= s * (s + 1) * (s + 2) / 720 * (a ** (-s - 3) - x ** (-s - 3))
    at = np.clip(n, 0, _FIRST_TERMS - 1).astype(np.int64)
    return np.asarray(np.where(n < a, few[at], few[-1] + tail))


@dataclass(frozen=True)
class KeyClasses:
    """Keys of a stream: `count` keys with stream probability `p` each and `m` master tuples each, p falling.

    Probabilities sum to 1 over all keys; classes with m = 0 are keys that R lacks.
    """

    count: Floats
    p: Floats
    m: Floats

    def __post_init__(self) -> None:
        total = float((self.count * self.p).sum())
        if abs(total - 1.0) > 1e-6:
            raise ConfigError(f"the probabilities of all keys sum to {total}; they must sum to 1")

    @property
    def absent_share(self) -> float:
        """Share of the stream whose keys R lacks."""
        return float((self.count * self.p)[self.m == 0].sum())

    @property
    def rows_per_tuple(self) -> float:
        """Output rows per stream tuple on average: the mean of m over the stream."""
        return float((self.count * self.p * self.m).sum())

    def p_N(self, cached: Floats) -> float:
        """Share of the stream answered when this part of each class is cached (ssj2014 eq 4, generalised)."""
        return float((self.count * self.p * cached).sum())

    def most_frequent(self, h_R: float, absent_free: bool = True) -> Floats:
        """Part of each class in a cache of h_R master tuples that holds the most frequent keys.

        A key R lacks takes no tuple; with `absent_free` False it takes the place of one (its directory entry).
        """
        size = self.m if absent_free else np.maximum(self.m, 1.0)
        need = self.count * size
        before = np.cumsum(need) - need
        room = np.clip(h_R - before, 0.0, None)
        return np.clip(np.divide(room, need, out=np.ones_like(need), where=need > 0), 0.0, 1.0)

    def recorded(self, h_R: float, memory: float, entry: float = 0.0, seen: float = math.inf) -> Floats:
        """Part of the time that each key is cached when a frequency recorder picks h_R tuples by what it counted.

        The recorder remembers about `memory` stream tuples, so it sees a key of probability p as Poisson(p·memory):
        keys near the border are taken for one another. The level that a count must exceed is where the cache is
        just full. `entry` is what a key without master tuples takes, in tuples: 1 where the directory is what is full.

        After only `seen` tuples the recorder knows no more than these, and no key is cached that has not come yet.
        """
        size = self.count * (self.m + entry * (self.m == 0))
        came = self.came(seen)
        if float((size * came).sum()) <= h_R:
            return came
        expected = np.sqrt(self.p * min(memory, seen))

        def above(level: float) -> Floats:
            return np.minimum(normal_cdf(2 * (expected - level)), came)

        # Where the cache would be full if counts were exact.
        border = min(int(np.searchsorted(np.cumsum(size * came), h_R)), len(expected) - 1)
        top = float(expected.max()) + 4.0
        room = max(h_R, 1e-9)
        return above(_level(lambda level: float((size * above(level)).sum()) / room, float(expected[border]), top))

    def fills(self, h_R: float, seen: float) -> bool:
        """Whether a cache of h_R tuples that lets everything in has room left after `seen` tuples, and will be full."""
        return self.distinct(seen) < min(h_R, float(self.count.sum()))

    def came(self, tuples: float) -> Floats:
        """How likely each key is among that many stream tuples: all of them where there is no end."""
        return -np.expm1(-self.p * tuples) if math.isfinite(tuples) else np.ones_like(self.p)

    def without(self, cached: Floats) -> KeyClasses:
        """The stream behind the cache: what misses, with probabilities that sum to 1 again."""
        left = self.count * (1.0 - cached)
        share = float((left * self.p).sum())
        if share <= 0:
            return KeyClasses(np.ones(1), np.ones(1), np.ones(1))
        keep = left > 0
        return KeyClasses(left[keep], self.p[keep] / share, self.m[keep])

    def distinct(self, tuples: float) -> float:
        """Expected number of different keys among `tuples` stream tuples."""
        return float((self.count * self.came(tuples)).sum())


def _level(filled: Callable[[float], float], guess: float, top: float) -> float:
    """The level from 0 to `top` at which `filled`, which falls, is 1: 0 where it is less everywhere.

    Straight lines through the logarithm of the two closest values, from both sides: a third of the steps of halving.
    """
    low, high = 0.0, top
    above = below = None
    level = min(guess, top)
    while high - low > _LEVEL_STEP:
        found = math.log(max(filled(level), 1e-300))
        if abs(found) < _LEVEL_STEP:
            break
        if found > 0:
            low, above = level, found
        else:
            high, below = level, found
        if above is None:
            level = 0.7 * high
        elif below is None:
            level = min(1.3 * low + 0.3, top)
        else:
            part = above / (above - below) if below > -_FAR_BELOW else 0.5
            level = low + (high - low) * min(max(part, 0.02), 0.98)
    return level


def normal_cdf(z: Floats) -> Floats:
    """Standard normal distribution function (Abramowitz and Stegun 7.1.26, error below 1e-7)."""
    x = np.abs(z) / math.sqrt(2.0)
    t = 1.0 / (1.0 + 0.3275911 * x)
    series = ((((1.061405429 * t - 1.453152027) * t) + 1.421413741) * t - 0.284496736) * t + 0.254829592
    tail = series * t * np.exp(-x * x) / 2.0
    return np.asarray(np.where(z >= 0, 1.0 - tail, tail))


def rank_classes(first: int, last: int) -> tuple[Int64s, Int64s]:
    """Ranks first .. last cut into classes: one rank each at the front, then ever wider; (begin, end) of each."""
    single = min(last, max(first - 1, _SINGLE_RANKS))
    edges = [np.arange(first - 1, single + 1, dtype=np.float64)]
    if single < last:
        steps = math.ceil(math.log(last / single) / math.log(_CLASS_GROWTH))
        edges.append(np.geomspace(single, last, steps + 1)[1:])
    whole = np.unique(np.rint(np.concatenate(edges)).astype(np.int64))
    return whole[:-1], whole[1:]


def zipf(
    n_keys: int,
    exponent: float,
    *,
    rows_per_key: float = 1.0,
    absent: float = 0.0,
    repeated: bool = False,
) -> KeyClasses:
    """A stream by Zipf's law over n_keys keys.

    `absent` is the share of keys, whatever their rank, that R lacks. With `repeated` R's keys were drawn with
    repetition, as ssbj2019 does: the number of master tuples of a key is Poisson(rows_per_key), so some keys have
    none. Else each key that R has, has rows_per_key of them.

    >>> round(zipf(1_000_000, 1.0).p_N(zipf(1_000_000, 1.0).most_frequent(10_000)), 3)
    0.68
    """
    if n_keys < 1:
        raise ConfigError(f"n_keys={n_keys} is out of range; allowed are whole numbers from 1")
    if not 0.0 <= absent < 1.0:
        raise ConfigError(f"absent={absent} is out of range; allowed are shares from 0 and below 1")
    begin, end = rank_classes(1, n_keys)
    sums = harmonic(np.append(begin[:1], end), exponent)
    width = (end - begin).astype(np.float64)
    p = np.diff(sums) / width / float(harmonic(n_keys, exponent))
    p /= float((p * width).sum())
    shares: list[tuple[float, float]] = [(1.0 - absent, rows_per_key)]
    if repeated:
        weights = [math.exp(-rows_per_key) * rows_per_key**m / math.factorial(m) for m in range(_MOST_ROWS_PER_KEY)]
        shares = [((1.0 - absent) * w / sum(weights), float(m)) for m, w in enumerate(weights)]
    if absent:
        shares.append((absent, 0.0))
    return _split(width, p, shares)


def _split(width: Floats, p: Floats, shares: list[tuple[float, float]]) -> KeyClasses:
    """Each class once for every number of master tuples its keys may have."""
    if len(shares) == 1:
        return KeyClasses(width, p, np.full(len(p), shares[0][1]))
    part, m = (np.array(column) for column in zip(*shares, strict=True))
    return KeyClasses(
        (width[:, None] * part[None, :]).ravel(),
        np.repeat(p, len(part)),
        np.tile(m, len(p)),
    )


class FrequencySample:
    """Counts of the keys of a stream, bounded: a Misra-Gries summary that takes whole batches.

    Counting a batch is one sort (`np.unique`) and merging it with the summary another, so there is no loop over
    tuples; when more than `capacity` keys are known, all counts are lowered by that of the first one too many. A
    count is then too small by at most `seen / capacity`, which is nothing for the keys that matter. A sketch library
    would do the same, but takes one tuple per call.
    """

    def __init__(self, capacity: int = 1 << 17) -> None:
        if capacity < 1:
            raise ConfigError(f"capacity={capacity} is out of range; allowed are whole numbers from 1")
        self.capacity = capacity
        self.codes = np.empty(0, dtype=np.int64)
        self.counts = np.empty(0, dtype=np.int64)
        self.seen = 0
        self.lowered = 0

    def add(self, codes: Int64s) -> None:
        """Count the key codes of a batch."""
        merged, counts = np.unique(np.asarray(codes, dtype=np.int64), return_counts=True)
        self.seen += len(codes)
        if len(self.codes):
            merged, counts = _added(np.append(self.codes, merged), np.append(self.counts, counts))
        self.codes, self.counts = merged, counts
        self.limit(self.capacity)

    def limit(self, capacity: int) -> None:
        """Keep no more than so many keys, from here on."""
        self.capacity = capacity
        if len(self.codes) > capacity:
            last = len(self.counts) - capacity - 1
            excess = int(np.partition(self.counts, last)[last])
            counts = self.counts - excess
            self.lowered += excess
            self.codes, self.counts = self.codes[counts > 0], counts[counts > 0]

    def classes(self, domain: int, *, rows_per_key: float = 1.0, absent: float = 0.0) -> KeyClasses:
        """Key classes of the stream: what was seen often as it was seen, the tail by its power law.

        `domain` is the number of keys that can occur, as a rule those of R. Keys seen five times or more, and more
        often than chance would have it if all were alike, have the probability they showed. The others share what is
        left of the stream, over the rest of the domain, falling with the exponent that the frequent ones fall with
        (uniform where there are too few to tell).
        """
        if self.seen == 0:
            raise ConfigError("the sample is empty; add the key codes of some stream batches first")
        if domain < 1:
            raise ConfigError(f"domain={domain} is out of range; give the number of keys R has")
        counts = self._sure(domain)
        sure = len(counts)
        # Keys that came equally often are a class.
        often, number = np.unique(counts, return_counts=True)
        p, width = often[::-1] / self.seen, number[::-1].astype(np.float64)
        rest = max(1.0 - float((p * width).sum()), 0.0)
        keys = max(domain - sure, 1)
        if rest > 0:
            exponent = self._tail_exponent(counts)
            begin, end = rank_classes(sure + 1, sure + keys)
            sums = harmonic(np.append(begin[:1], end), exponent)
            tail_width = (end - begin).astype(np.float64)
            tail = np.diff(sums) / tail_width
            tail *= rest / float((tail * tail_width).sum())
            width, p = np.concatenate((width, tail_width)), np.concatenate((p, tail))
        order = np.argsort(-p, kind="stable")
        p, width = p[order], width[order]
        p = p / float((p * width).sum())
        shares = [(1.0 - absent, rows_per_key)]
        if absent:
            shares.append((absent, 0.0))
        return _split(width, p, shares)

    def exponent(self, domain: int) -> float:
        """Zipf's exponent as the keys that were seen often show it; 0 where too few of them stand out."""
        return self._tail_exponent(self._sure(domain))

    def top_share(self, keys: int) -> float:
        """Share of the stream that the `keys` most frequent keys had, at least."""
        top = np.sort(self.counts)[::-1][:keys]
        return float(top.sum()) / self.seen if self.seen else 0.0

    def _sure(self, domain: int) -> Floats:
        """Counts, falling, of keys that came five times or more, and more often than if all keys were alike.

        Where counts were lowered, a key's true one is between its count and that plus what was taken off: only those
        that stand out from this are kept apart.
        """
        usual = self.seen / domain
        least = max(_SURE_COUNT, usual + 4 * math.sqrt(usual))
        known = self.counts[self.counts >= 2 * self.lowered] + self.lowered / 2
        falling = np.sort(known[known >= least])[::-1].astype(np.float64)
        return falling[: max(domain - 1, 0)]

    @staticmethod
    def _tail_exponent(counts: Floats) -> float:
        """Slope of the log counts over log rank, for the rarer half of the keys that were seen often."""
        if len(counts) < 20 or counts[0] < 2 * counts[-1]:
            return 0.0
        rank = np.arange(1, len(counts) + 1, dtype=np.float64)
        part = slice(max(len(counts) // 10, 1), None)
        # Every rank of a decade weighs the same, or the flat end of the counts would decide alone.
        weight = 1.0 / np.sqrt(rank[part])
        slope = np.polyfit(np.log(rank[part]), np.log(counts[part]), 1, w=weight)[0]
        return float(np.clip(-slope, 0.0, 3.0))


def _added(codes: Int64s, counts: Int64s) -> tuple[Int64s, Int64s]:
    """Each code once, rising, with the sum of its counts."""
    # Two rising runs, which a stable sort merges.
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    first = np.flatnonzero(np.append(True, codes[1:] != codes[:-1]))
    return codes[first], np.add.reduceat(counts[order], first)
