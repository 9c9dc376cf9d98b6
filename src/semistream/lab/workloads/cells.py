"""Arrow columns from NumPy arrays by the buffer, where Arrow's own way would go through Python objects."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from semistream.lab.workloads.counter import below, stream_seed, unit, words


class Draws:
    """The draws of one slice of one table: a sequence of its own for each purpose, entered at the slice's start."""

    def __init__(self, seed: int, table: str, start: int, stop: int) -> None:
        self._seed = seed
        self._table = table
        self._start = start
        self.count = stop - start

    def _sequence(self, purpose: str) -> int:
        return stream_seed(self._seed, f"{self._table}/{purpose}")

    def words(self, purpose: str) -> np.ndarray:
        return words(self._sequence(purpose), self._start, self.count)

    def unit(self, purpose: str) -> np.ndarray:
        return unit(self.words(purpose))

    def below(self, n: int, purpose: str) -> np.ndarray:
        return below(n, self._sequence(purpose), self._start, self.count)

    def pick(self, vocabulary: pa.Array, purpose: str) -> pa.Array:
        """A word of the vocabulary for each row, all equally likely."""
        return vocabulary.take(pa.array(self.below(len(vocabulary), purpose)))

    def missing(self, share: float, purpose: str) -> np.ndarray:
        """True for this share of the rows, to be used as a null mask."""
        return np.asarray(self.unit(f"{purpose} missing") <= share)


def decimals(hundredths: np.ndarray, precision: int) -> pa.Array:
    """decimal128(precision, 2) of these hundredths: an int128 is the int64 and its sign.

    >>> decimals(np.array([1999, -5]), 9).to_pylist()
    [Decimal('19.99'), Decimal('-0.05')]
    """
    both = np.empty((len(hundredths), 2), dtype=np.int64)
    both[:, 0] = hundredths
    np.right_shift(both[:, 0], 63, out=both[:, 1])
    return pa.Array.from_buffers(pa.decimal128(precision, 2), len(hundredths), [None, pa.py_buffer(both)])


def numbered(prefix: str, numbers: np.ndarray, digits: int) -> pa.Array:
    """Strings of one width: the prefix and the number with leading zeros.

    >>> numbered("P-", np.array([7, 4711]), 5).to_pylist()
    ['P-00007', 'P-04711']
    """
    head = np.frombuffer(prefix.encode("ascii"), dtype=np.uint8)
    text = np.empty((len(numbers), len(head) + digits), dtype=np.uint8)
    text[:, : len(head)] = head
    rest = np.asarray(numbers, dtype=np.int64)
    for place in range(digits - 1, -1, -1):
        tens = rest // 10
        text[:, len(head) + place] = rest - tens * 10 + ord("0")
        rest = tens
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * text.shape[1]
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(text))


def days(first: np.datetime64, after: np.ndarray, mask: np.ndarray | None = None) -> pa.Array:
    """date32: these numbers of days after the first."""
    start = int(first.astype("datetime64[D]").astype(np.int64))
    return pa.array((start + after).astype(np.int32), mask=mask).cast(pa.date32())
