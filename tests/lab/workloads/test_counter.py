"""The bijection and the draws that every generator is made of."""

from __future__ import annotations

import numpy as np
import pytest
from tests.lab.workloads.estimators import chi_square_p

from semistream.lab.workloads.counter import below, gather, scatter, stream_seed, unit, words, words_at


@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 65, 1000, 4097])
def test_scatter_is_a_bijection(n: int) -> None:
    moved = scatter(np.arange(n), n, seed=11)
    assert np.array_equal(np.sort(moved), np.arange(n))


@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 65, 1000, 4097])
def test_gather_leads_back(n: int) -> None:
    values = np.arange(n)
    assert np.array_equal(gather(scatter(values, n, seed=11), n, seed=11), values)
    assert np.array_equal(scatter(gather(values, n, seed=11), n, seed=11), values)


def test_scatter_depends_on_the_seed_and_leaves_no_order() -> None:
    n = 10_000
    one, two = scatter(np.arange(n), n, seed=1), scatter(np.arange(n), n, seed=2)
    assert (one == two).mean() < 0.01
    assert abs(np.corrcoef(np.arange(n), one)[0, 1]) < 0.05
    # The hundred hottest ranks land in most of a hundred equal stretches of the domain, as random ones would.
    assert len(set((one[:100] // (n // 100)).tolist())) > 50


def test_scatter_refuses_values_outside_the_domain() -> None:
    with pytest.raises(ValueError, match=r"\[0, 3\)"):
        scatter(np.array([3]), 3, seed=1)


def test_words_can_be_entered_anywhere() -> None:
    assert np.array_equal(words(5, 100, 50), words(5, 0, 150)[100:])


def test_words_at_positions_are_the_same_words() -> None:
    assert np.array_equal(words_at(5, np.array([149, 0, 7, 7])), words(5, 0, 150)[[149, 0, 7, 7]])


def test_unit_never_gives_zero() -> None:
    extremes = unit(np.array([0, 2**64 - 1], dtype=np.uint64))
    assert 0 < extremes[0] < 1e-15
    assert extremes[1] == 1.0


def test_purposes_have_their_own_draws() -> None:
    seeds = {stream_seed(seed, purpose) for seed in range(20) for purpose in ("keys", "qty", "1/keys")}
    assert len(seeds) == 60


def test_below_is_uniform() -> None:
    counts = np.bincount(below(10, 3, 0, 100_000), minlength=10)
    assert chi_square_p(counts, np.full(10, 10_000.0)) > 1e-4
