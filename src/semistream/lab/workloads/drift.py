"""Skew that moves: which keys are hot changes at given rows, at once or little by little.

A cache that only ever sees one hot set is never asked to forget. The law stays Zipf's; what changes is which key
has which rank. During a gradual change a row obeys the new order with a probability that rises from 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semistream.errors import ConfigError
from semistream.lab.workloads.counter import stream_seed, unit, words
from semistream.lab.workloads.zipf import zipf_keys


@dataclass(frozen=True)
class Drift:
    """The hot set changes at each row of `at`, and each change takes `over` rows (0: all at once)."""

    at: tuple[int, ...]
    over: int = 0

    def __post_init__(self) -> None:
        ends = [point + max(self.over, 1) for point in self.at]
        if self.over < 0 or any(point < 0 for point in self.at):
            raise ConfigError(f"changes at {self.at} over {self.over} rows; row numbers must not be negative")
        if any(end > point for end, point in zip(ends, self.at[1:], strict=False)):
            raise ConfigError(
                f"changes at {self.at} over {self.over} rows overlap; let each end before the next begins"
            )

    def epochs(self, seed: int, start: int, stop: int) -> np.ndarray:
        """Number of the hot set that each row obeys: 0 before the first change."""
        rows = np.arange(start, stop, dtype=np.int64)
        begun = np.searchsorted(np.array(self.at, dtype=np.int64), rows, side="right")
        if self.over == 0 or not self.at:
            return begun
        progress = (rows - np.array(self.at, dtype=np.int64)[np.maximum(begun - 1, 0)]) / self.over
        waits = unit(words(stream_seed(seed, "drift"), start, stop - start)) > progress
        return np.asarray(begun - (waits & (begun > 0)))


def epoch_seed(hot_seed: int, epoch: int) -> int:
    """Which keys are hot in that epoch; epoch 0 is the stream without drift."""
    return hot_seed if epoch == 0 else stream_seed(hot_seed, f"epoch {epoch}")


def drifting_keys(
    n_keys: int, exponent: float, seed: int, start: int, stop: int, *, hot_seed: int, drift: Drift
) -> np.ndarray:
    """Like `zipf_keys`, with the hot set of each row's epoch.

    >>> calm = zipf_keys(100, 1.0, 7, 0, 10)
    >>> (drifting_keys(100, 1.0, 7, 0, 20, hot_seed=7, drift=Drift((10,)))[:10] == calm).all()
    np.True_
    """
    epochs = drift.epochs(seed, start, stop)
    out = np.empty(stop - start, dtype=np.int64)
    for epoch in np.unique(epochs).tolist():
        mine = np.flatnonzero(epochs == epoch)
        # An epoch's rows are one stretch, but for the stretch it shares with its neighbour.
        first, last = int(mine[0]), int(mine[-1]) + 1
        keys = zipf_keys(n_keys, exponent, seed, start + first, last - first, hot_seed=epoch_seed(hot_seed, epoch))
        out[mine] = keys[mine - first]
    return out
