"""The bijection and the draws that every generator is made of."""

from __future__ import annotations

import numpy as np
import pytest

from semistream.workloads.counter import below, scatter, words


@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 65, 1000, 4097])
def test_scatter_is_a_bijection(n: int) -> None:
    moved = scatter(np.arange(n), n, seed=11)
    assert np.array_equal(np.sort(moved), np.arange(n))


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


def test_below_is_uniform() -> None:
    counts = np.bincount(below(10, 3, 0, 100_000), minlength=10)
    statistic = ((counts - 10_000) ** 2 / 10_000).sum()
    assert statistic < 9 + 5 * np.sqrt(2 * 9)
