"""The papers' equations: all of them are there, and what their docstrings say of them is so."""

from __future__ import annotations

import inspect
import re
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semistream.lab.equations import opcachejoin2020, oxhybridjoin2012, ssbj2019, sscj2013, ssj2014

#: a paper and the number of its last equation
LAST = {ssbj2019: 6, ssj2014: 10, sscj2013: 3, oxhybridjoin2012: 9, opcachejoin2020: 3}
COSTS = {"c_H": 2.0, "c_O": 5.0, "c_E": 3.0, "c_S": 1.0, "c_A": 4.0}
shares = st.floats(0.0, 1.0)
sizes = st.floats(1.0, 1e9)


@pytest.mark.parametrize("paper", LAST, ids=lambda paper: paper.__name__.rpartition(".")[2])
def test_every_equation_has_a_function_with_its_number(paper: ModuleType) -> None:
    own = {name: value for name, value in vars(paper).items() if inspect.isfunction(value)}
    numbered = {int(found[1]) for name in own if (found := re.match(r"equation_(\d+)_", name))}
    assert numbered == set(range(1, LAST[paper] + 1))
    for name, value in own.items():
        assert name.startswith("_") or ">>> " in (value.__doc__ or ""), f"{name} has no number to check by hand"


@given(alpha=shares, M=sizes, h_R=sizes)
def test_no_equation_1_with_a_weight_bounds_the_memory(alpha: float, M: float, h_R: float) -> None:
    found = [
        ssj2014.equation_1_memory(M=M, k=3, l=5, v_P=4096, h_R=h_R, alpha=alpha),
        sscj2013.equation_1_memory(M=M, d=30, v_R=120, h_R=h_R, alpha=alpha),
        oxhybridjoin2012.equation_1_memory(M=M, k=3, l=5, v_P=4096, alpha=alpha),
        opcachejoin2020.equation_1_memory(M=M, d_B=850, h_R=h_R, v_R=120, i_B=100, v_S=20, alpha=alpha),
    ]
    assert found == pytest.approx([M] * 4, abs=1e-4, rel=1e-6)


def test_the_weight_that_fills_h_s_and_the_queue_alike() -> None:
    h_S = sscj2013.equation_1_h_S_corrected(M=1e6, d=100, v_R=120, h_R=1000, v_S=20, v_Q=12, f=1.5)
    rest, alpha = 1e6 - 100 * 120 - 1000 * 128, 30 / 42
    assert alpha * rest / 30 == pytest.approx(h_S)
    assert (1 - alpha) * rest / 12 == pytest.approx(h_S)


# ------------------------------------------------------------------------------------------------- ssbj2019


@given(m=st.integers(0, 50), n=st.floats(0, 50), sf=st.floats(1.0, 4.0))
def test_a_factor_above_1_is_a_hysteresis(m: int, n: float, sf: float) -> None:
    key = {"m": m, "v_R": 120.0, "n": n, "v_S": 24.0, "sf": sf}
    assert not (ssbj2019.line_33_enters(**key) and ssbj2019.line_46_leaves(**key))


def test_a_factor_below_1_makes_keys_flutter() -> None:
    at_the_border = {"m": 1.0, "v_R": 120.0, "n": 5.0, "v_S": 24.0, "sf": 0.5}
    assert ssbj2019.line_33_enters(**at_the_border)
    assert ssbj2019.line_46_leaves(**at_the_border)


@given(p_j=st.floats(1e-9, 0.5), P=st.floats(1e-9, 1.0), L=st.floats(1.0, 1e9))
def test_over_hybridjoin_between_all_and_half_of_the_tuples_wait(p_j: float, P: float, L: float) -> None:
    n = ssbj2019.section_5_waiting_tuples(p_j=p_j, P=P, L=L)
    assert 0.5 * p_j * L * (1 - 1e-9) <= n <= p_j * L * (1 + 1e-9)


