"""A retailer's warehouse, loaded by a streaming query: what `semistream demo` shows, without its display.

    generated products, customers, stores -> dim_product, dim_customer, dim_store (Parquet)
                                                  |  build_master
                                                  v
    generated sales -> files, one for each half second -> file source -> enrich_star -> write -> fact_sales (Delta)

Enriching replaces the source's ids by the warehouse's own keys, as such loads do, and brings along the columns that a
fact needs. A sale whose product or customer the master data does not know has no key; the source's ids stay, so that
master data which comes late can still be assigned. The same stream also goes through Spark's own join of it with the
dimension tables, into Spark's own Parquet sink.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from semistream.errors import StoreError
from semistream.lab.workloads.on_spark import generate
from semistream.lab.workloads.retail import Retail
from semistream.lab.workloads.workload import Workload
from semistream.spark import metrics
from semistream.spark.enrichment import enrich_star, tasks_per_executor
from semistream.spark.failures import brief
from semistream.spark.lake import write
from semistream.spark.layout import build_master

#: A file of sales holds what was sold in this time.
FILE_SECONDS = 0.5
#: The enrichments, by the names that the metrics have for them.
ENRICHMENTS = {"products": "products-1", "customers": "customers-2"}

_PRODUCT = ("product_key", "category", "cost")
_CUSTOMER = ("customer_key", "segment")
#: What a sale is worth is worked out before the join: the rows then go from the join into their files as they are.
_SALE = ("*", "qty * price AS revenue", "to_date(sold_at) AS sale_date")
_FACT = (
    "order_id",
    "sold_at",
    "store_id",
    "product_key",
    "customer_key",
    "product_id",
    "customer_id",
    "qty",
    "price",
    "revenue",
    "cost",
    "category",
    "segment",
    "sale_date",
)
_PARTITION = "sale_date"
FACT = "fact_sales"


def delta_is_there() -> bool:
    """Whether fact_sales can be a Delta table: the extra `delta` is installed."""
    return find_spec("deltalake") is not None


@dataclass(frozen=True)
class SalesFile:
    """A file of the stream that has not arrived yet; `at` is the second at which it is complete."""

    path: Path
    rows: int
    at: float


@dataclass(frozen=True)
class RetailWarehouse:
    """The folders of one load, and the Spark jobs between them in the order of their use."""

    spark: SparkSession
    shop: Retail
    folder: Path
    #: of fact_sales
    format: str = "delta"

    @property
    def path(self) -> Path:
        """Where the tables are."""
        return self.folder / "warehouse"

    @property
    def fact(self) -> Path:
        """The table that is loaded."""
        return self.path / FACT

    @property
    def arrived(self) -> Path:
        """Where the query looks for sales."""
        return self.folder / "sales"

    @property
    def spark_folder(self) -> Path:
        """What Spark's own join reads and writes; it goes when the demonstration ends."""
        return self.folder / "spark-own-join"

    @property
    def _to_come(self) -> Path:
        return self.folder / "sales-to-come"

    def _table(self, name: str) -> str:
        return str(self.path / name)

    def _master(self, name: str) -> Path:
        return self.folder / "master" / name

    @cached_property
    def tasks(self) -> int:
        """How many worker processes divide the budget."""
        return tasks_per_executor(self.spark)

    def make_dimensions(self) -> None:
        """Write the dimension tables."""
        self._make_dimension(self.shop.products, "product")
        self._make_dimension(self.shop.customers, "customer")
        self._make_dimension(self.shop.stores, "store")

    def _make_dimension(self, workload: Workload, name: str) -> None:
        rows = generate(self.spark, workload, partitions=self.tasks)
        # Counted up while the table is written: an id of the warehouse that says nothing to anybody else.
        known = rows.select(F.monotonically_increasing_id().alias(f"{name}_key"), "*")
        with explained(f"making dim_{name}"):
            known.write.parquet(self._table(f"dim_{name}"))

    def lay_out(self) -> int:
        """Build the page stores of products and customers; the bytes they take."""
        for name in ("product", "customer"):
            build_master(self.spark.read.parquet(self._table(f"dim_{name}")), self._master(f"{name}s"), f"{name}_id")
        return sum(file.stat().st_size for file in (self.folder / "master").rglob("*") if file.is_file())

    def make_sales(self, rows: int) -> list[SalesFile]:
        """Write sales as files that are still to arrive; they are given in the order of their times."""
        sales = generate(self.spark, self.shop.sales, rows, self.tasks)
        part = (F.unix_micros("sold_at") / int(FILE_SECONDS * 1_000_000)).cast("long")
        with explained("making the sales"):
            sales.withColumn("part", part).write.partitionBy("part").parquet(str(self._to_come))
        found = sorted((int(path.parent.name[5:]), path) for path in self._to_come.glob("part=*/*.parquet"))
        first = found[0][0]
        return [
            SalesFile(path, pq.read_metadata(path).num_rows, (part + 1 - first) * FILE_SECONDS) for part, path in found
        ]

    def clean_up(self) -> None:
        """Remove what nobody needs when all is loaded: the sales to come, and what Spark's own join has made."""
        for folder in (self._to_come, self.spark_folder):
            shutil.rmtree(folder, ignore_errors=True)

    def start(self, memory: int) -> Load:
        """Start the query that loads fact_sales: joined within `memory` bytes, written by the workers that join."""
        self.arrived.mkdir()
        with explained("starting the load"):
            enriched = enrich_star(
                self._stream(self.arrived),
                [
                    (self._master("products"), "product_id", _PRODUCT),
                    (self._master("customers"), "customer_id", _CUSTOMER),
                ],
                memory=memory,
            )
            query = write(
                enriched.select(*_FACT),
                self.fact,
                self.format,
                checkpoint=self.folder / "checkpoint",
                partition_by=_PARTITION,
            )
        folders = os.environ.get("SPARK_LOCAL_DIRS") or self.spark.conf.get("spark.local.dir", None)
        how = "joined and written in one pass by Python workers" if query.fused else query.how
        return Load(query, self.arrived, how, Path((folders or tempfile.gettempdir()).split(",")[0]))

    def start_spark(self) -> Load:
        """Start Spark's own join of the same stream with the dimension tables, into Spark's own Parquet sink."""
        source = self.spark_folder / "sales"
        source.mkdir(parents=True)
        with explained("starting Spark's own join"):
            fact = self._joined(self._stream(source)).writeStream.partitionBy(_PARTITION)
            fact = fact.option("checkpointLocation", str(self.spark_folder / "checkpoint"))
            query = fact.start(str(self.spark_folder / FACT), format="parquet")
        return Load(query, source, "stream-static left joins, then Spark's Parquet sink")

    def _stream(self, folder: Path) -> DataFrame:
        return self.spark.readStream.schema(self._sales.schema).parquet(str(folder)).selectExpr(*_SALE)

    def _joined(self, sales: DataFrame) -> DataFrame:
        """Spark's own join of sales with the dimension tables."""
        products = self.spark.read.parquet(self._table("dim_product")).select("product_id", *_PRODUCT)
        customers = self.spark.read.parquet(self._table("dim_customer")).select("customer_id", *_CUSTOMER)
        return sales.join(products, "product_id", "left").join(customers, "customer_id", "left").select(*_FACT)

    @cached_property
    def _sales(self) -> DataFrame:
        return generate(self.spark, self.shop.sales, 0)

    def loaded(self) -> DataFrame:
        """The rows of fact_sales. Spark alone cannot read a Delta table: delta-rs does, and hands them over."""
        if self.format == "delta":
            from deltalake import DeltaTable

            return self.spark.createDataFrame(DeltaTable(self.fact).to_pyarrow_table())
        return self.spark.read.parquet(str(self.fact))

    def differences(self) -> int:
        """How many rows fact_sales and Spark's own batch join of the same files do not share, as multisets.

        A row counts +1 on one side and -1 on the other. Rows equal in all columns, nulls included, are summed up:
        what does not come out as 0 is on one side only, or more often there.
        """
        sales = self.spark.read.schema(self._sales.schema).parquet(str(self.arrived)).selectExpr(*_SALE)
        expected = self._joined(sales)
        columns = expected.columns
        loaded = self.loaded().select(*(F.col(field.name).cast(field.dataType) for field in expected.schema.fields))
        both = expected.withColumn("n", F.lit(1)).union(loaded.withColumn("n", F.lit(-1)))
        # Brought together first, the two rows of a sale are one group at once: half the work of grouping before.
        surplus = both.repartition("order_id").groupBy(*columns).agg(F.abs(F.sum("n")).alias("n"))
        with explained("comparing with the batch join"):
            found = surplus.agg(F.sum("n")).first()
        return int(found[0] or 0) if found else 0


