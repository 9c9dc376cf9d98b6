"""ssbj2019: the cache inequality with its theorems, and SSBJ's memory and cost (section 3).

A turn of the main loop reads a partition of b tuples, so an R-cycle has R_t / b turns. With h_R = w_N = c_B = 0 the
equations are those of MESHJOIN, whose style they follow. They say what w_N and w_S cost and not what they are: what is
cached follows from theorem 2, and with it w_N.

The paper gives v_R = 120, v_S = 20 and v_P = 4 bytes (its table 2) and no value for f, the fudge factor of both hash
tables. opcachejoin2020, by the same first author, has f = 8 for such a table.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from semistream.lab.equations import Reading

Floats = npt.NDArray[np.float64]

V_R, V_S, V_P = 120, 20, 4


# -------------------------------------------------------------------------------------------- memory and cost


def equation_1_memory(
    *, b: float, h_R: float, f: float, v_R: float, w_S: float, R_t: float, v_P: float, v_S: float
) -> float:
    """Bytes of all parts: M = (b + h_R·f)·v_R + w_S·(R_t/b)·(v_P + f·v_S).

    Ours counts what parts really take: slots and directory entries in place of f, no queue beside H_S, and besides the
    index of R, scratch arrays and the absence filter.

    >>> equation_1_memory(b=1000, h_R=500, f=2, v_R=100, w_S=10, R_t=100_000, v_P=4, v_S=20)
    244000.0
    """
    return (b + h_R * f) * v_R + w_S * (R_t / b) * (v_P + f * v_S)


def equation_1_w_S(
    *, M: float, b: float, h_R: float, f: float, v_R: float, R_t: float, v_P: float, v_S: float
) -> float:
    """The same, solved for the tuples per turn that the disk phase can take in.

    >>> equation_1_w_S(M=244_000, b=1000, h_R=500, f=2, v_R=100, R_t=100_000, v_P=4, v_S=20)
    10.0
    """
    return (M - (b + h_R * f) * v_R) / (R_t / b * (v_P + f * v_S))


def equation_2_c_loop(
    *,
    c_IO: Reading,
    b: float,
    w_N: float,
    w_S: float,
    c_H: float,
    c_B: float,
    c_S: float,
    c_O: float,
    c_E: float,
    c_A: float,
) -> float:
    """Seconds of one turn: 10⁻⁹·[c_I/O(b) + b·(c_H + c_B) + w_N·(c_S + c_H + c_O) + w_S·(c_E + c_S + c_A + c_O)].

    A tuple that the cache does not answer was looked up in it as well (line 17 of Algorithm 1), and that is not priced;
    see `equation_2_c_loop_corrected`. All b tuples of the buffer pay c_B, though few are switched, and only in one
    R-cycle of three. A tuple pays one c_O, however many master tuples it meets.

    Ours prices every look-up, c_B for tuples that are switched and c_O per output row, has two costs of a look-up (a
    master tuple in H_S is cheaper than a stream tuple in H_R), and adds what a turn and a chunk cost by themselves.

    >>> costs = dict(c_H=2, c_B=1, c_S=1, c_O=5, c_E=3, c_A=4)
    >>> round(1e9 * equation_2_c_loop(c_IO=lambda b: 7 * b, b=100, w_N=20, w_S=10, **costs))
    1290
    """
    reading, probing = c_IO(b), b * (c_H + c_B)
    return 1e-9 * (reading + probing + w_N * (c_S + c_H + c_O) + w_S * (c_E + c_S + c_A + c_O))


def equation_2_c_loop_corrected(
    *,
    c_IO: Reading,
    b: float,
    w_N: float,
    w_S: float,
    c_H: float,
    c_B: float,
    c_S: float,
    c_O: float,
    c_E: float,
    c_A: float,
    switched: float = 0.0,
) -> float:
    """Equation 2 with a look-up in H_R for tuples that miss as well, and c_B for those of b that are switched.

    >>> costs = dict(c_H=2, c_B=1, c_S=1, c_O=5, c_E=3, c_A=4)
    >>> round(1e9 * equation_2_c_loop_corrected(c_IO=lambda b: 7 * b, b=100, w_N=20, w_S=10, switched=6, **costs))
    1216
    """
    as_printed = equation_2_c_loop(
        c_IO=c_IO, b=b, w_N=w_N, w_S=w_S, c_H=c_H, c_B=c_B, c_S=c_S, c_O=c_O, c_E=c_E, c_A=c_A
    )
    return as_printed + 1e-9 * (w_S * c_H - (b - switched) * c_B)


def equation_3_service_rate(*, w_N: float, w_S: float, c_loop: float) -> float:
    """Tuples per second: μ = (w_N + w_S) / c_loop. Ours is the same.

    >>> equation_3_service_rate(w_N=20, w_S=10, c_loop=0.5)
    60.0
    """
    return (w_N + w_S) / c_loop


def equation_4_keeps_up(*, lambda_: float, w_N: float, w_S: float, c_loop: float) -> bool:
    """Whether the join keeps up with a stream of `lambda_` tuples per second: λ ≤ (w_N + w_S) / c_loop.

    >>> equation_4_keeps_up(lambda_=60, w_N=20, w_S=10, c_loop=0.5)
    True
    """
    return lambda_ <= (w_N + w_S) / c_loop


def equation_5_arrival_rate(*, w_N: float, w_S: float, c_loop: float) -> float:
    """The fastest stream that these w_N and w_S serve: λ = (w_N + w_S) / c_loop.

    >>> equation_5_arrival_rate(w_N=20, w_S=10, c_loop=0.5)
    60.0
    """
    return (w_N + w_S) / c_loop


def equation_6_arrival_rate(
    *, c_loop: float, h_R: float, v_R: float, f: float, b: float, w_S: float, R_t: float, v_P: float, v_S: float
) -> float:
    """λ = (1/c_loop)·[h_R·v_R·f + b·v_R + w_S·(R_t/b)·(v_P + f·v_S)], as printed.

    The paper puts the memory that w_N and w_S take in place of w_N and w_S themselves. The bracket is M of equation 1,
    so this is M / c_loop, in bytes per second: no arrival rate. See `equation_6_arrival_rate_corrected`.

    >>> sizes = dict(b=1000, h_R=500, f=2, v_R=100, w_S=10, R_t=100_000, v_P=4, v_S=20)
    >>> equation_6_arrival_rate(c_loop=0.5, **sizes) == equation_1_memory(**sizes) / 0.5
    True
    """
    return (h_R * v_R * f + b * v_R + w_S * (R_t / b) * (v_P + f * v_S)) / c_loop


def equation_6_arrival_rate_corrected(
    *,
    c_loop: float,
    M: float,
    h_R: float,
    v_R: float,
    f: float,
    b: float,
    R_t: float,
    v_P: float,
    v_S: float,
    p_N: float,
) -> float:
    """λ by memory, in tuples: w_S is what equation 1 leaves for it, and of w tuples the cache answers the share p_N.

    >>> sizes = dict(M=244_000, b=1000, h_R=500, f=2, v_R=100, R_t=100_000, v_P=4, v_S=20)
    >>> equation_6_arrival_rate_corrected(c_loop=0.5, p_N=0.75, **sizes)
    80.0
    """
    w_S = equation_1_w_S(M=M, b=b, h_R=h_R, f=f, v_R=v_R, R_t=R_t, v_P=v_P, v_S=v_S)
    return w_S / (1 - p_N) / c_loop


# --------------------------------------------------------------------------------------------------- theorems


def theorem_1_memory(m_cache: Floats, m_disk: Floats) -> float:
    """Σ_j min(m_cache(j), m_disk(j)): the least memory of both hash tables, every key being where it takes less.

    >>> theorem_1_memory(np.array([40.0, 20.0]), np.array([30.0, 30.0]))
    50.0
    """
    return float(np.minimum(m_cache, m_disk).sum())


def theorem_2_is_cached(*, m: float, v_R: float, n: float, v_S: float) -> bool:
    """The cache inequality: m·v_R < n·v_S for a key with m master tuples and n stream tuples per R-cycle.

    Equation 1 counts more than v_R and v_S for the same tuples, f and v_P; see `theorem_2_is_cached_corrected`. Ours
    adds the directory entry of a cached key, and asks for more than chance explains, since n is one sample.

    >>> theorem_2_is_cached(m=4, v_R=1, n=3, v_S=1), theorem_2_is_cached(m=2, v_R=1, n=3, v_S=1)
    (False, True)
    """
    return m * v_R < n * v_S


def theorem_2_is_cached_corrected(*, m: float, v_R: float, n: float, v_S: float, v_P: float, f: float) -> bool:
    """The cache inequality with the bytes of equation 1: m·f·v_R < n·(v_P + f·v_S).

    With v_P above 0 a waiting tuple takes more than theorem 2 has it, so that more keys are worth caching.

    >>> theorem_2_is_cached(m=1, v_R=120, n=6, v_S=20)
    False
    >>> theorem_2_is_cached_corrected(m=1, v_R=120, n=6, v_S=20, v_P=4, f=1)
    True
    """
    return m * f * v_R < n * (v_P + f * v_S)


def line_33_enters(*, m: float, v_R: float, n: float, v_S: float, sf: float = 1.0) -> bool:
    """Algorithm 1, line 33: a key is switched into the cache if m_disk > sf·m_cache.

    The line is reached only for keys that a master tuple has (line 26). So Algorithm 1 never caches a key that R lacks,
    though the text of section 3.1 says that such keys are cached, without a tuple. Ours does as the text says, by a
    filter of absent keys.

    >>> line_33_enters(m=1, v_R=120, n=10, v_S=20), line_33_enters(m=1, v_R=120, n=10, v_S=20, sf=2)
    (True, False)
    """
    return n * v_S > sf * m * v_R


def line_46_leaves(*, m: float, v_R: float, n: float, v_S: float, sf: float = 1.0) -> bool:
    """Algorithm 1, line 46: a key is evicted if m_cache ≥ sf·m_disk.

    With sf above 1 a key may have from m_cache/sf to sf·m_cache on either side: a hysteresis. With sf below 1 both
    lines hold for keys between sf·m_cache and m_cache/sf, which go in and out for ever.

    >>> between = dict(m=1, v_R=120, n=6, v_S=20)
    >>> line_33_enters(sf=2, **between), line_46_leaves(sf=2, **between)
    (False, False)
    >>> line_33_enters(sf=0.5, **between), line_46_leaves(sf=0.5, **between)
    (True, True)
    """
    return m * v_R >= sf * n * v_S


def section_5_waiting_tuples(*, p_j: float, P: float, L: float) -> float:
    """n over HYBRIDJOIN: tuples of key j that wait at any time, where its partition has the stream share P.

    Section 5 says that the cache inequality could be applied over HYBRIDJOIN as well, and gives no n for it. There a
    tuple does not wait for an R-cycle. The first tuple of a partition waits until it is the oldest, while L stream
    tuples come; P·L more of its partition join it and wait half as long on average; then 1/P tuples pass until the
    next first one. So n = p_j·L·(1 + P·L/2) / (1 + P·L): p_j·L for a partition that few want, half of it for a hot one.

    >>> round(section_5_waiting_tuples(p_j=0.001, P=0.000001, L=1000), 3)
    1.0
    >>> round(section_5_waiting_tuples(p_j=0.001, P=1.0, L=1000), 3)
    0.5
    """
    together = P * L
    return p_j * L * (1 + together / 2) / (1 + together)


def section_5_is_cached(*, m: float, v_R: float, p_j: float, P: float, L: float, v_S: float) -> bool:
    """The cache inequality over HYBRIDJOIN: m·v_R < n·v_S with n of `section_5_waiting_tuples`.

    It minimises memory, as theorem 2 does. It does not count the loads of R that a cached key saves: over MESHJOIN
    there are none to save, over HYBRIDJOIN a partition whose hot keys are cached is picked less often.

    >>> section_5_is_cached(m=1, v_R=120, p_j=0.01, P=0.02, L=1000, v_S=24)
    True
    >>> section_5_is_cached(m=1, v_R=120, p_j=0.005, P=0.02, L=1000, v_S=24)
    False
    """
    return theorem_2_is_cached(m=m, v_R=v_R, n=section_5_waiting_tuples(p_j=p_j, P=P, L=L), v_S=v_S)


def theorem_3_memory_of_R(*, R_t: float, v_R: float, f: float) -> float:
    """mm: bytes of the cache when all of R is in it.

    >>> theorem_3_memory_of_R(R_t=100, v_R=120, f=2)
    24000
    """
    return R_t * v_R * f


def theorem_3_w_max(*, R_t: float, v_R: float, f: float, b: float, v_P: float, v_S: float) -> float:
    """Tuples per turn at which MESHJOIN takes mm bytes: beyond λ_max = w / c_loop with this w it takes more.

    >>> theorem_3_w_max(R_t=1000, v_R=100, f=1, b=100, v_P=5, v_S=20)
    360.0
    """
    whole = theorem_3_memory_of_R(R_t=R_t, v_R=v_R, f=f)
    return equation_1_w_S(M=whole, b=b, h_R=0, f=f, v_R=v_R, R_t=R_t, v_P=v_P, v_S=v_S)


def theorem_3_lambda_max(*, w_max: float, c_loop: float) -> float:
    """λ_max: the arrival rate beyond which MESHJOIN takes more memory than all of R does in the cache.

    >>> theorem_3_lambda_max(w_max=360, c_loop=0.5)
    720.0
    """
    return w_max / c_loop


def theorem_3_memory(p_j: Floats, m_j: Floats, *, W: float, v_R: float, v_S: float) -> float:
    """Bytes of SSBJ's tables at W tuples per R-cycle: Σ_j min(m_j·v_R, W·p_j·v_S), never above Σ_j m_j·v_R = mm.

    It grows with W without a jump, from MESHJOIN's W·v_S where W is small to mm where every key of R that the stream
    has is cached: the transition into a main memory join. A key of R that the stream never has is never cached, so with
    such keys mm is not reached and part (c) has nothing to say. At W → ∞ nobody waits.

    >>> p, m = np.array([0.9, 0.1]), np.array([1.0, 1.0])
    >>> [theorem_3_memory(p, m, W=W, v_R=120, v_S=24) for W in (1, 10, 100)]
    [24.0, 144.0, 240.0]
    """
    return theorem_1_memory(m_j * v_R, W * p_j * v_S)


# --------------------------------------------------------------------------- what follows from a cache share


def most_times_meshjoin(p_N: float) -> float:
    """1 / (1 − p_N): the most that equations 1 to 3 allow over MESHJOIN's rate, p_N of the stream being cached.

    Of its memory SSBJ has no more for waiting tuples than MESHJOIN has, so with the same b its w_S is at most
    MESHJOIN's w (equation 1), and w_N + w_S = w_S / (1 − p_N). Its turn costs at least c_I/O(b) + b·c_H +
    w_S·(c_E + c_S + c_A + c_O), what MESHJOIN would pay for w_S tuples (equation 2); and w / (A + w·B) grows with w.

    >>> most_times_meshjoin(0.75)
    4.0
    """
    return 1 / (1 - p_N)


def least_cache_share(times_meshjoin: float) -> float:
    """The same the other way round: what part of the stream a cache must answer for such a factor.

    >>> least_cache_share(4.0)
    0.75
    """
    return 1 - 1 / times_meshjoin
