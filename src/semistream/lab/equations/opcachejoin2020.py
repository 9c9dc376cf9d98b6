"""opcachejoin2020: memory and cost of P-CACHEJOIN, and what OP-CACHEJOIN changes in them.

The numbers are those of P-CACHEJOIN's equations; OP-CACHEJOIN has no numbers of its own, its functions are named after
the equation that the paper tells the reader to change. d_B and i_B are records of a disk buffer and of I_B.

The paper gives v_R = 120 and v_S = 20 bytes, 4 for a join attribute value in the queue, which we write v_Q, and a fudge
factor of 8 for H_S. The tuples of H_R count without one.
"""

from __future__ import annotations

from semistream.lab.equations import Reading

V_R, V_S, V_Q, F = 120, 20, 4, 8


# ------------------------------------------------------------------------------------------------ P-CACHEJOIN


def equation_1_memory(*, M: float, d_B: float, h_R: float, v_R: float, i_B: float, v_S: float, alpha: float) -> float:
    """M = (d_B + h_R)·v_R + i_B·v_S + α·(M − …) + (1 − α)·(M − …), … being the first two terms.

    It says M = M whatever α is; what it leaves open is `equation_1_h_S_corrected`.

    >>> equation_1_memory(M=10_000, d_B=20, h_R=30, v_R=100, i_B=50, v_S=20, alpha=0.25)
    10000.0
    """
    taken = (d_B + h_R) * v_R + i_B * v_S
    rest = M - (d_B + h_R) * v_R - i_B * v_S
    return taken + alpha * rest + (1 - alpha) * rest


def equation_1_h_S_corrected(
    *, M: float, d_B: float, h_R: float, v_R: float, i_B: float, v_S: float, v_Q: float, f: float
) -> float:
    """h_S, as many records in H_S, f·v_S bytes each, as values in the queue, v_Q each; so α = f·v_S / (f·v_S + v_Q).

    Ours counts real slots, links and directory entries, the index of R and scratch arrays.

    >>> equation_1_h_S_corrected(M=10_000, d_B=20, h_R=30, v_R=100, i_B=36, v_S=20, v_Q=4, f=8)
    26.0975...
    """
    return (M - (d_B + h_R) * v_R - i_B * v_S) / (f * v_S + v_Q)


def equation_2_c_loop(
    *,
    c_IO: Reading,
    d_B: float,
    w_N: float,
    w_S: float,
    c_H: float,
    c_F: float,
    c_O: float,
    c_S: float,
    c_A: float,
    c_E: float,
    c_AI: float,
) -> float:
    """Seconds of a turn: the sum 10⁻⁹·[c_I/O(d_B) + d_B·(c_H + c_F) + w_S·(c_O + c_S + c_A + c_E + c_AI) +
    w_N·(c_H + c_O + c_S)].

    The sum is what CACHEJOIN takes, and c_AI more: an equation of phases that run one after the other. By it
    P-CACHEJOIN is slower than CACHEJOIN, and its figures say the opposite. A record that misses is read twice, from
    S_B and from I_B, and looked up in H_R; the sum has one c_S and no look-up for it. See
    `equation_2_c_loop_corrected`.

    >>> costs = dict(c_H=2, c_F=1, c_O=5, c_S=1, c_A=4, c_E=3, c_AI=6)
    >>> round(1e9 * equation_2_c_loop(c_IO=lambda d: 7 * d, d_B=100, w_N=20, w_S=10, **costs))
    1350
    """
    reading, probing = c_IO(d_B), d_B * (c_H + c_F)
    return 1e-9 * (reading + probing + w_S * (c_O + c_S + c_A + c_E + c_AI) + w_N * (c_H + c_O + c_S))


