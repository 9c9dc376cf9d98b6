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

from semistream.errors import StoreError
from semistream.master.format import current_folder, is_store, load_identity
from semistream.spark.records import Records

#: ticks in a `max_delay`, at most
_TICKS = 20
#: where tuples are parked, it is looked so often whether something has become of them
_LOOK_SECONDS = 0.5


class TickSource(DataSource):
    """The source; its options are the folder of the records, the number of shards and the seconds between ticks.

    With the options `wait` and `master` tuples are parked (`parking.py`).
    """

    @classmethod
    def name(cls) -> str:
        return "semistream_ticks"

    def schema(self) -> str:
        return "shard int, tick long"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return ParkedReader(self.options) if "wait" in self.options else TickReader(self.options)


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
        return {"tick": int(start["tick"]) + 1} if self._is_due(time.monotonic()) else start

    def _is_due(self, now: float) -> bool:
        if (not self._finishing and now - self._last < self._seconds) or not self._records.waiting():
            return False
        self._last = now
        return True

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [TickPartition(int(end["tick"]))]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, TickPartition)
        return iter([(shard, partition.tick) for shard in range(self._shards)])

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept for an offset."""

    def stop(self) -> None:
        self._records.set_finishing(False)


class ParkedReader(TickReader):
    """Ticks where tuples are parked: they have nothing to do until R changes, or the time of one is up."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._wait = float(options["wait"])
        self._master = Path(options["master"])

    def prepareForTriggerAvailableNow(self) -> None:
        # The query ends with what can be done now; nobody waits here for R.
        self._finishing = True

    def _is_due(self, now: float) -> bool:
        if not self._finishing and now - self._last < self._seconds:
            return False
        self._last = now
        parked = [head for shard in self._records.shards() if (head := shard.head()).waiting]
        if not parked:
            return False
        if min(head.since for head in parked) + self._wait <= time.time():
            return True
        current = self._current()
        return current is not None and any(head.master != current for head in parked)

    def _current(self) -> str | None:
        """The identity of the version in force; None where that cannot be seen, and a batch with rows will see it."""
        if not is_store(self._master):
            return None
        try:
            return str(load_identity(current_folder(self._master)))
        except StoreError:
            return None


def ticks(spark: SparkSession, folder: Path, shards: int, max_delay: float) -> DataFrame:
    """One row per shard every now and then, while tuples wait."""
    return _loaded(spark, folder, shards, seconds=max_delay / _TICKS)


def parked_ticks(spark: SparkSession, folder: Path, shards: int, wait: float, master: str) -> DataFrame:
    """One row per shard when parked tuples have something to do."""
    return _loaded(spark, folder, shards, seconds=min(wait / _TICKS, _LOOK_SECONDS), wait=wait, master=master)


def _loaded(spark: SparkSession, folder: Path, shards: int, **options: float | str) -> DataFrame:
    spark.dataSource.register(TickSource)
    reader = spark.readStream.format(TickSource.name()).option("folder", str(folder)).option("shards", str(shards))
    return reader.options(**{name: str(value) for name, value in options.items()}).load()
