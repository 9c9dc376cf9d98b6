"""Arrival times: in order, entered anywhere, and as regular, random or bursty as they say."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab.workloads.estimators import chi_square_p, hurst_by_range, hurst_by_variance

from semistream.errors import ConfigError
from semistream.lab.workloads import arrivals as module
from semistream.lab.workloads.arrivals import (
    SECOND,
    Arrivals,
    BurstyArrivals,
    ConstantArrivals,
    PoissonArrivals,
)

KINDS = [
    ConstantArrivals(12_345.6),
    ConstantArrivals(SECOND),
    PoissonArrivals(50_000, seed=3),
    BurstyArrivals(50_000, seed=3),
    BurstyArrivals(2_000_000, seed=1, step_s=1e-5, sources=1),
]
COUNT = 30_000


@pytest.mark.parametrize("arrivals", KINDS, ids=str)
def test_times_never_go_back(arrivals: Arrivals) -> None:
    times = arrivals.times(0, COUNT)
    assert times.dtype == np.int64
    assert times[0] >= 0
    assert (np.diff(times) >= 0).all()


@given(arrivals=st.sampled_from(KINDS), cuts=st.lists(st.integers(0, COUNT), min_size=2, max_size=6))
@settings(max_examples=40)
def test_cutting_does_not_matter(arrivals: Arrivals, cuts: list[int]) -> None:
    cuts.sort()
    whole = arrivals.times(cuts[0], cuts[-1])
    parts = [arrivals.times(first, last) for first, last in pairwise(cuts)]
    assert np.array_equal(np.concatenate(parts), whole)
    assert np.array_equal(whole, arrivals.times(0, COUNT)[cuts[0] : cuts[-1]])


@given(arrivals=st.sampled_from(KINDS), data=st.data())
@settings(max_examples=60)
def test_arrived_counts_the_times(arrivals: Arrivals, data: st.DataObject) -> None:
    times = arrivals.times(0, COUNT)
    at = np.array(data.draw(st.lists(st.integers(0, int(times[-1]) - 1), min_size=1, max_size=20)))
    exactly = times[data.draw(st.lists(st.integers(0, COUNT // 2), max_size=5))]
    asked = np.concatenate((at, exactly))
    assert np.array_equal(arrivals.arrived(asked), np.searchsorted(times, asked, side="right"))


def test_before_the_start_nothing_has_arrived() -> None:
    for arrivals in KINDS:
        assert arrivals.arrived(np.array([-1])).tolist() == [0]
        assert arrivals.times(5, 5).size == 0


def test_constant_keeps_its_distance() -> None:
    times = ConstantArrivals(300).times(0, 301)
    assert times[300] == SECOND
    assert set(np.diff(times).tolist()) == {3_333_333, 3_333_334}


def test_poisson_distances_are_exponential() -> None:
    rate = 1_000.0
    times = PoissonArrivals(rate, seed=5).times(0, 200_000)
    # Across the borders of blocks too: what they add must not show.
    gaps = np.diff(times) / SECOND * rate
    edges = np.linspace(0, 8, 81)
    share = np.diff(np.append(-np.exp(-edges), 0.0))
    observed = np.bincount(np.minimum((gaps * 10).astype(int), 80), minlength=81)
    assert chi_square_p(observed, share * len(gaps)) > 1e-4
    at_borders = gaps[4095::4096]
    assert at_borders.mean() == pytest.approx(1.0, abs=5 / math.sqrt(len(at_borders)))
    assert abs(np.corrcoef(gaps[1:], gaps[:-1])[0, 1]) < 0.015


def test_poisson_counts_vary_as_much_as_their_mean() -> None:
    arrivals = PoissonArrivals(100, seed=8)
    counts = np.diff(arrivals.arrived(np.arange(20_001) * (SECOND // 10)))
    assert counts.mean() == pytest.approx(10, rel=0.02)
    assert counts.var() == pytest.approx(10, rel=0.05)
    assert hurst_by_variance(counts) == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("tail", [1.4, 1.6])
def test_bursty_counts_have_the_hurst_exponent(tail: float) -> None:
    estimates = []
    for seed in range(3):
        arrivals = BurstyArrivals(1e5, seed=seed, tail=tail)
        # Counts over 32 steps, the mean on time of the widest source: self-similarity begins about there.
        edges = np.arange((1 << 14) + 1) * int(32 * arrivals.step_s * SECOND)
        counts = np.diff(arrivals.arrived(edges))
        estimates.append((hurst_by_variance(counts), hurst_by_range(counts)))
    by_variance, by_range = np.mean(estimates, axis=0)
    assert arrivals.hurst == pytest.approx((3 - tail) / 2)
    # Both methods lean downwards for a finite series of long memory; independent counts would give 0.5.
    assert by_variance == pytest.approx(arrivals.hurst, abs=0.08)
    assert by_range == pytest.approx(arrivals.hurst, abs=0.08)


def test_bursty_bandwidths_are_sums_of_the_sources() -> None:
    arrivals = BurstyArrivals(31.5e3, seed=2, step_s=1.0)
    # Tuples a second and bandwidth: 1,000 for each unit. Most seconds see no change, so a whole number.
    counts = np.diff(arrivals.arrived(np.arange(5_001) * SECOND)) / 1000
    assert counts.min() >= 0
    assert counts.max() <= 63.001
    steady = np.abs(counts - np.rint(counts)) < 0.002
    assert steady.mean() > 0.1
    assert len(np.unique(np.rint(counts[steady]))) > 20


def test_bursty_rate_is_reached_in_the_long_run() -> None:
    arrivals = BurstyArrivals(100_000, seed=4, tail=1.7)
    assert arrivals.arrived(np.array([4_000 * SECOND]))[0] == pytest.approx(4e8, rel=0.15)


def test_seeds_differ() -> None:
    for kind in (PoissonArrivals, BurstyArrivals):
        assert not np.array_equal(kind(1_000.0, seed=1).times(0, 50), kind(1_000.0, seed=2).times(0, 50))


def test_more_bursts_than_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_STEPS", 4096)
    assert BurstyArrivals(1_000, seed=77).arrived(np.array([40 * SECOND]))[0] > 0
    with pytest.raises(ConfigError, match=r"step_s=0\.01 over more than 41 s.*take a longer step_s"):
        BurstyArrivals(1_000, seed=77).arrived(np.array([42 * SECOND]))


def test_impossible_arrivals_are_refused() -> None:
    with pytest.raises(ConfigError, match="rate_per_s=0"):
        ConstantArrivals(0)
    with pytest.raises(ConfigError, match=r"tail=2\.5"):
        BurstyArrivals(100, tail=2.5)
    with pytest.raises(ConfigError, match="tuples 3 to 2"):
        ConstantArrivals(1).times(3, 2)
