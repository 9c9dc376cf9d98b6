"""oxhybridjoin2012: memory and cost of Optimised X-HYBRIDJOIN (section 4.3), and w_N and w_S for tuning (4.4.3).

The disk buffer has k pages or d = k·v_P/v_R tuples, H_R has l pages or h_R = l·v_P/v_R tuples. A Zipf law of exponent 1
and one master tuple per key; R is in order of frequency.

The paper gives v_R = 120 and v_S = 20 bytes, and 12 for a node of the queue (its table 2), which we write v_Q.
"""

from __future__ import annotations

import math

from semistream.lab.equations import EULER_GAMMA, Reading
from semistream.predict.keys import harmonic

V_R, V_S, V_Q = 120, 20, 12


# -------------------------------------------------------------------------------------------- memory and cost


def equation_1_memory(*, M: float, k: float, l: float, v_P: float, alpha: float) -> float:  # noqa: E741
    """M = (k + l)·v_P + α·[M − (k + l)·v_P] + (1 − α)·[M − (k + l)·v_P].

    It says M = M whatever α is; what it leaves open is `equation_1_h_S_corrected`.

    >>> equation_1_memory(M=10_000, k=2, l=3, v_P=1000, alpha=0.3)
    10000.0
    """
    rest = M - (k + l) * v_P
    return (k + l) * v_P + alpha * rest + (1 - alpha) * rest


def equation_1_h_S_corrected(
    *,
    M: float,
    k: float,
    l: float,  # noqa: E741
    v_P: float,
    v_S: float,
    v_Q: float,
    f: float,
) -> float:
    """h_S, as many tuples in H_S, f·v_S bytes each, as nodes in the queue, v_Q each; so α = f·v_S / (f·v_S + v_Q).

    Ours counts real slots, links and directory entries, both indexes of R and scratch arrays.

    >>> equation_1_h_S_corrected(M=8200, k=2, l=3, v_P=1000, v_S=20, v_Q=12, f=1)
    100.0
    """
    return (M - (k + l) * v_P) / (f * v_S + v_Q)


def equation_2_c_loop(
    *,
    c_IO: Reading,
    k: float,
    v_P: float,
    d: float,
    w_N: float,
    w_S: float,
    c_H: float,
    c_O: float,
    c_E: float,
    c_S: float,
    c_A: float,
) -> float:
    """Seconds of one turn: 10⁻⁹·[c_I/O(k·v_P) + d·c_H + w_S·(c_O + c_E + c_S + c_A) + w_N·(c_H + c_O + c_S)].

    Tuples that miss were looked up in H_R too (line 5 of Algorithm 1): `equation_2_c_loop_corrected`. Ours prices that,
    and adds what a turn and a chunk cost by themselves.

    >>> costs = dict(c_H=2, c_O=5, c_E=3, c_S=1, c_A=4)
    >>> round(1e9 * equation_2_c_loop(c_IO=lambda size: size, k=2, v_P=350, d=100, w_N=20, w_S=10, **costs))
    1190
    """
    reading, probing = c_IO(k * v_P), d * c_H
    return 1e-9 * (reading + probing + w_S * (c_O + c_E + c_S + c_A) + w_N * (c_H + c_O + c_S))


def equation_2_c_loop_corrected(
    *,
    c_IO: Reading,
    k: float,
    v_P: float,
    d: float,
    w_N: float,
    w_S: float,
    c_H: float,
    c_O: float,
    c_E: float,
    c_S: float,
    c_A: float,
) -> float:
    """Equation 2 with a look-up in H_R for the tuples that miss as well.

    >>> costs = dict(c_H=2, c_O=5, c_E=3, c_S=1, c_A=4)
    >>> round(1e9 * equation_2_c_loop_corrected(c_IO=lambda size: size, k=2, v_P=350, d=100, w_N=20, w_S=10, **costs))
    1210
    """
    as_printed = equation_2_c_loop(
        c_IO=c_IO, k=k, v_P=v_P, d=d, w_N=w_N, w_S=w_S, c_H=c_H, c_O=c_O, c_E=c_E, c_S=c_S, c_A=c_A
    )
    return as_printed + 1e-9 * w_S * c_H


def equation_3_service_rate(*, w_N: float, w_S: float, c_loop: float) -> float:
    """Tuples per second: μ = (w_N + w_S) / c_loop. Ours is the same.

    >>> equation_3_service_rate(w_N=20, w_S=10, c_loop=0.5)
    60.0
    """
    return (w_N + w_S) / c_loop


# -------------------------------------------------------------------------------------------------------- w_N


