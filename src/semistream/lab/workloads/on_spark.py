"""Workloads made by Spark's tasks: for sizes that one process would be too slow or too small for.

A task is given slice numbers, not rows: the JVM sends almost nothing, and the rows come from the same function as in
process. So the data do not depend on how many partitions there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import from_arrow_schema

from semistream.errors import ConfigError
from semistream.lab.workloads.workload import BATCH_ROWS, Workload

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def generate(
    spark: SparkSession, workload: Workload, rows: int | None = None, partitions: int | None = None, *, start: int = 0
) -> DataFrame:
    """Rows start .. start + rows - 1 of the workload, by default all, in partitions that follow each other."""
    if (rows is not None and rows < 0) or (partitions is not None and partitions < 1):
        raise ConfigError(f"rows={rows}, partitions={partitions}; allowed are at least 0 rows and at least 1 partition")
    span = workload.span(start, None if rows is None else start + rows)
    # Both ends are tried here: a task would report a span outside the relation only when the query runs.
    for edge in {span.start, span.stop}:
        workload.rows(edge, edge)
    per_slice = max(1, min(BATCH_ROWS, -(-len(span) // (partitions or 1))))
    slices = -(-len(span) // per_slice)
    schema = from_arrow_schema(workload.schema, prefer_timestamp_ntz=True)
    numbers = spark.range(0, slices, 1, partitions)
    return numbers.mapInArrow(_maker(workload, span, per_slice), schema)


def _maker(
    workload: Workload, span: range, per_slice: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def make(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                first = span.start + number * per_slice
                yield workload.rows(first, min(first + per_slice, span.stop))

    return make
