"""What is joined in an experiment: master data to be written once, and a stream that does not end.

A source names itself by values alone, so the same experiment finds its data and its finished runs again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from semistream.errors import ConfigError
from semistream.lab.workloads import weather
from semistream.lab.workloads.relation import KEY, MASTER_ROW_BYTES, STREAM_SCHEMA, SyntheticMaster, SyntheticStream
from semistream.lab.workloads.tpch import ON, Tpch, busy_customers, tpch
from semistream.lab.workloads.weather_reports import WeatherReports
from semistream.lab.workloads.workload import Reading
from semistream.lab.workloads.zipf import key_probabilities
from semistream.master.base import DEFAULT_PAGE_ROWS
from semistream.master.build import build_pages
from semistream.predict.keys import KeyClasses, zipf

#: Hot keys are the same in every store and stream of a seed; this exponent only puts them in their order.
_RANKING = 1.0


class Source(ABC):
    """Master data R and stream S of one experiment."""

    #: tuples of R
    rows: int
    on: str | Mapping[str, str]

    @property
    @abstractmethod
    def store_name(self) -> str:
        """Folder of the page store: the same for all sources that have the same R."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """All that makes this source what it is, as JSON values."""

    @abstractmethod
    def build(self, path: Path, scratch: Path) -> None:
        """Write R as a page store; `scratch` keeps what it is made from."""

    @abstractmethod
    def stream_schema(self, scratch: Path) -> pa.Schema:
        """Columns of S."""

    @abstractmethod
    def stream(self, batch_rows: int, scratch: Path) -> Iterator[pa.RecordBatch]:
        """S in batches of one size, without end."""

    def classes(self) -> KeyClasses:
        """The keys of the stream, for the formulas."""
        raise ConfigError(f"the keys of {self.store_name} follow no law that a formula could use")


@dataclass(frozen=True)
class Synthetic(Source):
    """The papers' relations: 120 and 20 bytes, keys by Zipf's law.

    With `repeated` R's keys are drawn with repetition, as ssbj2019 does, else every key has one tuple. `order` is that
    of the page store; "frequency" puts the hottest keys first, as oxhybridjoin2012 assumes.
    """

    rows: int
    skew: float = 1.0
    seed: int = 1
    repeated: bool = False
    order: str = "key"
    on: str = KEY
    #: of the page store; None: the usual ones
    page_rows: int | None = None

    @property
    def store_name(self) -> str:
        kind = "repeated" if self.repeated else "unique"
        pages = "" if self.page_rows is None else f"-pages-of-{self.page_rows}"
        return f"{kind}-{self.order}-{self.rows}-seed{self.seed}{pages}"

    def describe(self) -> dict[str, Any]:
        known = {name: value for name, value in asdict(self).items() if name != "page_rows" or value is not None}
        return {"data": "synthetic", **known}

    @property
    def master(self) -> SyntheticMaster:
        """R."""
        return SyntheticMaster(self.rows, self.seed, repeat=self.repeated)

    def build(self, path: Path, scratch: Path) -> None:
        wanted = None
        if self.order == "frequency":
            wanted = (np.arange(self.rows, dtype=np.int64), key_probabilities(self.rows, _RANKING, self.seed))
        rows = DEFAULT_PAGE_ROWS if self.page_rows is None else self.page_rows
        build_pages(self.master.reader(), path, on=KEY, page_rows=rows, order=self.order, frequency=wanted)

    def stream_schema(self, scratch: Path) -> pa.Schema:
        return STREAM_SCHEMA

    def stream(self, batch_rows: int, scratch: Path) -> Iterator[pa.RecordBatch]:
        return Reading(SyntheticStream(self.rows, self.skew, self.seed)).batches(batch_rows)

    def classes(self) -> KeyClasses:
        return zipf(self.rows, self.skew, repeated=self.repeated)

    @property
    def master_bytes(self) -> int:
        return self.rows * MASTER_ROW_BYTES


@dataclass(frozen=True)
class TpchSource(Source):
    """Customer is R, Orders is S; orders are read again from the first when they end.

    With `skew` an order's customer is drawn by Zipf's law with that exponent (`busy_customers`), all else being as it
    is, and no customer's turn comes again only because the orders began again.
    """

    scale_factor: float
    skew: float | None = None
    seed: int = 1

    @property
    def on(self) -> Mapping[str, str]:  # type: ignore[override]
        return ON

    @property
    def rows(self) -> int:  # type: ignore[override]
        return int(150_000 * self.scale_factor)

    @property
    def store_name(self) -> str:
        return f"tpch-customer-sf{self.scale_factor:g}"

    def describe(self) -> dict[str, Any]:
        known: dict[str, Any] = {"data": "tpch", "scale_factor": self.scale_factor}
        if self.skew is not None:
            known |= {"data": "tpch, skewed orders", "skew": self.skew, "seed": self.seed}
        return known

    def _tables(self, scratch: Path) -> Tpch:
        return tpch(scratch, self.scale_factor)

    def build(self, path: Path, scratch: Path) -> None:
        build_pages(self._tables(scratch).customer, path, on=next(iter(ON.values())))

    def stream_schema(self, scratch: Path) -> pa.Schema:
        return pq.read_schema(self._tables(scratch).orders)

    def stream(self, batch_rows: int, scratch: Path) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(self._tables(scratch).orders) as orders:
            start = 0
            for batch in again_and_again(lambda: orders.iter_batches(batch_size=batch_rows), batch_rows):
                yield batch if self.skew is None else self._skewed(batch, start)
                start += batch.num_rows

    def _skewed(self, batch: pa.RecordBatch, start: int) -> pa.RecordBatch:
        """These orders, the first of them being the stream's tuple number `start`, with other customers."""
        assert self.skew is not None
        at = batch.schema.get_field_index(next(iter(ON)))
        customers = busy_customers(self.rows, self.skew, self.seed, start, batch.num_rows)
        return batch.set_column(at, batch.schema.field(at), pa.array(customers, batch.schema.field(at).type))