def test_waiting_over_hybridjoin_agrees_with_a_simulation() -> None:
    """One partition: its first tuple waits for L tuples of the stream, those that come meanwhile leave with it."""
    dice, P, L = np.random.default_rng(1), 0.02, 120
    waiting, total, due = 0, 0, -1
    wanted = dice.random(400_000) < P
    for now, one in enumerate(wanted):
        if now == due:
            waiting, due = 0, -1
        if one:
            waiting += 1
            due = now + L if due < 0 else due
        total += waiting
    assert total / len(wanted) == pytest.approx(ssbj2019.section_5_waiting_tuples(p_j=P, P=P, L=L), rel=0.02)


def test_theorem_3_from_meshjoin_to_a_main_memory_join() -> None:
    p = 1 / np.arange(1, 1001)
    p, m = p / p.sum(), np.ones(1000)
    R = ssbj2019.theorem_3_memory_of_R(R_t=1000, v_R=120, f=1)
    W = np.geomspace(1, 1e7, 200)
    memory = np.array([ssbj2019.theorem_3_memory(p, m, W=each, v_R=120, v_S=24) for each in W])
    assert (np.diff(memory) >= 0).all()
    assert memory[0] == pytest.approx(24.0 * W[0])
    # (a) MESHJOIN takes more than R from some W on, (b) SSBJ never does, (c) where it takes all of it, all is cached.
    assert 24 * W[-1] > R
    assert memory.max() == R
    assert (24 * W[-1] * p > 120).all()
    # No jump: a step of W changes memory by no more than the tuples of that step.
    assert (np.diff(memory) <= 24 * np.diff(W) + 1e-6).all()


def test_meshjoin_takes_more_than_r_beyond_lambda_max() -> None:
    parts = {"R_t": 1e6, "v_R": 120.0, "f": 1.0, "b": 1000.0, "v_P": 4.0, "v_S": 20.0}
    w = ssbj2019.theorem_3_w_max(**parts)
    R = ssbj2019.theorem_3_memory_of_R(R_t=1e6, v_R=120, f=1)
    assert ssbj2019.equation_1_memory(h_R=0, w_S=w, **parts) == pytest.approx(R)
    assert ssbj2019.equation_1_memory(h_R=0, w_S=1.01 * w, **parts) > R
    c_loop = ssbj2019.equation_2_c_loop(c_IO=lambda b: 7 * b, b=1000, w_N=0, w_S=w, c_B=0, **COSTS)
    rate = ssbj2019.theorem_3_lambda_max(w_max=w, c_loop=c_loop)
    assert rate == ssbj2019.equation_3_service_rate(w_N=0, w_S=w, c_loop=c_loop)
    assert ssbj2019.equation_4_keeps_up(lambda_=0.99 * rate, w_N=0, w_S=w, c_loop=c_loop)
    assert not ssbj2019.equation_4_keeps_up(lambda_=1.01 * rate, w_N=0, w_S=w, c_loop=c_loop)


# -------------------------------------------------------------------------- ssj2014 and oxhybridjoin2012: tuning


@given(h_R=st.floats(1e3, 1e7), times=st.floats(3.0, 1e3))
def test_power_laws_as_printed_are_near_1_whatever_the_sizes(h_R: float, times: float) -> None:
    R_t = h_R * times
    for p_N, phi, psi in (
        (lambda **k: ssj2014.equation_6_p_N(R_t=R_t, **k), ssj2014.phi_N, ssj2014.psi_N),
        (lambda **k: oxhybridjoin2012.equation_5_p_N(R=R_t, **k), oxhybridjoin2012.phi_N, oxhybridjoin2012.psi_N),
    ):
        printed = p_N(h_R=h_R, phi_N=phi(h_R=h_R, R_t=R_t), psi_N=psi(h_R=h_R, R_t=R_t))
        assert 0.96 < printed < 1.0
        assert ssj2014.equation_5_p_N(h_R=h_R, R_t=R_t) < 0.95


