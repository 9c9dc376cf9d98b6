"""MESHJOIN: the scan join all others of the family descend from."""

from __future__ import annotations

from typing import Any

from semistream.errors import ConfigError
from semistream.master.base import Master
from semistream.operators.scan import ScanJoin
from semistream.spec import JoinSpec


class MeshJoin(ScanJoin):
    """MESHJOIN amortises one scan of R over all tuples that wait in memory.

    R is cut into k partitions and the queue into k chunks; every step loads one partition, probes the waiting tuples
    with it, drops the chunk that has met all k, and admits a new one. k is the parameter, so the disk buffer of
    b = R_t / k tuples grows with R.

    Needs of R: nothing (no index, no order, keys may repeat). Skew in the stream does not help it.

    Memory: M = b·v_R + w·k·(v_P + f·v_S), b = R_t / k.
    Cost:   c_loop = c_I/O(b) + b·c_H + w·(c_S + c_A + c_O + c_E).

    Options: `k`, number of partitions (default: as many as a disk buffer of a tenth of the budget asks for).

    >>> import pyarrow as pa
    >>> from semistream import open_join
    >>> parts = pa.table({"part": [1, 2, 2], "supplier": ["a", "b", "c"]})
    >>> with open_join("meshjoin", master=parts, on="part", memory="1MB") as join:
    ...     rows = [*join.push(pa.record_batch({"part": [2, 9]})), *join.drain()]
    >>> pa.Table.from_batches(rows).sort_by("supplier").to_pydict()
    {'part': [2, 2], 'supplier': ['b', 'c']}

    Paper: meshjoin2008 (N. Polyzotis et al., "Meshing streaming updates with persistent data in an active data
    warehouse", TKDE 2008); described in ssbj2019, section 2.2.
    """

    name = "meshjoin"
    paper = "meshjoin2008, ssbj2019 §2.2"

    def __init__(
        self,
        master: Master,
        spec: JoinSpec,
        budget_bytes: int,
        *,
        k: int | None = None,
        **common: Any,
    ) -> None:
        if k is not None and (not isinstance(k, int) or k < 1):
            raise ConfigError(f"k={k!r} is not a number of partitions; allowed are whole numbers from 1")
        self._wanted_k = k
        super().__init__(master, spec, budget_bytes, **common)

    def _plan_fixed(self, total: int, wanted_buffer: int | None) -> None:
        if self._wanted_k is not None:
            pages = -(-self.reader.n_pages // self._wanted_k)
            wanted_buffer = self._buffer_bytes_for(max(pages, 1))
        super()._plan_fixed(total, wanted_buffer)

    def _pages_per_step(self) -> int:
        if self._wanted_k is None:
            return self.buffer_pages
        return min(self.buffer_pages, max(-(-self.reader.n_pages // self._wanted_k), 1))