def equation_4_p_N_sum(*, h_R: float, R_t: float) -> float:
    """Left side of equation 4, exact: Σ_{x ≤ h_R} 1/x over Σ_{x ≤ R_t} 1/x. Ours is the same for any law.

    >>> round(equation_4_p_N_sum(h_R=2, R_t=4), 3)
    0.72
    """
    return float(harmonic(h_R, 1.0) / harmonic(R_t, 1.0))


def equation_4_p_N(*, h_R: float, R_t: float) -> float:
    """Right side of equation 4: ln h_R / ln R_t. Not equal to the left one: Euler's constant is lost in both sums.

    >>> round(equation_4_p_N(h_R=10**6, R_t=10**8), 6), round(equation_4_p_N_sum(h_R=10**6, R_t=10**8), 4)
    (0.75, 0.7576)
    """
    return math.log(h_R) / math.log(R_t)


def phi_N(*, h_R: float, R_t: float) -> float:
    """φ_N: p_N of equation 4 changes by this factor when R_t is doubled; ln R_t / ln 2·R_t, so no constant.

    >>> round(phi_N(h_R=2**10, R_t=2**19), 4)
    0.95
    """
    return equation_4_p_N(h_R=h_R, R_t=2 * R_t) / equation_4_p_N(h_R=h_R, R_t=R_t)


def psi_N(*, h_R: float, R_t: float) -> float:
    """ψ_N: the same when h_R is doubled; ln 2·h_R / ln h_R.

    >>> round(psi_N(h_R=2**10, R_t=2**20), 4)
    1.1
    """
    return equation_4_p_N(h_R=2 * h_R, R_t=R_t) / equation_4_p_N(h_R=h_R, R_t=R_t)


def equation_5_p_N(*, R: float, h_R: float, phi_N: float, psi_N: float) -> float:
    """p_N = R^y·h_R^z with y = log₂ φ_N and z = log₂ ψ_N, R being R_t.

    The law lacks a factor: exponents that say how p_N changes do not say how large it is. With φ_N and ψ_N of equation
    4 it is near 1 for all sizes (ssj2014 has the same law as its equation 6). See `equation_5_p_N_corrected`.

    >>> h_R, R = 3 * 10**4, 2 * 10**6
    >>> round(equation_5_p_N(R=R, h_R=h_R, phi_N=phi_N(h_R=h_R, R_t=R), psi_N=psi_N(h_R=h_R, R_t=R)), 2)
    0.99
    >>> round(equation_4_p_N(h_R=h_R, R_t=R), 2)
    0.71
    """
    return float(R ** math.log2(phi_N) * h_R ** math.log2(psi_N))


def equation_5_p_N_corrected(
    *, R: float, h_R: float, phi_N: float, psi_N: float, p_0: float, R_0: float, h_0: float
) -> float:
    """The power law through a known point: p_0·(R/R_0)^y·(h_R/h_0)^z, p_0 being the probability at R_0 and h_0.

    >>> round(equation_5_p_N_corrected(R=200, h_R=10, phi_N=0.9, psi_N=1.2, p_0=0.5, R_0=100, h_0=10), 6)
    0.45
    """
    return float(p_0 * (R / R_0) ** math.log2(phi_N) * (h_R / h_0) ** math.log2(psi_N))


def equation_6_w_N(*, R: float, h_R: float, phi_N: float, psi_N: float, S: float, N: float) -> float:
    """w_N = p_N·S / N, p_N by equation 5; S are the tuples that N turns process through both phases.

    S / N is w_N + w_S, so the equation has what it looks for on both sides; `equation_6_w_N_solved` solves it.

    >>> equation_6_w_N(R=4, h_R=2, phi_N=0.5, psi_N=2, S=300, N=10)
    15.0
    """
    return equation_5_p_N(R=R, h_R=h_R, phi_N=phi_N, psi_N=psi_N) * S / N


def equation_6_w_N_solved(*, p_N: float, w_S: float) -> float:
    """w_N = p_N·(w_N + w_S), solved: w_S·p_N / (1 − p_N); without bound where all of the stream is cached.

    >>> equation_6_w_N_solved(p_N=0.75, w_S=10)
    30.0
    """
    return w_S * p_N / (1 - p_N) if p_N < 1 else math.inf


# -------------------------------------------------------------------------------------------------------- w_S


def partitions(*, R_t: float, h_R: float, d: float) -> float:
    """n, the partitions of R' = R_t − h_R, each as large as the disk buffer.

    >>> partitions(R_t=1000, h_R=200, d=50)
    16.0
    """
    return (R_t - h_R) / d


