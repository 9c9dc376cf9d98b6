"""R-MESHJOIN: MESHJOIN with the disk buffer set free from the number of queue chunks."""

from __future__ import annotations

from typing import Any

from semistream.errors import ConfigError
from semistream.master.base import Master
from semistream.operators.scan import ScanJoin
from semistream.spec import JoinSpec


class RMeshJoin(ScanJoin):
    """R-MESHJOIN makes the size of the disk buffer a parameter of its own.

    In MESHJOIN the number of partitions of R and of chunks in the queue is one parameter, so b follows from R. Here b
    is given, and stays when R grows; chunks come and go as the scan passes them.

    Needs of R: nothing. Exact for any key, any number of matches.

    Memory: M = b·v_R + h_S·(v_P + f·v_S).
    Cost:   c_loop = c_I/O(b) + b·c_H + w·(c_S + c_A + c_O + c_E).

    Options: `b`, tuples in the disk buffer (default: what a tenth of the budget holds).

    >>> import pyarrow as pa
    >>> from semistream import open_join
    >>> with open_join("rmeshjoin", master=pa.table({"k": [1, 2], "v": [10, 20]}), on="k", memory="1MB", b=1) as join:
    ...     rows = [*join.push(pa.record_batch({"k": [2, 2]})), *join.drain()]
    >>> pa.Table.from_batches(rows).to_pydict()
    {'k': [2, 2], 'v': [20, 20]}

    Paper: rmeshjoin2010 (M. A. Naeem, G. Dobbie, G. Weber, S. Alam, "R-MESHJOIN for near-real-time data
    warehousing", DOLAP 2010); compared in sscj2013 and oxhybridjoin2012.
    """

    name = "rmeshjoin"
    paper = "rmeshjoin2010, sscj2013 §2"

    def __init__(
        self,
        master: Master,
        spec: JoinSpec,
        budget_bytes: int,
        *,
        b: int | None = None,
        **common: Any,
    ) -> None:
        if b is not None and (not isinstance(b, int) or b < 1):
            raise ConfigError(f"b={b!r} is not a number of tuples; allowed are whole numbers from 1")
        self._wanted_b = b
        super().__init__(master, spec, budget_bytes, **common)

    def _plan_fixed(self, total: int, wanted_buffer: int | None) -> None:
        if self._wanted_b is not None:
            pages = -(-self._wanted_b // self.reader.page_rows)
            wanted_buffer = self._buffer_bytes_for(pages)
        super()._plan_fixed(total, wanted_buffer)
