"""A streaming source that keeps a query turning while tuples wait.

Spark plans a micro-batch only when some source has moved on. United with the stream, this one moves on as long as a
shard has tuples that wait, so the scan of R goes on when no data arrives, and `availableNow` ends only when no tuple
waits. A tick is one row per shard: a task knows its shard by the rows it gets, so a shard without rows is not visited.

Ticks are numbered, and records remember the last one that came by. So the query's own log tells how far its records
must have come: records that were put back from an older copy are noticed before the next batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from semistream.spark.records import Records

#: ticks in a `max_delay`, at most
_TICKS = 20


class TickSource(DataSource):
    """The source; its options are the folder of the records, the number of shards and the seconds between ticks."""

    @classmethod
    def name(cls) -> str:
        return "semistream_ticks"

    def schema(self) -> str:
        return "shard int, tick long"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return TickReader(self.options)


class TickPartition(InputPartition):
    """The rows of one tick."""

    def __init__(self, tick: int) -> None:
        super().__init__(0)
        self.tick = tick


class TickReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Its offset is the number of ticks so far."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._records = Records(Path(options["folder"]))
        self._shards = int(options["shards"])
        self._seconds = float(options["seconds"])
        self._last = 0.0
        self._finishing = False
        self._records.set_finishing(False)

    def initialOffset(self) -> dict[str, Any]:
        return {"tick": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        self._finishing = True
        self._records.set_finishing(True)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        # All batches up to this offset are done.
        self._records.require_tick(int(start["tick"]))
        now = time.monotonic()
        if not self._finishing and now - self._last < self._seconds:
            return start
        if not self._records.waiting():
            return start
        self._last = now
        return {"tick": int(start["tick"]) + 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [TickPartition(int(end["tick"]))]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, TickPartition)
        return iter([(shard, partition.tick) for shard in range(self._shards)])

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept for an offset."""

    def stop(self) -> None:
        self._records.set_finishing(False)


def ticks(spark: SparkSession, folder: Path, shards: int, max_delay: float) -> DataFrame:
    """One row per shard every now and then, while tuples wait."""
    spark.dataSource.register(TickSource)
    reader = spark.readStream.format(TickSource.name()).option("folder", str(folder)).option("shards", str(shards))
    return reader.option("seconds", str(max_delay / _TICKS)).load()