def test_corrected_power_laws_go_through_their_point_and_change_as_the_factors_say() -> None:
    known = {"R_t": 1e6, "h_R": 1e4}
    factors = {"phi_N": ssj2014.phi_N(**known), "psi_N": ssj2014.psi_N(**known)}
    point = {"p_0": ssj2014.equation_5_p_N(**known), "R_0": 1e6, "h_0": 1e4}
    for sizes in (known, {**known, "R_t": 2e6}, {**known, "h_R": 2e4}):
        law = ssj2014.equation_6_p_N_corrected(**sizes, **factors, **point)
        assert law == pytest.approx(ssj2014.equation_5_p_N(**sizes))
    whole = {**known, "d": 500.0}
    factors = {name: getattr(ssj2014, name)(**whole) for name in ("theta_S", "psi_S", "phi_S")}
    N = ssj2014.segments(**whole)
    point = {"p_0": ssj2014.equation_8_p_S(N=N, **known), "R_0": 1e6, "h_0": 1e4, "d_0": 500.0}
    assert ssj2014.equation_9_p_S_corrected(**whole, **factors, **point) == pytest.approx(point["p_0"])
    doubled = ssj2014.equation_9_p_S_corrected(**{**whole, "d": 1000.0}, **factors, **point)
    assert doubled == pytest.approx(2 * point["p_0"])


@pytest.mark.parametrize("mean", [0.1, 1.0, 20.0])
def test_a_load_of_the_oldest_tuples_partition(mean: float) -> None:
    """Partitions wanted alike, H_S full: the mean number of tuples that leave with a load."""
    dice, n = np.random.default_rng(3), 200
    h_S = round(mean * n)
    queue = dice.integers(0, n, h_S)
    served = []
    for _ in range(3000):
        left = queue[queue != queue[0]]
        served.append(len(queue) - len(left))
        queue = np.concatenate((left, dice.integers(0, n, served[-1])))
    found = float(np.mean(served[1000:]))
    assert found == pytest.approx(oxhybridjoin2012.equation_9_w_S_corrected(n=n, h_S=h_S), rel=0.05)


# ------------------------------------------------------------------------------------------- opcachejoin2020


def test_by_its_sum_pcachejoin_is_slower_than_cachejoin() -> None:
    turn = {"w_N": 200.0, "w_S": 100.0, "c_F": 1.0, **COSTS}
    cachejoin = sscj2013.equation_2_c_loop(c_IO=lambda d: 7 * d, d=850, **turn)
    pcachejoin = opcachejoin2020.equation_2_c_loop(c_IO=lambda d: 7 * d, d_B=850, c_AI=6, **turn)
    assert pcachejoin - cachejoin == pytest.approx(1e-9 * 100 * 6)
    side_by_side = opcachejoin2020.equation_2_c_loop_corrected(c_IO=lambda d: 7 * d, d_B=850, c_AI=6, **turn)
    assert side_by_side < cachejoin


def test_halving_the_loads_takes_two_disks_for_granted() -> None:
    turn = {"d_B": 850.0, "w_N": 200.0, "w_S": 100.0, "c_F": 1.0, "c_AI": 6.0, **COSTS}
    reading = lambda d: 100 * d  # noqa: E731
    whole = opcachejoin2020.equation_2_c_loop(c_IO=reading, **turn)
    halved = opcachejoin2020.equation_2_c_loop(c_IO=opcachejoin2020.halved_c_IO(reading), **turn)
    assert whole - halved == pytest.approx(0.5e-9 * reading(850))
    # With one disk and all else beside the loads, a turn takes as long as a load.
    one = opcachejoin2020.op_equation_2_c_loop_corrected(c_IO=reading, **turn)
    assert one == pytest.approx(1e-9 * reading(850))
    assert one > halved
    assert opcachejoin2020.op_equation_2_c_loop_corrected(c_IO=reading, loads_at_once=2, **turn) < halved
