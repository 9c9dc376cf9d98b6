"""W* against its defining equation and against known values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semistream.lab.workloads.optimum import optimal_tuples_per_cycle
from semistream.lab.workloads.relation import master_keys
from semistream.lab.workloads.zipf import key_probabilities

R, V_R, V_S = 1_000_000, 120, 24


@pytest.fixture(scope="module")
def probabilities() -> np.ndarray:
    return key_probabilities(R, 1.0, hot_seed=3)


@pytest.mark.parametrize(("share", "times_mesh_join"), [(0.01, 3.0), (0.10, 4.8)])
def test_keys_drawn_with_repetition(probabilities: np.ndarray, share: float, times_mesh_join: float) -> None:
    tuples = np.bincount(master_keys(R, 5, 0, R, repeat=True), minlength=R)
    memory = share * R * V_R
    best = optimal_tuples_per_cycle(probabilities, tuples, V_R, V_S, memory)
    assert best / (memory / V_S) == pytest.approx(times_mesh_join, abs=0.06)


@pytest.mark.parametrize(("share", "times_mesh_join"), [(0.01, 1.9), (0.10, 2.9)])
def test_unique_keys(probabilities: np.ndarray, share: float, times_mesh_join: float) -> None:
    memory = share * R * V_R
    best = optimal_tuples_per_cycle(probabilities, np.ones(R), V_R, V_S, memory)
    assert best / (memory / V_S) == pytest.approx(times_mesh_join, abs=0.06)


@given(
    weights=st.lists(st.floats(0.01, 100), min_size=1, max_size=40),
    data=st.data(),
    memory=st.floats(1, 1e5),
    entry=st.sampled_from([0.0, 24.0]),
)
def test_it_solves_the_equation(weights: list[float], data: st.DataObject, memory: float, entry: float) -> None:
    p = np.array(weights) / sum(weights)
    m = np.array(data.draw(st.lists(st.integers(0, 5), min_size=len(p), max_size=len(p))), dtype=float)
    best = optimal_tuples_per_cycle(p, m, V_R, V_S, memory, entry)
    if math.isinf(best):
        assert (entry + m * V_R).sum() <= memory * (1 + 1e-9)
    else:
        assert np.minimum(entry + m * V_R, best * p * V_S).sum() == pytest.approx(memory)


def test_no_cache_worth_having_leaves_mesh_join() -> None:
    # Uniform keys, each with more master bytes than its stream tuples could ever cost: all memory waits.
    p = np.full(100, 0.01)
    assert optimal_tuples_per_cycle(p, np.full(100, 50), V_R, V_S, 2400) == pytest.approx(100)


def test_limits() -> None:
    p = np.array([0.5, 0.5, 0.0])
    assert optimal_tuples_per_cycle(p, np.array([1, 1, 9]), V_R, V_S, 240) == math.inf
    assert optimal_tuples_per_cycle(p, np.array([1, 1, 9]), V_R, V_S, 0) == 0.0
    with pytest.raises(ValueError, match="probabilities"):
        optimal_tuples_per_cycle(p, np.ones(2), V_R, V_S, 10)