@dataclass(frozen=True)
class Batch:
    """A finished micro-batch; `values` has the account of each enrichment (see `metrics`)."""

    rows: int
    seconds: float
    values: dict[str, dict[str, float]]


class Load:
    """A running query, as a watcher sees it, and the folder it takes its sales from; `how` says what it does.

    `local` is where the worker processes of an enrichment share their caches; Spark's own join has none.
    """

    def __init__(self, query: StreamingQuery, source: Path, how: str, local: Path | None = None) -> None:
        self._query = query
        self._source = source
        self._local = local
        self._seen = -1
        self.how = how

    def arrive(self, file: SalesFile) -> None:
        """Let the query see a file: whole, and later than those before it."""
        os.utime(file.path)
        os.link(file.path, self._source / f"{file.path.parent.name.removeprefix('part=')}-{file.path.name}")

    @property
    def active(self) -> bool:
        return self._query.isActive

    def batches(self) -> Iterator[Batch]:
        """The micro-batches that were finished since the last time."""
        for progress in self._query.recentProgress:
            number = int(progress["batchId"])
            if number > self._seen and progress["numInputRows"]:
                self._seen = number
                values_of = {name: metrics.of(str(self._query.id), number, key) for name, key in ENRICHMENTS.items()}
                known = {name: values for name, values in values_of.items() if values is not None}
                yield Batch(int(progress["numInputRows"]), progress["durationMs"]["triggerExecution"] / 1000, known)

    def shared_bytes(self) -> int:
        """What the caches shared by the worker processes take, one that is being built beside the old one included."""
        if self._local is None:
            return 0
        return sum(_allocated(file) for file in self._local.glob(f"*/semistream/{self._query.id}/*/*"))

    @property
    def has_workers(self) -> bool:
        """Whether Python workers join, whose memory then belongs to the query."""
        return self._local is not None

    def finish(self) -> None:
        """Wait until all sales that have arrived are loaded; if the query has failed, say why."""
        with explained(f"loading {FACT}"):
            self._query.processAllAvailable()

    def stop(self) -> None:
        # A signal that reached the whole process group has ended the JVM already.
        with suppress(Py4JError, OSError):
            self._query.stop()


def _allocated(file: Path) -> int:
    """Bytes that a file really has: a cache is begun as a large hole. 0 if it is gone meanwhile."""
    try:
        return file.stat().st_blocks * 512
    except FileNotFoundError:
        return 0


@contextmanager
def explained(doing: str) -> Iterator[None]:
    """Spark's errors, pages of plans and stack traces, as one of ours that says what is wrong."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise StoreError(f"{doing} failed: {brief(error)}") from error
