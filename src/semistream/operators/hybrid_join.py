"""HYBRIDJOIN: MESHJOIN's amortisation with an index instead of a blind scan."""

from __future__ import annotations

from semistream.operators.index import IndexJoin


class HybridJoin(IndexJoin):
    """HYBRIDJOIN lets the oldest waiting tuple pick, through the index, the partition of R that is loaded next.

    The load is shared by all waiting tuples whose keys stand on it; they leave at once, and as many new tuples come
    in as slots came free. Every load finishes at least one tuple, so bursts and pauses of the stream do no harm.

    Needs of R: an index on the key. Keys may repeat; absent keys leave when they are the oldest.

    Memory: M = d·v_R + h_S·(v_S·f + v_Q), the queue node v_Q with both neighbours.
    Cost:   c_loop = c_I/O(d) + d·c_H + w_S·(c_S + c_A + c_O + c_E).

    >>> import pyarrow as pa
    >>> from semistream import open_join
    >>> with open_join("hybridjoin", master=pa.table({"k": [1, 2], "v": [10, 20]}), on="k", memory="1MB") as join:
    ...     rows = [*join.push(pa.record_batch({"k": [2, 7]})), *join.drain()]
    >>> pa.Table.from_batches(rows).to_pydict()
    {'k': [2], 'v': [20]}

    Paper: hybridjoin2011 (M. A. Naeem, G. Dobbie, G. Weber, "HYBRIDJOIN for near-real-time data warehousing", IJDWM
    2011); described in sscj2013, section 3.
    """

    name = "hybridjoin"
    paper = "hybridjoin2011, sscj2013 §3"