def equation_7_p_S(*, R_t: float, h_R: float, n: float) -> float:
    """Mean probability that a stream tuple matches a partition: (ln R_t − ln(h_R + 1)) / (n·(ln R_t + γ)).

    It is that of any tuple of the stream; those in H_S are the ones that missed, see `equation_9_w_S_corrected`.
    ssj2014 has ln h_R in its equation 8: there the sum from h_R + 1 on is taken from ln h_R, which is the nearer one.

    >>> round(equation_7_p_S(R_t=10**8, h_R=10**6 - 1, n=100), 6)
    0.002424
    """
    return (math.log(R_t) - math.log(h_R + 1)) / (n * (math.log(R_t) + EULER_GAMMA))


def theta_S(*, R_t: float, h_R: float, d: float) -> float:
    """θ_S: the mean p_S changes by this factor when d is doubled, which halves n: 2.

    >>> theta_S(R_t=10**6, h_R=10**4, d=1000)
    2.0
    """
    return _p_S(R_t, h_R, 2 * d) / _p_S(R_t, h_R, d)


def psi_S(*, R_t: float, h_R: float, d: float) -> float:
    """ψ_S: the same when h_R is doubled.

    >>> round(psi_S(R_t=10**8, h_R=10**6, d=1000), 4)
    0.8582
    """
    return _p_S(R_t, 2 * h_R, d) / _p_S(R_t, h_R, d)


def phi_S(*, R_t: float, h_R: float, d: float) -> float:
    """φ_S: the same when R_t is doubled.

    >>> round(phi_S(R_t=10**8, h_R=10**6, d=1000), 4)
    0.5522
    """
    return _p_S(2 * R_t, h_R, d) / _p_S(R_t, h_R, d)


def _p_S(R_t: float, h_R: float, d: float) -> float:
    return equation_7_p_S(R_t=R_t, h_R=h_R, n=partitions(R_t=R_t, h_R=h_R, d=d))


def equation_8_p_S(*, d: float, h_R: float, R_t: float, theta_S: float, psi_S: float, phi_S: float) -> float:
    """Mean p_S = d^x·h_R^y·R_t^z with x = log₂ θ_S, y = log₂ ψ_S, z = log₂ φ_S. As in equation 5 a factor is missing.

    >>> equation_8_p_S(d=8, h_R=4, R_t=16, theta_S=2, psi_S=0.5, phi_S=0.5)
    0.125
    """
    return float(d ** math.log2(theta_S) * h_R ** math.log2(psi_S) * R_t ** math.log2(phi_S))


def equation_8_p_S_corrected(
    *,
    d: float,
    h_R: float,
    R_t: float,
    theta_S: float,
    psi_S: float,
    phi_S: float,
    p_0: float,
    d_0: float,
    h_0: float,
    R_0: float,
) -> float:
    """The power law through a known point, as in equation 5.

    >>> known = dict(p_0=0.01, d_0=10, h_0=4, R_0=100)
    >>> equation_8_p_S_corrected(d=20, h_R=4, R_t=200, theta_S=2, psi_S=0.8, phi_S=0.5, **known)
    0.01
    """
    change = equation_8_p_S(d=d / d_0, h_R=h_R / h_0, R_t=R_t / R_0, theta_S=theta_S, psi_S=psi_S, phi_S=phi_S)
    return p_0 * change


def equation_9_w_S(
    *, d: float, h_R: float, R_t: float, theta_S: float, psi_S: float, phi_S: float, h_S: float
) -> float:
    """Mean w_S = p_S·h_S, p_S by equation 8.

    A load is made for the oldest tuple, so it serves one at least, and a partition that was not loaded for long has
    gathered more than the mean: `equation_9_w_S_corrected`.

    >>> equation_9_w_S(d=8, h_R=4, R_t=16, theta_S=2, psi_S=0.5, phi_S=0.5, h_S=1000)
    125.0
    """
    return equation_8_p_S(d=d, h_R=h_R, R_t=R_t, theta_S=theta_S, psi_S=psi_S, phi_S=phi_S) * h_S


def equation_9_w_S_corrected(*, n: float, h_S: float) -> float:
    """w_S where n partitions are wanted alike: h_S/n + √(1 + (h_S/n)²).

    Among those that wait a partition has the share P = 1/n. It is loaded when its first tuple has become the oldest, L
    tuples after that came; P·L more have come by then, so w_S = 1 + P·L. On average L·(1 + P·L/2) / (1 + P·L) tuples
    wait (ssbj2019's section 5), and that is h_S; solved for P·L it is the above. Few tuples share a load: w_S is near
    1. Many: twice h_S/n. Ours is this for partitions with shares of their own.

    >>> round(equation_9_w_S_corrected(n=1000, h_S=1), 3), round(equation_9_w_S_corrected(n=10, h_S=1000), 3)
    (1.001, 200.005)
    """
    mean = h_S / n
    return mean + math.sqrt(1 + mean * mean)
