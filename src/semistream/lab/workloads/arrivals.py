"""When stream tuples arrive: constant, Poisson, and bursty at every time scale.

Times are integer nanoseconds after the start and a function of the tuple's number, so they can be entered
anywhere: what lies before a tuple is summed up in few numbers, never drawn tuple by tuple.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from semistream.errors import ConfigError
from semistream.lab.workloads.counter import stream_seed, unit, words

SECOND = 1_000_000_000
#: Poisson arrivals are summed up in blocks of this many tuples.
_BLOCK = 4096
#: A heavy tail has no end, an int64 of nanoseconds has: no on or off time is more than this many times the least.
_LONGEST = 2.0**20
#: What came before is kept as a list of changes, about two per step: this many steps are some hundred megabytes.
_MOST_STEPS = 1 << 23


@dataclass(frozen=True)
class Arrivals(ABC):
    """A point process with a mean rate in tuples per second."""

    rate_per_s: float

    def __post_init__(self) -> None:
        if not 0 < self.rate_per_s <= SECOND:
            raise ConfigError(f"rate_per_s={self.rate_per_s:g}; allowed is more than 0, up to one per nanosecond")

    def times(self, start: int, stop: int) -> np.ndarray:
        """Nanoseconds at which the tuples start .. stop - 1 arrive; they never decrease."""
        if not 0 <= start <= stop:
            raise ConfigError(f"tuples {start} to {stop}; give 0 <= start <= stop")
        return self._times(start, stop) if stop > start else np.empty(0, dtype=np.int64)

    @abstractmethod
    def _times(self, start: int, stop: int) -> np.ndarray: ...

    @abstractmethod
    def arrived(self, at: np.ndarray) -> np.ndarray:
        """How many tuples have arrived at these times (nanoseconds, each tuple at its time included)."""


@dataclass(frozen=True)
class ConstantArrivals(Arrivals):
    """Equal distances, the first tuple at 0.

    >>> ConstantArrivals(4).times(0, 3).tolist()
    [0, 250000000, 500000000]
    """

    def _times(self, start: int, stop: int) -> np.ndarray:
        return np.floor(np.arange(start, stop, dtype=np.float64) * (SECOND / self.rate_per_s)).astype(np.int64)

    def arrived(self, at: np.ndarray) -> np.ndarray:
        wanted = np.asarray(at, dtype=np.int64)
        guess = (wanted * (self.rate_per_s / SECOND)).astype(np.int64)
        # Rounding may put the guess one off on either side; the times themselves decide.
        gap = SECOND / self.rate_per_s
        near = guess[..., None] + np.arange(-1, 3)
        before = (np.floor(np.maximum(near, 0) * gap).astype(np.int64) <= wanted[..., None]) & (near >= 0)
        return np.where(wanted < 0, 0, np.maximum(guess - 1, 0) + before.sum(axis=-1))


@dataclass(frozen=True)
class PoissonArrivals(Arrivals):
    """Independent exponential distances.

    The sum of a block's distances and their proportions are independent of each other, so the sum is drawn first
    (a gamma law) and the proportions only for a block that somebody asks for.
    """

    seed: int = 0

    def _times(self, start: int, stop: int) -> np.ndarray:
        first, last = start // _BLOCK, -(-stop // _BLOCK)
        edges = _poisson_edges(self, _doubled(last))[first : last + 1]
        draws = unit(words(stream_seed(self.seed, "poisson"), first * _BLOCK, (last - first) * _BLOCK))
        reached = np.cumsum(-np.log(draws).reshape(-1, _BLOCK), axis=1)
        reached /= reached[:, -1:]
        inside = (reached * np.diff(edges)[:, None]).astype(np.int64)
        return (edges[:-1, None] + inside).ravel()[start - first * _BLOCK : stop - first * _BLOCK]

    def arrived(self, at: np.ndarray) -> np.ndarray:
        wanted = np.asarray(at, dtype=np.int64)
        latest = int(wanted.max(initial=0))
        blocks = 1
        while int(_poisson_edges(self, blocks)[-1]) <= latest:
            blocks *= 2
        edges = _poisson_edges(self, blocks)
        first = int(np.searchsorted(edges, int(wanted.min(initial=0)), side="left"))
        last = int(np.searchsorted(edges, latest, side="right"))
        start, stop = max(first - 1, 0) * _BLOCK, last * _BLOCK
        return start + np.searchsorted(self._times(start, stop), wanted, side="right")


def _doubled(count: int) -> int:
    """The next power of two, so that growing tables are made anew a few times only."""
    return 1 << (count - 1).bit_length()


@lru_cache(maxsize=8)
def _poisson_edges(arrivals: PoissonArrivals, blocks: int) -> np.ndarray:
    """Where the blocks begin and end, in nanoseconds.

    Gamma draws by Marsaglia and Tsang (2000), four attempts per block; each succeeds with a probability of more
    than 0.999 for a shape of 4096, so a block without any exists in none but unbelievably long streams.
    """
    shape = _BLOCK - 1.0 / 3.0
    draws = unit(words(stream_seed(arrivals.seed, "poisson blocks"), 0, blocks * 12)).reshape(blocks, 4, 3)
    normal = np.sqrt(-2.0 * np.log(draws[..., 0])) * np.cos(2.0 * np.pi * draws[..., 1])
    v = (1.0 + normal / np.sqrt(9.0 * shape)) ** 3
    right = np.log(draws[..., 2]) < 0.5 * normal**2 + shape * (1.0 - v + np.log(v))
    chosen = v[np.arange(blocks), right.argmax(axis=1)] * shape
    sums = np.rint(chosen * (SECOND / arrivals.rate_per_s)).astype(np.int64)
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sums)))


@dataclass(frozen=True)
class BurstyArrivals(Arrivals):
    """Superposed on/off sources with bandwidths 1, 2, 4 .. 32: bursts at every scale, as in the papers.

    Each source is on and off in turn; the times are drawn from a Pareto law with index `tail` and are longer for
    a source of greater bandwidth in proportion: `step_s` on average for the smallest. A tail between 1 and 2 has
    a mean but no variance, and the counts are self-similar with Hurst exponent H = (3 - tail) / 2. Tuples come
    at equal distances while the total bandwidth stays the same.

    The papers' own generator draws the times from a truncated 1/x law, for which no H is known; the sources and
    the growth of their times with bandwidth are taken from it.

    The mean rate is reached slowly, as heavy tails do: a run of minutes may lie a factor of two off.
    """

    seed: int = 0
    tail: float = 1.4
    step_s: float = 0.01
    sources: int = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 < self.tail < 2 or not 1e-6 <= self.step_s <= 3600 or not 1 <= self.sources <= 10:
            raise ConfigError(
                f"tail={self.tail}, step_s={self.step_s}, sources={self.sources}; allowed are a tail between 1 and 2, "
                "a step of a microsecond to an hour, 1 to 10 sources"
            )

    @property
    def hurst(self) -> float:
        """The exponent the counts have over long spans."""
        return (3.0 - self.tail) / 2.0

    @property
    def _work(self) -> int:
        """Bandwidth times nanoseconds that one tuple stands for; on half of the time, sources add up to this."""
        return max(1, round(((1 << self.sources) - 1) / 2 * SECOND / self.rate_per_s))

    def _times(self, start: int, stop: int) -> np.ndarray:
        # The first tuple arrives when the work for one is done.
        done = np.arange(start + 1, stop + 1, dtype=np.int64) * self._work
        profile = self._grown(lambda p: int(p.work[-1]) >= int(done[-1]))
        piece = np.searchsorted(profile.work, done, side="left") - 1
        missing = done - profile.work[piece]
        level = profile.level[piece]
        return np.asarray(profile.start[piece] + (missing + level - 1) // level)

    def arrived(self, at: np.ndarray) -> np.ndarray:
        wanted = np.maximum(np.asarray(at, dtype=np.int64), 0)
        profile = self._grown(lambda p: int(p.start[-1]) > int(wanted.max(initial=0)))
        piece = np.searchsorted(profile.start, wanted, side="right") - 1
        done = profile.work[piece] + (wanted - profile.start[piece]) * profile.level[piece]
        return np.asarray(done // self._work)

    def _grown(self, reaches: Callable[[Profile], bool]) -> Profile:
        steps = 1024
        while not reaches(profile := _profile(self, steps)):
            steps *= 4
            if steps > _MOST_STEPS:
                raise ConfigError(
                    f"bursts of step_s={self.step_s} over more than {_MOST_STEPS * self.step_s:.0f} s are too many to "
                    "keep; take a longer step_s"
                )
        return profile


class Profile(NamedTuple):
    """Total bandwidth over time: from `start[i]` on it is `level[i]`, and `work[i]` has been done before."""

    start: np.ndarray
    level: np.ndarray
    work: np.ndarray


@lru_cache(maxsize=4)
def _profile(arrivals: BurstyArrivals, steps: int) -> Profile:
    """The first `steps` steps. A longer profile begins with the shorter ones: all sums are of integers."""
    horizon = int(steps * arrivals.step_s * SECOND)
    least = arrivals.step_s * SECOND * (arrivals.tail - 1.0) / arrivals.tail
    starts, changes = [np.zeros(1, dtype=np.int64)], [np.zeros(1, dtype=np.int64)]
    for source in range(arrivals.sources):
        bandwidth = 1 << source
        seed = stream_seed(arrivals.seed, f"bursty/{source}")
        switches = _switches(seed, least * bandwidth, arrivals.tail, horizon, int(steps / bandwidth) + 64)
        # Word 0 says how the source begins, word n + 1 is the n-th time.
        on_first = bool(words(seed, 0, 1)[0] & np.uint64(1))
        sign = np.where(np.arange(len(switches)) % 2 == 0, 1, -1) * (-bandwidth if on_first else bandwidth)
        starts.append(switches)
        changes.append(sign)
        changes[0] = changes[0] + (bandwidth if on_first else 0)
    when = np.concatenate(starts)
    order = np.argsort(when, kind="stable")
    start = np.append(when[order], horizon)
    level = np.append(np.cumsum(np.concatenate(changes)[order]), 0)
    work = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(np.diff(start) * level[:-1])))
    return Profile(start, level, work)


def _switches(seed: int, least: float, tail: float, horizon: int, guess: int) -> np.ndarray:
    """When a source changes, before the horizon."""
    count = guess
    while True:
        lengths = np.minimum(unit(words(seed, 1, count)) ** (-1.0 / tail), _LONGEST) * least
        when = np.cumsum(np.maximum(lengths, 1.0).astype(np.int64))
        if when[-1] >= horizon:
            return when[when < horizon]
        count *= 2
