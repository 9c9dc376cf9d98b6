"""The yardsticks measured on cases whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from tests.lab.workloads.estimators import (
    chi_square_p,
    fractional_noise,
    gamma_tail,
    hurst_by_range,
    hurst_by_variance,
)


@pytest.mark.parametrize(
    ("freedom", "statistic", "tail"),
    # The 5 % and 0.1 % points of the chi-square tables, and two points far from the middle.
    [
        (1, 3.841, 0.05),
        (10, 18.307, 0.05),
        (100, 124.342, 0.05),
        (5, 20.515, 0.001),
        (4, 0.297, 0.99),
        (50, 27.991, 0.995),
    ],
)
def test_chi_square_tail(freedom: int, statistic: float, tail: float) -> None:
    assert gamma_tail(freedom / 2, statistic / 2) == pytest.approx(tail, rel=1e-3)


def test_fit_and_misfit() -> None:
    expected = np.geomspace(1000, 0.01, 200)
    draws = np.random.default_rng(1).poisson(expected)
    assert 0.001 < chi_square_p(draws, expected * draws.sum() / expected.sum()) < 0.999
    assert chi_square_p(draws[::-1], expected) < 1e-9


def test_fractional_noise_has_its_covariance() -> None:
    noise = fractional_noise(1 << 16, 0.8, seed=2)
    assert noise.var() == pytest.approx(1.0, abs=0.1)
    # (2^(2H) - 2) / 2 between neighbours.
    assert (noise[1:] * noise[:-1]).mean() == pytest.approx(0.5 * 2**1.6 - 1, abs=0.05)


@pytest.mark.parametrize("hurst", [0.5, 0.6, 0.7, 0.8])
def test_hurst_of_fractional_noise(hurst: float) -> None:
    noise = fractional_noise(1 << 15, hurst, seed=7)
    assert hurst_by_variance(noise) == pytest.approx(hurst, abs=0.05)
    # The range of short blocks leans upwards for H = 0.5, a bias that is known.
    assert hurst_by_range(noise) == pytest.approx(hurst, abs=0.08)


def test_hurst_of_independent_counts() -> None:
    counts = np.random.default_rng(3).poisson(20, 1 << 15)
    assert hurst_by_variance(counts) == pytest.approx(0.5, abs=0.05)
    assert hurst_by_range(counts) == pytest.approx(0.5, abs=0.08)
