"""Who takes part in the benchmark on Spark: each a join and a sink, the settings it runs with, and what it wrote.

    transport                     `mapInArrow` giving out rows as wide as the joined ones, without a join
    sweepjoin HOW                 `enrich`; with "direct" R is read past the page cache
    write HOW, FORMAT             `enrich`, and its rows written by the workers that join them
    native HOW                    Spark's own stream-static join, R from its Parquet files or from Spark's memory

The rows go to a sink that keeps none or, with ", Spark's parquet", to Spark's own Parquet sink.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from semistream.errors import SemiStreamError
from semistream.lab.contest.spark_runs import Ran, Start, into_noop, into_parquet, native_settings
from semistream.lab.workloads.checksum import checksum
from semistream.lab.workloads.relation import KEY, MASTER_SCHEMA
from semistream.spark import enrich

NOOP, PARQUET, DELTA = "noop", "parquet", "delta"
ALGORITHM = "sweepjoin"
_COLUMNS = [name for name in MASTER_SCHEMA.names if name != KEY]
_WIDE_DDL = "k long, seq long, qty int" + "".join(f", {name} long" for name in _COLUMNS)
_HASHED_ROWS = 1 << 18


@dataclass(frozen=True)
class Place:
    """Where the sides find R, and what ours may hold of it."""

    pages: Path
    parquet: Path
    memory: int


@dataclass(frozen=True)
class Entry:
    """One contestant; `how` is the kind of join, `sink` where its rows go."""

    kind: str
    how: str = ""
    sink: str = NOOP
    reads: str = "mapped"
    cached: bool = False

    @property
    def name(self) -> str:
        words = [ALGORITHM if self.kind == "enrich" else self.kind, self.how]
        words += ["direct"] if self.reads == "direct" else []
        words += ["cached"] if self.cached else []
        where = "" if self.sink == NOOP else f", {self.sink}" if self.kind == "write" else f", Spark's {self.sink}"
        return " ".join(word for word in words if word) + where

    @property
    def learns(self) -> bool:
        """Whether it gets better with what it has seen of the stream."""
        return self.kind in ("enrich", "write")

    def start(self, place: Place, out: Path) -> Start:
        """How its query is started; `out` is where rows are kept that are written."""
        if self.kind == "write":
            return partial(self._written, place, out)
        joined = partial(self.joined, place)
        return into_noop(joined) if self.sink == NOOP else into_parquet(joined, out)

    def joined(self, place: Place, stream: Any) -> Any:
        """The stream's rows with their columns of R."""
        if self.kind == "transport":
            return stream.mapInArrow(widen, _WIDE_DDL)
        if self.kind == "native":
            return stream.join(master(stream.sparkSession, place), KEY, self.how)
        return enrich(
            stream,
            place.pages,
            on=KEY,
            how=self.how,
            memory=place.memory,
            algorithm=ALGORITHM,
            reads=self.reads,
        )

    def _written(self, place: Place, out: Path, stream: Any, checkpoint: Path) -> Any:
        from semistream.spark import write

        return write(
            self.joined(place, stream), out, format=self.sink, checkpoint=checkpoint, trigger={"availableNow": True}
        )

    def settings(self, spark: Any, place: Place, ran: Ran) -> dict[str, Any]:
        """What it ran with. Whatever the name promises and the query did not do is an error."""
        common = native_settings(spark)
        arrow = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
        found: dict[str, Any] = {"master": common["master"]}
        if self.kind == "native":
            if ran.from_memory != self.cached:
                raise SemiStreamError(f"{self.name}: R was {'' if ran.from_memory else 'not '}read from Spark's memory")
            found = {**common, "plan": ran.joins, "R": "in Spark's memory" if self.cached else "Parquet files"}
        else:
            found["rows per Arrow batch"] = arrow
        if self.learns:
            found |= {"memory": f"{place.memory / 1e6:g} MB", "R": "page store", "reads": self.reads}
        if self.kind == "write":
            found["compression"] = "chosen per column"
        elif self.sink == PARQUET:
            found["compression"] = spark.conf.get("spark.sql.parquet.compression.codec")
        return found


def master(spark: Any, place: Place) -> Any:
    """R as Spark reads it."""
    return spark.read.parquet(str(place.parquet))


def widen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of the joined width, but no join."""
    columns: list[pa.Array] = []
    for batch in batches:
        if not columns or len(columns[0]) < batch.num_rows:
            values = np.random.default_rng(1).integers(0, 1 << 62, (len(_COLUMNS), batch.num_rows))
            columns = [pa.array(row) for row in values]
        extra = [column.slice(0, batch.num_rows) for column in columns]
        yield pa.RecordBatch.from_arrays([*batch.columns, *extra], names=[*batch.schema.names, *_COLUMNS])


@dataclass(frozen=True)
class OnDisk:
    """What a contestant has written: rows, their checksum, and the bytes of their files."""

    rows: int
    checksum: int
    n_bytes: int


def read_back(folder: Path, sink: str) -> OnDisk:
    """Read what was written as anybody would: Delta through its log, Parquet as the files that are there."""
    rows, total = 0, 0
    for batch in _table(folder, sink).to_batches(batch_size=_HASHED_ROWS):
        rows += batch.num_rows
        total += checksum(batch)
    size = sum(file.stat().st_size for file in folder.rglob("*.parquet") if not file.name.startswith("."))
    return OnDisk(rows, total % (1 << 64), size)


def _table(folder: Path, sink: str) -> ds.Dataset:
    if sink == DELTA:
        from deltalake import DeltaTable

        return DeltaTable(folder).to_pyarrow_dataset()
    return ds.dataset(folder, format="parquet")
