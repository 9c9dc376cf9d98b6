"""Codes of the stream's keys: those of R's rows, but for keys whose rows have changed since R's base was built.

A changed key has a new code, under which all of its rows stand in a run behind the base (decision 0032). Whoever looks
for rows therefore takes the stream's codes from a `StreamCoder`; whoever writes rows takes them from a `KeyCoder`.
They are two classes with two names, so that neither can be handed over for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.keys import KeyCoder
from semistream.kernels import recode as kernel

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: per changed code, a table has so many entries, and a bitmap at least this many bits
_ENTRIES, _BITS = 4 / 3, 16


class Recoding:
    """The new code of every changed one.

    `load` gives the pairs, sorted by the first: a changed code, and its new one, or `absent` if its key has no row.
    No row has the code `absent`, and from it on all codes were given by changes: one that a stream brings by itself is
    not in R.
    """

    def __init__(self, count: int, absent: int, load: Callable[[], tuple[Int64s, Int64s]]) -> None:
        self.count, self.absent = count, absent
        self._load = load
        self._entries = int(_ENTRIES * count) + 2
        self._words = 1 << max(_BITS * count // 64 - 1, 0).bit_length()

    def pairs(self) -> tuple[Int64s, Int64s]:
        """Changed codes, sorted, and their new ones; read anew, for joins need the table only."""
        return self._load()

    @cached_property
    def _table(self) -> tuple[Int64s, npt.NDArray[np.uint64]]:
        table, bitmap = np.full(2 * self._entries, kernel.EMPTY, dtype=np.int64), np.zeros(self._words, dtype=np.uint64)
        codes, fresh = self._load()
        kernel.fill_recoding(codes, fresh, table, bitmap)
        return table, bitmap

    @property
    def nbytes(self) -> int:
        """Bytes of the table once it is loaded."""
        return 16 * self._entries + 8 * self._words

    def load(self) -> None:
        """Read the pairs now, while their file is sure to be there."""
        self._table  # noqa: B018

    def apply(self, codes: Int64s) -> None:
        """Replace codes in place."""
        kernel.recode(codes, *self._table, self.absent)


class StreamCoder:
    """Codes keys as R's rows are found by; `rows` is how R's rows themselves were coded.

    >>> plain = StreamCoder(KeyCoder([pa.int64()]))
    >>> plain.codes([pa.array([7, 8])])[0].tolist()
    [7, 8]
    >>> changed = Recoding(2, 100, lambda: (np.array([8, 9]), np.array([101, 100])))
    >>> coder = StreamCoder(KeyCoder([pa.int64()]), changed)
    >>> coder.codes([pa.array([7, 8, 9, 105])])[0].tolist()
    [7, 101, 100, 100]
    """

    def __init__(self, rows: KeyCoder, recoding: Recoding | None = None) -> None:
        self.rows, self.recoding = rows, recoding

    @property
    def exact(self) -> bool:
        """Whether equal codes mean equal keys."""
        return self.rows.exact

    @property
    def is_key(self) -> bool:
        """Whether a code is the key's own value, so that it can stand for it."""
        return self.rows.exact and self.recoding is None

    def for_stream(self, types: Sequence[pa.DataType]) -> StreamCoder:
        """The same for key columns of other types, as a stream may have them."""
        return StreamCoder(KeyCoder.for_stream(types, self.rows.types, mask=self.rows.mask), self.recoding)

    def codes(self, columns: Sequence[pa.Array]) -> tuple[Int64s, Bools | None]:
        """Codes of a batch, and which of them can match at all (None: every one); see `KeyCoder.codes`."""
        codes, valid = self.rows.codes(columns)
        if self.recoding is not None:
            self.recoding.apply(codes)
        return codes, valid
