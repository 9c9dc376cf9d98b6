"""ssj2014: SSJ's memory and cost, and how many tuples a turn serves through the cache (w_N) and the disk (w_S).

Section 4.3 has equations 1 to 3, section 5.1.2 the others, for a Zipf law of exponent 1 with one master tuple per key.
d is the disk buffer in tuples, k the same in pages; l and h_R are the cache in pages and tuples.

The paper gives v_R = 120 and v_S = 20 bytes, and 12 for a node of the queue (its table 2), which we write v_Q.
"""

from __future__ import annotations

import math

from semistream.lab.equations import EULER_GAMMA, Reading
from semistream.predict.keys import harmonic

V_R, V_S, V_Q = 120, 20, 12
#: bytes of the frequency recorder per cached tuple
RECORDER = 8


# -------------------------------------------------------------------------------------------- memory and cost


def equation_1_memory(*, M: float, k: float, l: float, v_P: float, h_R: float, alpha: float) -> float:  # noqa: E741
    """M = (k + l)·v_P + 8·h_R + α·[M − (k + l)·v_P − 8·h_R] + (1 − α)·[M − (k + l)·v_P − 8·h_R].

    It says M = M whatever α is, so it bounds nothing. In the list of parts before it the minus before 8·h_R is missing
    twice, and α in the part of H_S. What it leaves open is `equation_1_h_S_corrected`.

    >>> equation_1_memory(M=10_000, k=2, l=3, v_P=1000, h_R=25, alpha=0.3)
    10000.0
    """
    rest = M - (k + l) * v_P - RECORDER * h_R
    return (k + l) * v_P + RECORDER * h_R + alpha * rest + (1 - alpha) * rest


def equation_1_h_S_corrected(
    *,
    M: float,
    k: float,
    l: float,  # noqa: E741
    v_P: float,
    h_R: float,
    v_S: float,
    v_Q: float,
    f: float,
) -> float:
    """h_S, the tuples of H_S and of the queue: as many in the one, f·v_S bytes each, as in the other, v_Q each.

    That is what α must do: α = f·v_S / (f·v_S + v_Q). Ours counts real slots and directory entries.

    >>> equation_1_h_S_corrected(M=10_000, k=2, l=3, v_P=1000, h_R=25, v_S=20, v_Q=12, f=1)
    150.0
    """
    return (M - (k + l) * v_P - RECORDER * h_R) / (f * v_S + v_Q)


def equation_2_c_loop(
    *,
    c_IO: Reading,
    k: float,
    v_P: float,
    d: float,
    w_N: float,
    w_S: float,
    c_H: float,
    c_F: float,
    c_O: float,
    c_E: float,
    c_S: float,
    c_A: float,
) -> float:
    """Seconds of a turn: 10⁻⁹·[c_I/O(k·v_P) + d·(c_H + c_F) + w_S·(c_O + c_E + c_S + c_A) + w_N·(c_H + c_O + c_S)].

    Tuples that miss were looked up in H_R too (line 4 of Algorithm 1): `equation_2_c_loop_corrected`. Switching a
    frequent tuple into H_R has no price. Ours has both, and the cost of a turn and of a chunk by themselves.

    >>> costs = dict(c_H=2, c_F=1, c_O=5, c_E=3, c_S=1, c_A=4)
    >>> round(1e9 * equation_2_c_loop(c_IO=lambda size: size, k=2, v_P=350, d=100, w_N=20, w_S=10, **costs))
    1290
    """
    reading, probing = c_IO(k * v_P), d * (c_H + c_F)
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
    c_F: float,
    c_O: float,
    c_E: float,
    c_S: float,
    c_A: float,
) -> float:
    """Equation 2 with a look-up in H_R for the tuples that miss as well.

    >>> costs = dict(c_H=2, c_F=1, c_O=5, c_E=3, c_S=1, c_A=4)
    >>> round(1e9 * equation_2_c_loop_corrected(c_IO=lambda size: size, k=2, v_P=350, d=100, w_N=20, w_S=10, **costs))
    1310
    """
    as_printed = equation_2_c_loop(
        c_IO=c_IO, k=k, v_P=v_P, d=d, w_N=w_N, w_S=w_S, c_H=c_H, c_F=c_F, c_O=c_O, c_E=c_E, c_S=c_S, c_A=c_A
    )
    return as_printed + 1e-9 * w_S * c_H


def equation_3_service_rate(*, w_N: float, w_S: float, c_loop: float) -> float:
    """Tuples per second: μ = (w_N + w_S) / c_loop. Ours is the same.

    >>> equation_3_service_rate(w_N=20, w_S=10, c_loop=0.5)
    60.0
    """
    return (w_N + w_S) / c_loop


# -------------------------------------------------------------------------------------------------------- w_N