@dataclass(frozen=True)
class WeatherSource(Source):
    """Cloud reports joined on longitude, many to many: April and August are R, December is S.

    Read from the archive's files in `folder`, or made up in their format with about `reports` of them in R. December is
    read again from its first day when it ends. Tuples of both have the papers' 128 bytes.
    """

    reports: int
    seed: int = 1
    folder: Path | None = None
    on: str = weather.KEY

    @property
    def rows(self) -> int:  # type: ignore[override]
        return self.reports

    @property
    def made_up(self) -> bool:
        """Whether no archive was given."""
        return self.folder is None

    @property
    def store_name(self) -> str:
        named = f"{self.reports}-seed{self.seed}" if self.folder is None else self.folder.name
        return f"weather-{weather.TUPLE_BYTES}-bytes-{named}"

    def describe(self) -> dict[str, Any]:
        known: dict[str, Any] = {"data": "weather", "tuple_bytes": weather.TUPLE_BYTES}
        if self.folder is not None:
            return {**known, "folder": self.folder.name}
        return {**known, "data": "weather reports, made up", "reports": self.reports, "seed": self.seed}

    def _months(self, months: tuple[int, ...]) -> Iterator[pa.RecordBatch]:
        """All reports of these months, of whatever year."""
        if self.folder is None:
            found: Iterator[pa.RecordBatch] = self._invented(months).batches()
        else:
            found = iter(weather.read_months(self.folder, months))
        return map(weather.widened, found)

    def _invented(self, months: tuple[int, ...]) -> WeatherReports:
        # April and August have 488 times of report together; ships give a ninth of the reports, as by default.
        each = max(self.reports // 488, 2)
        years = -(-each // 4_750)
        each = -(-each // years)
        ships = min(each // 9, 1_500)
        spread = tuple((1982 + year, month) for year in range(years) for month in months)
        return WeatherReports(spread, self.seed, land_reports=min(each - ships, 7_037), ship_reports=ships)

    def build(self, path: Path, scratch: Path) -> None:
        reports = self._months(weather.MASTER_MONTHS)
        build_pages(pa.RecordBatchReader.from_batches(weather.WIDE_SCHEMA, reports), path, on=weather.KEY)

    def stream_schema(self, scratch: Path) -> pa.Schema:
        return weather.WIDE_SCHEMA

    def stream(self, batch_rows: int, scratch: Path) -> Iterator[pa.RecordBatch]:
        return again_and_again(lambda: self._months(weather.STREAM_MONTHS), batch_rows)


def again_and_again(batches: Callable[[], Iterator[pa.RecordBatch]], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Whatever `batches()` gives, cut to equal batches, from the beginning again when it ends."""
    while True:
        seen = 0
        for batch in batches():
            for start in range(0, batch.num_rows, batch_rows):
                part = batch.slice(start, batch_rows)
                seen += part.num_rows
                if part.num_rows == batch_rows or seen < batch_rows:
                    yield part
        if seen == 0:
            raise ConfigError("the stream is empty; an experiment needs at least one tuple of it")
