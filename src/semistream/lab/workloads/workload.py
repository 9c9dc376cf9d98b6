"""What every generated relation offers: any slice of its rows, by row number.

A slice costs what its rows cost, wherever it begins. So one process can walk through a relation in batches, and
the tasks of a cluster can each make a part, and the rows are the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import pyarrow as pa

from semistream.errors import ConfigError

BATCH_ROWS = 65_536


class Workload(ABC):
    """A relation whose rows are a function of a seed and their own number."""

    #: How many rows there are; None for a stream that does not end.
    n_rows: int | None

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """Columns of every slice, also of an empty one."""

    @abstractmethod
    def _make(self, start: int, stop: int) -> list[pa.Array]:
        """The columns of rows start .. stop - 1, in the schema's order."""

    def rows(self, start: int, stop: int) -> pa.RecordBatch:
        """Rows start .. stop - 1."""
        if not 0 <= start <= stop or (self.n_rows is not None and stop > self.n_rows):
            size = "an endless stream" if self.n_rows is None else f"a relation of {self.n_rows} rows"
            raise ConfigError(f"rows {start} to {stop} are not in {size}; give 0 <= start <= stop within it")
        return pa.RecordBatch.from_arrays(self._make(start, stop), schema=self.schema)

    def span(self, start: int, stop: int | None) -> range:
        """The row numbers from start to stop, or to the end of a relation that has one."""
        end = self.n_rows if stop is None else stop
        if end is None:
            raise ConfigError(f"{type(self).__name__} has no last row; say where to stop")
        return range(start, end)

    def batches(
        self, start: int = 0, stop: int | None = None, batch_rows: int = BATCH_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """Rows start .. stop - 1, one bounded piece after another."""
        span = self.span(start, stop)
        for first in span[::batch_rows]:
            yield self.rows(first, min(first + batch_rows, span.stop))

    def reader(self, start: int = 0, stop: int | None = None, batch_rows: int = BATCH_ROWS) -> pa.RecordBatchReader:
        """The same as an Arrow reader, for whoever wants the schema first."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches(start, stop, batch_rows))

    def table(self, start: int = 0, stop: int | None = None) -> pa.Table:
        """Rows start .. stop - 1 at once: for small relations."""
        span = self.span(start, stop)
        return pa.Table.from_batches([self.rows(span.start, span.stop)])


class Reading:
    """An endless workload read in batches of any size, never the same row twice."""

    def __init__(self, workload: Workload, position: int = 0) -> None:
        self._workload = workload
        #: number of the next row
        self.position = position

    def batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Batches of `rows` rows, without end."""
        while True:
            self.position += rows
            yield self._workload.rows(self.position - rows, self.position)