def equation_4_p_N(*, h_R: float, R_t: float) -> float:
    """Share of the stream that a cache of the h_R most frequent tuples answers: Σ_{x ≤ h_R} 1/x over Σ_{x ≤ R_t} 1/x.

    Ours is a sum over key classes, for any exponent and many master tuples per key; and a cache that counts keys takes
    some near the border for one another.

    >>> round(equation_4_p_N(h_R=2, R_t=4), 3)
    0.72
    """
    return float(harmonic(h_R, 1.0) / harmonic(R_t, 1.0))


def equation_5_p_N(*, h_R: float, R_t: float) -> float:
    """ln h_R / ln R_t. The formula it is taken from is ln k + γ: Euler's constant is lost, see the corrected one.

    >>> round(equation_5_p_N(h_R=10**6, R_t=10**8), 6)
    0.75
    """
    return math.log(h_R) / math.log(R_t)


def equation_5_p_N_corrected(*, h_R: float, R_t: float) -> float:
    """(ln h_R + γ) / (ln R_t + γ), as equation 8 has it in its denominator.

    >>> round(equation_5_p_N_corrected(h_R=10**6, R_t=10**8), 4), round(equation_4_p_N(h_R=10**6, R_t=10**8), 4)
    (0.7576, 0.7576)
    """
    return (math.log(h_R) + EULER_GAMMA) / (math.log(R_t) + EULER_GAMMA)


def phi_N(*, h_R: float, R_t: float) -> float:
    """φ_N: p_N of equation 5 changes by this factor when R_t is doubled. The paper takes it for a constant.

    It is ln R_t / ln 2·R_t, whatever h_R is, and nearer to 1 the larger R_t.

    >>> round(phi_N(h_R=2**10, R_t=2**19), 4), round(phi_N(h_R=2**10, R_t=2**24), 4)
    (0.95, 0.96)
    """
    return equation_5_p_N(h_R=h_R, R_t=2 * R_t) / equation_5_p_N(h_R=h_R, R_t=R_t)


def psi_N(*, h_R: float, R_t: float) -> float:
    """ψ_N: p_N of equation 5 changes by this factor when h_R is doubled; ln 2·h_R / ln h_R, again no constant.

    >>> round(psi_N(h_R=2**10, R_t=2**20), 4)
    1.1
    """
    return equation_5_p_N(h_R=2 * h_R, R_t=R_t) / equation_5_p_N(h_R=h_R, R_t=R_t)


def equation_6_p_N(*, R_t: float, h_R: float, phi_N: float, psi_N: float) -> float:
    """p_N = R_t^y·h_R^z with y = log₂ φ_N and z = log₂ ψ_N.

    The text has 2_y for 2^y, 2z for 2^z, and in the line for ψ_N it doubles R_t where it means h_R. The law also lacks
    a factor: two exponents that say how p_N changes do not say how large it is. With φ_N and ψ_N of equation 5,
    R_t^y is near 1/e and h_R^z near e, so that p_N comes out near 1 for all sizes; where it reaches 1, w_N has no
    bound. See `equation_6_p_N_corrected`.

    >>> h_R, R_t = 10**6, 10**8
    >>> round(equation_6_p_N(R_t=R_t, h_R=h_R, phi_N=phi_N(h_R=h_R, R_t=R_t), psi_N=psi_N(h_R=h_R, R_t=R_t)), 2)
    0.99
    >>> round(equation_5_p_N(h_R=h_R, R_t=R_t), 2)
    0.75
    """
    return float(R_t ** math.log2(phi_N) * h_R ** math.log2(psi_N))


def equation_6_p_N_corrected(
    *, R_t: float, h_R: float, phi_N: float, psi_N: float, p_0: float, R_0: float, h_0: float
) -> float:
    """The power law through a known point: p_0·(R_t/R_0)^y·(h_R/h_0)^z, p_0 being the probability at R_0 and h_0.

    >>> round(equation_6_p_N_corrected(R_t=200, h_R=10, phi_N=0.9, psi_N=1.2, p_0=0.5, R_0=100, h_0=10), 6)
    0.45
    """
    return float(p_0 * (R_t / R_0) ** math.log2(phi_N) * (h_R / h_0) ** math.log2(psi_N))


def equation_7_w_N(*, R_t: float, h_R: float, phi_N: float, psi_N: float, S_n: float, n: float) -> float:
    """w_N = p_N·S_n / n, p_N by equation 6; S_n are the tuples that n turns process through both phases.

    S_n / n is w_N + w_S, so the equation has what it looks for on both sides; `equation_7_w_N_solved` solves it.

    >>> equation_7_w_N(R_t=4, h_R=2, phi_N=0.5, psi_N=2, S_n=300, n=10)
    15.0
    """
    return equation_6_p_N(R_t=R_t, h_R=h_R, phi_N=phi_N, psi_N=psi_N) * S_n / n