def equation_2_c_loop_corrected(
    *,
    c_IO: Reading,
    d_B: float,
    w_N: float,
    w_S: float,
    c_H: float,
    c_F: float,
    c_O: float,
    c_S: float,
    c_A: float,
    c_E: float,
    c_AI: float,
) -> float:
    """What a turn takes if both phases run side by side all the time: the longer of the two.

    The stream phase reads and looks up every record, gives out w_N and appends w_S to I_B; the disk phase does the
    rest. That needs two processors, and a runtime that uses both. Ours has this, the interpreter that does one thing at
    a time, and a measured share of what could overlap and does.

    >>> costs = dict(c_H=2, c_F=1, c_O=5, c_S=1, c_A=4, c_E=3, c_AI=6)
    >>> round(1e9 * equation_2_c_loop_corrected(c_IO=lambda d: 7 * d, d_B=100, w_N=20, w_S=10, **costs))
    1130
    """
    stream = (w_N + w_S) * (c_S + c_H) + w_N * c_O + w_S * c_AI
    disk = c_IO(d_B) + d_B * (c_H + c_F) + w_S * (c_S + c_A + c_O + c_E)
    return 1e-9 * max(stream, disk)


def equation_3_service_rate(*, w_N: float, w_S: float, c_loop: float) -> float:
    """Records per second: μ = (w_N + w_S) / c_loop. Ours is the same.

    >>> equation_3_service_rate(w_N=20, w_S=10, c_loop=0.5)
    60.0
    """
    return (w_N + w_S) / c_loop


# ----------------------------------------------------------------------------------------------- OP-CACHEJOIN


def equation_1_memory_of_buffers(*, d_B: float, v_R: float) -> float:
    """OP-CACHEJOIN has two disk buffers: 2·d_B·v_R bytes take the place of d_B·v_R in equation 1.

    >>> equation_1_memory_of_buffers(d_B=850, v_R=120)
    204000
    """
    return 2 * d_B * v_R


def halved_c_IO(c_IO: Reading) -> Reading:
    """½·c_I/O(d_B): what the paper puts into equation 2 for OP-CACHEJOIN.

    Its reason is that both buffers are filled in parallel. That halves the time of a load where two loads take as long
    as one, on two disks or on one that serves requests at once; one head seeks for either load in turn. Where the loads
    run beside the disk phase they leave the sum, and may take all of it: `op_equation_2_c_loop_corrected`.

    >>> halved_c_IO(lambda d: 8 * d)(850)
    3400.0
    """
    return lambda d_B: 0.5 * c_IO(d_B)


def op_equation_2_c_loop_corrected(
    *,
    c_IO: Reading,
    d_B: float,
    w_N: float,
    w_S: float,
    c_H: float,
    c_F: float,
    c_O: float,
    c_S: float,
    c_A: float,
    c_E: float,
    c_AI: float,
    loads_at_once: float = 1.0,
) -> float:
    """What a turn takes if both phases and the loads run side by side: the longest of the three.

    `loads_at_once` is 2 for a store that serves two reads as fast as one, which the paper takes for granted.

    >>> costs = dict(c_H=2, c_F=1, c_O=5, c_S=1, c_A=4, c_E=3, c_AI=6)
    >>> turn = dict(c_IO=lambda d: 7 * d, d_B=100, w_N=20, w_S=10, **costs)
    >>> round(1e9 * op_equation_2_c_loop_corrected(**turn))
    700
    >>> round(1e9 * op_equation_2_c_loop_corrected(loads_at_once=2, **turn))
    430
    """
    load = 1e-9 * c_IO(d_B) / loads_at_once
    both = equation_2_c_loop_corrected(
        c_IO=lambda _: 0.0,
        d_B=d_B,
        w_N=w_N,
        w_S=w_S,
        c_H=c_H,
        c_F=c_F,
        c_O=c_O,
        c_S=c_S,
        c_A=c_A,
        c_E=c_E,
        c_AI=c_AI,
    )
    return max(load, both)


def most_times_p_cachejoin(*, load: float, join: float, stream: float = 0.0, loads_at_once: float = 1.0) -> float:
    """OP-CACHEJOIN's rate over P-CACHEJOIN's, if all that can runs side by side: docs/arguments/second-buffer.md.

    `load` and `join` are the two parts of a disk phase and `stream` is the stream phase beside it, in any unit.

    >>> most_times_p_cachejoin(load=1.0, join=1.0)
    2.0
    """
    return max(stream, load + join) / max(stream, load / loads_at_once, join)
