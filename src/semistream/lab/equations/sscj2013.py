"""sscj2013: memory and cost of SSCJ, which later papers call CACHEJOIN (section 4.2).

The paper says that it was tuned by these equations and, for want of pages, not how: it has no equation for w_N and
w_S. Those of ssj2014, which has the same cache, are for a segment that is read through an index, as SSCJ does.

It gives v_R = 120 and v_S = 20 bytes, and 12 for a node of the queue (its table 2), which we write v_Q. With
h_R = w_N = c_F = 0 the equations are those of HYBRIDJOIN, whose style they follow.
"""

from __future__ import annotations

from semistream.lab.equations import Reading

V_R, V_S, V_Q = 120, 20, 12
#: bytes of the frequency recorder per cached tuple
RECORDER = 8


def equation_1_memory(*, M: float, d: float, v_R: float, h_R: float, alpha: float) -> float:
    """M = d·v_R + h_R·v_R + 8·h_R + α·(M − d·v_R − h_R·v_R − 8·h_R) + (1 − α)·(M − d·v_R − h_R·v_R − 8·h_R).

    It says M = M whatever α is; what it leaves open is `equation_1_h_S_corrected`.

    >>> equation_1_memory(M=10_000, d=20, v_R=100, h_R=25, alpha=0.25)
    10000.0
    """
    rest = M - d * v_R - h_R * v_R - RECORDER * h_R
    return d * v_R + h_R * v_R + RECORDER * h_R + alpha * rest + (1 - alpha) * rest


def equation_1_h_S_corrected(*, M: float, d: float, v_R: float, h_R: float, v_S: float, v_Q: float, f: float) -> float:
    """h_S, as many tuples in H_S, f·v_S bytes each, as nodes in the queue, v_Q each; so α = f·v_S / (f·v_S + v_Q).

    Ours counts real slots, links and directory entries, the index of R and scratch arrays.

    >>> equation_1_h_S_corrected(M=10_000, d=20, v_R=100, h_R=25, v_S=20, v_Q=12, f=1)
    165.625
    """
    return (M - d * v_R - h_R * v_R - RECORDER * h_R) / (f * v_S + v_Q)


def equation_2_c_loop(
    *,
    c_IO: Reading,
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
    """Seconds of one turn: 10⁻⁹·[c_I/O(d) + d·(c_H + c_F) + w_S·(c_O + c_E + c_S + c_A) + w_N·(c_H + c_O + c_S)].

    Tuples that miss were looked up in H_R too: `equation_2_c_loop_corrected`. Switching a tuple into H_R and finding
    the partition by the index have no price. Ours prices the frequency of keys that leave H_S, not of all d tuples, and
    adds what a turn and a chunk cost by themselves.

    >>> costs = dict(c_H=2, c_F=1, c_O=5, c_E=3, c_S=1, c_A=4)
    >>> round(1e9 * equation_2_c_loop(c_IO=lambda d: 7 * d, d=100, w_N=20, w_S=10, **costs))
    1290
    """
    reading, probing = c_IO(d), d * (c_H + c_F)
    return 1e-9 * (reading + probing + w_S * (c_O + c_E + c_S + c_A) + w_N * (c_H + c_O + c_S))


def equation_2_c_loop_corrected(
    *,
    c_IO: Reading,
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
    """Equation 2 with a look-up in H_R for the tuples that miss as well, and c_F for the w_S tuples that leave H_S.

    The first is a gap; the second is how ours counts, where the paper compares all d tuples of the disk buffer.

    >>> costs = dict(c_H=2, c_F=1, c_O=5, c_E=3, c_S=1, c_A=4)
    >>> round(1e9 * equation_2_c_loop_corrected(c_IO=lambda d: 7 * d, d=100, w_N=20, w_S=10, **costs))
    1220
    """
    as_printed = equation_2_c_loop(
        c_IO=c_IO, d=d, w_N=w_N, w_S=w_S, c_H=c_H, c_F=c_F, c_O=c_O, c_E=c_E, c_S=c_S, c_A=c_A
    )
    return as_printed + 1e-9 * (w_S * c_H - (d - w_S) * c_F)


def equation_3_service_rate(*, w_N: float, w_S: float, c_loop: float) -> float:
    """Tuples per second: μ = (w_N + w_S) / c_loop. Ours is the same.

    >>> equation_3_service_rate(w_N=20, w_S=10, c_loop=0.5)
    60.0
    """
    return (w_N + w_S) / c_loop
