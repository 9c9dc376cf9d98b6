"""What else joins a batch of the stream with R today, each the way its users do it.

All take one batch and give its joined rows as Arrow batches, stream columns before master columns; nobody writes files.
Those that scan R do so for each batch; those that look keys up do it through an index on disk. Only ours and the LRU
cache have a limit of memory. Each can say with what settings it runs (`described`), for whoever reads its figures.
Their libraries are no dependencies of this package: they are imported when a contestant is opened.
"""

from __future__ import annotations

import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from semistream import open_join
from semistream.lab.contest.row_cache import RowCache
from semistream.lab.workloads.relation import KEY, MASTER_SCHEMA, STREAM_SCHEMA, SyntheticMaster, SyntheticStream

COLUMNS = [name for name in MASTER_SCHEMA.names if name != KEY]
OUTPUT_SCHEMA = pa.schema([*STREAM_SCHEMA, *(MASTER_SCHEMA.field(name) for name in COLUMNS)])


#: the forms of R (`forms.py`), in words
_FORMS = {"pages": "page store", "parquet": "Parquet files", "duckdb": "DuckDB file", "sqlite": "SQLite file"}
_UNLIMITED = "as much as it wants"


class Contestant(ABC):
    """Anything that joins batches of the synthetic stream with R in one of its forms (`forms.py`)."""

    #: the library it needs, if any
    library: ClassVar[str | None] = None
    #: the form of R it reads
    form: ClassVar[str]
    #: whether every tuple of a batch has come out when `join` returns
    finishes: ClassVar[bool] = True
    #: whether it keeps something from batch to batch
    learns: ClassVar[bool] = False

    def __init__(self, path: Path, memory: int, threads: int) -> None:
        self.path = path
        self.memory = memory
        self.threads = threads

    @abstractmethod
    def join(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The joined rows that are ready, piece by piece."""

    def finish(self) -> Iterator[pa.RecordBatch]:
        """The joined rows that were held back, piece by piece: there may be many times a batch of them."""
        return iter(())

    def close(self) -> None:
        """Give back what is held."""
        return

    @property
    def peak_bytes(self) -> int | None:
        """The most it says it held, where it says so."""
        return None

    @classmethod
    def described(cls, memory: int, threads: int) -> dict[str, Any]:
        """The settings of a contestant that is given so much: what it reads, and what it takes of the machine."""
        return {"R": _FORMS[cls.form], "threads": threads if cls.library else 1, "memory": _UNLIMITED}

    @property
    def settings(self) -> dict[str, Any]:
        """What this one runs with."""
        return self.described(self.memory, self.threads)

    @classmethod
    def rehearse(cls) -> None:
        """Import and compile what a join needs, so that neither its time nor its memory counts."""
        if cls.library is not None:
            import_module(cls.library)


class Ours(Contestant):
    """An operator of this package over a page store, inside the budget; tuples may wait for later batches.

    R is read through the page cache unless `reads` says otherwise: what is compared must not depend on free memory.
    With `drain` every batch is finished at once, as in a micro-batch, whatever the class says.
    """

    form = "pages"
    finishes = False
    learns = True
    algorithm: ClassVar[str]

    def __init__(
        self,
        path: Path,
        memory: int,
        threads: int = 1,
        algorithm: str | None = None,
        *,
        reads: str = "mapped",
        drain: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(path, memory, threads)
        self.reads = reads
        self.drain = drain or self.finishes
        self.operator = open_join(
            algorithm or self.algorithm,
            master=path,
            on=KEY,
            how="inner",
            memory=memory,
            reads=reads,
            stream_schema=STREAM_SCHEMA,
            **options,
        )

    def join(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield from self.operator.push(batch)
        if self.drain:
            yield from self.operator.drain()

    def finish(self) -> Iterator[pa.RecordBatch]:
        return self.operator.drain()

    def close(self) -> None:
        self.operator.close()

    @property
    def peak_bytes(self) -> int:
        return self.operator.memory.peak_bytes

    @classmethod
    def described(cls, memory: int, threads: int) -> dict[str, Any]:
        return {"R": _FORMS[cls.form], "threads": 1, "memory": _megabytes(memory), "reads": "mapped"}

    @property
    def settings(self) -> dict[str, Any]:
        finished = "with its batch" if self.drain else "with its batch or later"
        return {**self.described(self.memory, self.threads), "reads": self.reads, "a tuple is finished": finished}

    @classmethod
    def rehearse(cls) -> None:
        rehearse(cls.algorithm)


def rehearse(algorithm: str, **options: Any) -> None:
    """Join a few tuples, so that everything an operator needs is imported and compiled."""
    master, stream = SyntheticMaster(1000).table(), SyntheticStream(1000)
    with open_join(
        algorithm, master=master, on=KEY, how="inner", memory="4MB", stream_schema=STREAM_SCHEMA, **options
    ) as join:
        for _ in (*join.push(stream.rows(0, 5000)), *join.drain()):
            pass


class Sweep(Ours):
    """SWEEPJOIN; every batch is finished at once, as in a micro-batch."""

    algorithm = "sweepjoin"
    finishes = True


class WaitingSsbj(Ours):
    """SSBJ as the papers run it: tuples wait for up to an R-cycle."""

    algorithm = "ssbj"


class WaitingCache(Ours):
    """CACHEJOIN as the papers run it."""

    algorithm = "cachejoin"


class DuckDbParquet(Contestant):
    """DuckDB joins the batch with the Parquet files."""

    library = "duckdb"
    form = "parquet"

    @classmethod
    def described(cls, memory: int, threads: int) -> dict[str, Any]:
        # DuckDB's own limit, which it is left with.
        return {**super().described(memory, threads), "memory": "80 % of the machine's"}

    def __init__(self, path: Path, memory: int, threads: int) -> None:
        super().__init__(path, memory, threads)
        import duckdb

        self.connection = duckdb.connect(config={"threads": threads})
        self.source = f"read_parquet('{path}/*.parquet')"

    def join(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self.connection.register("s", pa.Table.from_batches([batch]))
        names = ", ".join(["s.*", *(f"r.{name}" for name in COLUMNS)])
        found = self.connection.sql(f"SELECT {names} FROM s JOIN {self.source} r USING ({KEY})")
        yield from found.to_arrow_table().to_batches()

    def close(self) -> None:
        self.connection.close()


class DuckDbTable(DuckDbParquet):
    """DuckDB joins the batch with a table of its own, in a file."""

    form = "duckdb"

    def __init__(self, path: Path, memory: int, threads: int) -> None:
        Contestant.__init__(self, path, memory, threads)
        import duckdb

        self.connection = duckdb.connect(str(path), read_only=True, config={"threads": threads})
        self.source = "r"


class DuckDbMemory(DuckDbParquet):
    """DuckDB joins the batch with a table of its own, in memory: R must fit."""

    @classmethod
    def described(cls, memory: int, threads: int) -> dict[str, Any]:
        return {**super().described(memory, threads), "R": "DuckDB table in memory"}

    def __init__(self, path: Path, memory: int, threads: int) -> None:
        super().__init__(path, memory, threads)
        self.connection.execute(f"CREATE TABLE r AS SELECT * FROM {self.source}")
        self.source = "r"


class PolarsScan(Contestant):
    """Polars joins the batch with a scan of the Parquet files, in its streaming engine."""

    library = "polars"
    form = "parquet"

    @classmethod
    def described(cls, memory: int, threads: int) -> dict[str, Any]:
        return {**super().described(memory, threads), "engine": "streaming"}

    def __init__(self, path: Path, memory: int, threads: int) -> None:
        super().__init__(path, memory, threads)
        import polars

        self.frame = polars.DataFrame
        self.scan = polars.scan_parquet(path / "*.parquet")

    def join(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        stream = self.frame(batch).lazy()
        found = stream.join(self.scan, on=KEY, how="inner").collect(engine="streaming")
        yield from found.to_arrow().to_batches()


class PolarsMemory(PolarsScan):
    """Polars joins the batch with all of R in memory, which must fit."""

    @classmethod
    def described(cls, memory: int, threads: int) -> dict[str, Any]:
        return {**super().described(memory, threads), "R": "Polars frame in memory", "engine": "in-memory"}

    def __init__(self, path: Path, memory: int, threads: int) -> None:
        super().__init__(path, memory, threads)
        self.held = self.scan.collect()

    def join(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        found = self.frame(batch).join(self.held, on=KEY, how="inner")
        yield from found.to_arrow().to_batches()


class SqliteLookup(Contestant):
    """One query per stream tuple, as an application asks its database; the prepared statement is reused."""

    form = "sqlite"

    def __init__(self, path: Path, memory: int, threads: int) -> None:
        super().__init__(path, memory, threads)
        self.connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        self.query = f"SELECT {', '.join(COLUMNS)} FROM r WHERE {KEY} = ?"

    def join(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        found: list[tuple[int, ...]] = []
        counts = []
        ask = self.connection.cursor().execute
        for key in batch.column(KEY).to_pylist():
            rows = ask(self.query, (key,)).fetchall()
            found += rows
            counts.append(len(rows))
        yield _joined(batch, np.repeat(np.arange(batch.num_rows), counts), _matrix(found))

    def close(self) -> None:
        self.connection.close()


class LruLookup(Contestant):
    """Each distinct key of a batch is looked up once: in an LRU cache of rows, the others by one query to SQLite."""

    form = "sqlite"
    learns = True

    @classmethod
    def described(cls, memory: int, threads: int) -> dict[str, Any]:
        return {**super().described(memory, threads), "memory": f"{_megabytes(memory)} of rows"}

    def __init__(self, path: Path, memory: int, threads: int) -> None:
        super().__init__(path, memory, threads)
        self.connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        # The list of keys is asked for in one piece, each of them found through the table's own order.
        names = ", ".join(f"r.{name}" for name in (KEY, *COLUMNS))
        self.query = f"SELECT {names} FROM json_each(?) AS w CROSS JOIN r ON r.{KEY} = w.value"
        self.cache = RowCache(memory, len(COLUMNS))

    def join(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        keys, where = np.unique(batch.column(KEY).to_numpy(), return_inverse=True)
        known = self.cache.touch(keys)
        missing = keys[~known]
        fetched = self.connection.execute(self.query, (json.dumps(missing.tolist()),)).fetchall()
        rows = _matrix(fetched, len(COLUMNS) + 1)
        order = np.argsort(rows[:, 0], kind="stable")
        row_keys, rows = rows[order, 0], np.ascontiguousarray(rows[order, 1:])
        # Stream tuples of cached keys, then those of fetched ones.
        stream_keys = keys[where]
        cached = np.flatnonzero(known[where])
        fresh = np.flatnonzero(~known[where])
        hit_at, hit_rows = self.cache.rows(stream_keys[cached])
        first = np.searchsorted(row_keys, stream_keys[fresh], side="left")
        counts = np.searchsorted(row_keys, stream_keys[fresh], side="right") - first
        picked = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(int(counts.sum()))
        at = np.concatenate((cached[hit_at], np.repeat(fresh, counts)))
        result = _joined(batch, at, np.concatenate((hit_rows, rows[picked])))
        self.cache.put(row_keys, rows)
        yield result

    def close(self) -> None:
        self.connection.close()


CONTESTANTS: dict[str, type[Contestant]] = {
    "sweepjoin": Sweep,
    "ssbj, tuples wait": WaitingSsbj,
    "cachejoin, tuples wait": WaitingCache,
    "duckdb parquet": DuckDbParquet,
    "duckdb table": DuckDbTable,
    "polars scan": PolarsScan,
    "lru look-up": LruLookup,
    "sqlite look-up": SqliteLookup,
}


def missing_library(name: str) -> str | None:
    """The library that a contestant needs and that is not installed."""
    library = CONTESTANTS[name].library
    return library if library is not None and find_spec(library) is None else None


def _megabytes(size: int) -> str:
    return f"{size / 1e6:g} MB"


def _matrix(rows: list[tuple[int, ...]], width: int = len(COLUMNS)) -> np.ndarray:
    return np.array(rows, dtype=np.int64).reshape(-1, width)


def _joined(batch: pa.RecordBatch, at: np.ndarray, rows: np.ndarray) -> pa.RecordBatch:
    """The rows of the batch at these places beside their master rows."""
    left = batch.take(pa.array(at, pa.int64()))
    columns = [*left.columns, *(pa.array(np.ascontiguousarray(rows[:, i])) for i in range(len(COLUMNS)))]
    return pa.RecordBatch.from_arrays(columns, schema=OUTPUT_SCHEMA)
