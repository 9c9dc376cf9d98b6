"""The stream's keys follow the law they claim, whoever draws them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.lab.workloads.estimators import chi_square_p

from semistream.lab.workloads.counter import scatter
from semistream.lab.workloads.zipf import key_probabilities, zipf_keys, zipf_probabilities

EXPONENTS = [0.0, 0.3, 0.5, 0.999999, 1.0, 1.000001, 1.25, 1.5]


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("n_keys", [2, 50, 1000])
def test_chi_square_fit(exponent: float, n_keys: int) -> None:
    draws = 200_000
    observed = np.bincount(zipf_keys(n_keys, exponent, 42, 0, draws), minlength=n_keys)
    expected = key_probabilities(n_keys, exponent, 42) * draws
    assert chi_square_p(observed, expected) > 1e-4


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.5])
def test_chi_square_tells_a_neighbouring_exponent_apart(exponent: float) -> None:
    # The fit above means something only if a slightly other law fails it.
    observed = np.bincount(zipf_keys(1000, exponent, 42, 0, 200_000), minlength=1000)
    assert chi_square_p(observed, key_probabilities(1000, exponent + 0.1, 42) * 200_000) < 1e-9


@pytest.mark.parametrize("exponent", [0.0, 1.0, 1.5])
def test_tail_of_a_large_domain(exponent: float) -> None:
    n_keys, draws = 1_000_000, 500_000
    rank_of = np.empty(n_keys, dtype=np.int64)
    rank_of[scatter(np.arange(n_keys), n_keys, 9)] = np.arange(n_keys)
    ranks = rank_of[zipf_keys(n_keys, exponent, 9, 0, draws)]
    edges = np.unique(np.geomspace(1, n_keys, 40).astype(np.int64))
    cumulative = np.concatenate(([0.0], np.cumsum(zipf_probabilities(n_keys, exponent))))
    expected = np.diff(cumulative[np.concatenate(([0], edges))]) * draws
    observed = np.diff(np.concatenate(([0], np.searchsorted(np.sort(ranks), edges))))
    assert chi_square_p(observed, expected) > 1e-4


@given(
    exponent=st.sampled_from(EXPONENTS),
    n_keys=st.integers(1, 5000),
    cut=st.integers(0, 300),
    seed=st.integers(0, 2**32),
)
def test_partitioning_does_not_matter(exponent: float, n_keys: int, cut: int, seed: int) -> None:
    whole = zipf_keys(n_keys, exponent, seed, 0, 300)
    assert whole.min() >= 0
    assert whole.max() < n_keys
    parts = [zipf_keys(n_keys, exponent, seed, 0, cut), zipf_keys(n_keys, exponent, seed, cut, 300 - cut)]
    assert np.array_equal(np.concatenate(parts), whole)


def test_another_hot_seed_changes_the_hot_keys_only() -> None:
    before = zipf_keys(10_000, 1.0, 1, 0, 50_000)
    after = zipf_keys(10_000, 1.0, 1, 0, 50_000, hot_seed=2)
    hot_before = set(np.argsort(np.bincount(before, minlength=10_000))[-20:].tolist())
    hot_after = set(np.argsort(np.bincount(after, minlength=10_000))[-20:].tolist())
    assert not hot_before & hot_after
    counts = [np.sort(np.bincount(keys, minlength=10_000)) for keys in (before, after)]
    assert np.array_equal(*counts)


@pytest.mark.parametrize(("n_keys", "exponent", "start"), [(0, 1.0, 0), (5, -0.5, 0), (5, 1.0, -1)])
def test_impossible_streams_are_refused(n_keys: int, exponent: float, start: int) -> None:
    with pytest.raises(ValueError, match="no Zipf stream"):
        zipf_keys(n_keys, exponent, 1, start, 10)