def equation_7_w_N_solved(*, p_N: float, w_S: float) -> float:
    """w_N = p_N·(w_N + w_S), solved: w_S·p_N / (1 − p_N); without bound where all of the stream is cached.

    >>> equation_7_w_N_solved(p_N=0.75, w_S=10)
    30.0
    """
    return w_S * p_N / (1 - p_N) if p_N < 1 else math.inf


# -------------------------------------------------------------------------------------------------------- w_S


def segments(*, R_t: float, h_R: float, d: float) -> float:
    """N, the segments of R' = R − h_R, each as large as the disk buffer.

    >>> segments(R_t=1000, h_R=200, d=50)
    16.0
    """
    return (R_t - h_R) / d


def equation_8_p_S(*, R_t: float, h_R: float, N: float) -> float:
    """Mean probability that a stream tuple matches a segment: (ln R_t − ln h_R) / (N·(ln R_t + γ)).

    It is that of any tuple of the stream; those in H_S are the ones that missed. See `equation_8_p_S_corrected`. With
    h_R = 0, an algorithm without a cache, the sum it stands for is all of the stream, and p_S = 1/N.

    >>> round(equation_8_p_S(R_t=10**8, h_R=10**6, N=100), 6)
    0.002424
    >>> equation_8_p_S(R_t=10**8, h_R=0, N=100)
    0.01
    """
    if h_R == 0:
        return 1 / N
    return (math.log(R_t) - math.log(h_R)) / (N * (math.log(R_t) + EULER_GAMMA))


def equation_8_p_S_corrected(*, N: float) -> float:
    """The same among those that wait: they are the share 1 − p_N of the stream, and all of them match one segment.

    >>> R_t, h_R = 10**8, 10**6
    >>> missed = 1 - equation_5_p_N_corrected(h_R=h_R, R_t=R_t)
    >>> round(equation_8_p_S(R_t=R_t, h_R=h_R, N=100) / missed, 6) == equation_8_p_S_corrected(N=100)
    True
    """
    return 1 / N


def theta_S(*, R_t: float, h_R: float, d: float) -> float:
    """θ_S: the mean p_S changes by this factor when d is doubled, which halves N: 2.

    >>> theta_S(R_t=10**8, h_R=10**6, d=1000)
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
    return equation_8_p_S(R_t=R_t, h_R=h_R, N=segments(R_t=R_t, h_R=h_R, d=d))


def equation_9_p_S(*, d: float, h_R: float, R_t: float, theta_S: float, psi_S: float, phi_S: float) -> float:
    """Mean p_S = d^x·h_R^y·R_t^z with x = log₂ θ_S, y = log₂ ψ_S, z = log₂ φ_S. As in equation 6 a factor is missing.

    >>> equation_9_p_S(d=8, h_R=4, R_t=16, theta_S=2, psi_S=0.5, phi_S=0.5)
    0.125
    >>> sizes = dict(R_t=10**8, h_R=10**6, d=1000)
    >>> printed = equation_9_p_S(theta_S=theta_S(**sizes), psi_S=psi_S(**sizes), phi_S=phi_S(**sizes), **sizes)
    >>> round(printed / equation_8_p_S(R_t=10**8, h_R=10**6, N=segments(**sizes)), 1)
    2.7
    """
    return float(d ** math.log2(theta_S) * h_R ** math.log2(psi_S) * R_t ** math.log2(phi_S))


def equation_9_p_S_corrected(
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
    """The power law through a known point, as in equation 6.

    >>> known = dict(p_0=0.01, d_0=10, h_0=4, R_0=100)
    >>> equation_9_p_S_corrected(d=20, h_R=4, R_t=200, theta_S=2, psi_S=0.8, phi_S=0.5, **known)
    0.01
    """
    change = equation_9_p_S(d=d / d_0, h_R=h_R / h_0, R_t=R_t / R_0, theta_S=theta_S, psi_S=psi_S, phi_S=phi_S)
    return p_0 * change


def equation_10_w_S(
    *, d: float, h_R: float, R_t: float, theta_S: float, psi_S: float, phi_S: float, h_S: float
) -> float:
    """Mean w_S = p_S·h_S, p_S by equation 9.

    Section 5.1.2 has segments of R' read through an index, section 4.1 a scan of R that needs none. In a scan a chunk
    leaves when it has met all of R, whatever it matched: `equation_10_w_S_corrected`. That is ours, too.

    >>> equation_10_w_S(d=8, h_R=4, R_t=16, theta_S=2, psi_S=0.5, phi_S=0.5, h_S=1000)
    125.0
    """
    return equation_9_p_S(d=d, h_R=h_R, R_t=R_t, theta_S=theta_S, psi_S=psi_S, phi_S=phi_S) * h_S


def equation_10_w_S_corrected(*, d: float, R_t: float, h_S: float) -> float:
    """w_S of a scan: h_S tuples leave during the R_t / d turns of an R-cycle.

    >>> equation_10_w_S_corrected(d=50, R_t=1000, h_S=400)
    20.0
    """
    return h_S * d / R_t
