"""The little statistics that the generators are judged by, and noise of known kind to judge them by in turn."""

from __future__ import annotations

import math

import numpy as np


def chi_square_p(observed: np.ndarray, expected: np.ndarray) -> float:
    """Probability that counts drawn by the expected law fit it worse than the observed ones do.

    Neighbouring cells are merged until each is expected five times or more, where the law of the statistic holds.
    """
    cell = (np.cumsum(expected) // 5).astype(np.int64)
    cell = np.minimum(np.concatenate(([0], cell[:-1])), int(expected.sum() // 5) - 1)
    merged = [np.bincount(cell, weights=counts) for counts in (observed, expected)]
    filled = merged[1] > 0
    observed, expected = merged[0][filled], merged[1][filled]
    statistic = float(((observed - expected) ** 2 / expected).sum())
    return gamma_tail((len(expected) - 1) / 2, statistic / 2)


def gamma_tail(a: float, x: float) -> float:
    """The regularised upper incomplete gamma function: by its series below the mode, by Lentz's fraction above."""
    if a <= 0 or x <= 0:
        return 1.0
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1.0 / a
        n = a
        while term > total * 1e-15:
            n += 1
            term *= x / n
            total += term
        return max(0.0, 1.0 - total * scale)
    b = x + 1 - a
    c, d = math.inf, 1 / b
    fraction = d
    for i in range(1, 10_000):
        factor = -i * (i - a)
        b += 2
        d = 1 / (factor * d + b)
        c = b + factor / c
        fraction *= d * c
        if abs(d * c - 1) < 1e-14:
            break
    return fraction * scale


def _blocks(series: np.ndarray, size: int) -> np.ndarray:
    return series[: len(series) // size * size].reshape(-1, size)


def hurst_by_variance(counts: np.ndarray) -> float:
    """Means over m counts have a variance that falls as m^(2H - 2)."""
    sizes = np.unique(np.geomspace(4, len(counts) / 64, 16).astype(int))
    variances = [_blocks(counts, size).mean(axis=1).var() for size in sizes]
    return float(1 + np.polyfit(np.log(sizes), np.log(variances), 1)[0] / 2)


def hurst_by_range(counts: np.ndarray) -> float:
    """The range of a block's running sum, over the block's deviation, grows as m^H."""
    sizes = np.unique(np.geomspace(32, len(counts) / 16, 12).astype(int))
    ratios = []
    for size in sizes:
        blocks = _blocks(counts, size)
        deviation = blocks.std(axis=1)
        sums = np.cumsum(blocks - blocks.mean(axis=1, keepdims=True), axis=1)
        spread = sums.max(axis=1) - sums.min(axis=1)
        ratios.append((spread[deviation > 0] / deviation[deviation > 0]).mean())
    return float(np.polyfit(np.log(sizes), np.log(ratios), 1)[0])


def fractional_noise(n: int, hurst: float, seed: int) -> np.ndarray:
    """Gaussian noise with that Hurst exponent, exact: its covariance is embedded in a circulant (Davies, Harte)."""
    lag = np.arange(n + 1, dtype=np.float64)
    power = 2 * hurst
    covariance = 0.5 * ((lag + 1) ** power - 2 * lag**power + np.abs(lag - 1) ** power)
    spectrum = np.fft.rfft(np.concatenate((covariance, covariance[-2:0:-1]))).real
    draws = np.random.default_rng(seed)
    noise = draws.normal(size=len(spectrum)) + 1j * draws.normal(size=len(spectrum))
    noise[[0, -1]] = noise[[0, -1]].real * math.sqrt(2)
    return np.fft.irfft(noise * np.sqrt(np.maximum(spectrum, 0) * n / 2) * math.sqrt(2), 2 * n)[:n]
