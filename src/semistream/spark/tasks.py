"""What tasks of an enrichment do with the batches of a partition; what they say of themselves goes to the driver."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, replace

import pyarrow as pa

from semistream.spark import metrics, worker
from semistream.spark.carry import CarryPlan, run_carrying
from semistream.spark.dimension import Dimension
from semistream.spark.narrowing import narrowed
from semistream.spark.parking import ParkPlan, run_parking


@dataclass(frozen=True)
class JoinTask:
    """It joins its batches with all dimensions, and finishes every tuple."""

    dimensions: tuple[Dimension, ...]
    report: metrics.Reporter

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _reported(worker.run(self.dimensions, batches), self.report)

    @property
    def joins(self) -> frozenset[str]:
        """The joins that it opens before it asks for a batch; with "auto" it looks at one first."""
        if any(dimension.request.is_auto for dimension in self.dimensions):
            return frozenset()
        return frozenset(dimension.identity for dimension in self.dimensions)

    def narrowed(self, wanted: Set[int]) -> tuple[JoinTask, tuple[int, ...]]:
        """The task without master columns that are not wanted, and the places of the columns that it still gives."""
        dimensions, given = narrowed(self.dimensions, wanted)
        return replace(self, dimensions=dimensions), given


def carrying_task(
    plan: CarryPlan, report: metrics.Reporter, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """It joins the batches of a shard; tuples may wait for a later micro-batch."""
    return _reported(run_carrying(plan, batches), report)


def parking_task(
    plan: ParkPlan, report: metrics.Reporter, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """It joins the batches of a shard; tuples without a match may be parked."""
    return _reported(run_parking(plan, batches), report)


def _reported(
    items: Iterator[pa.RecordBatch | metrics.TaskMetrics], report: metrics.Reporter
) -> Iterator[pa.RecordBatch]:
    """The joined batches; what tasks say of themselves goes to the driver."""
    for item in items:
        if isinstance(item, metrics.TaskMetrics):
            report.send(item)
        else:
            yield item
