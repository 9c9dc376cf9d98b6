"""Writing a page store from anything that gives record batches.

batches -> physical columns, code column -> sort (in memory, or runs on disk) -> ShardWriter -> publish
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.border import check_batch, check_written, names_of
from semistream.columns.keys import KeyCoder
from semistream.columns.physical import PhysicalSchema
from semistream.errors import ConfigError, SchemaError
from semistream.master.base import DEFAULT_PAGE_ROWS, Int64s, check_page_rows, require_columns
from semistream.master.format import CODE, KEYS, Manifest, Origin
from semistream.master.frequency import Frequencies, KeyRanks, given_frequencies, weights_of
from semistream.master.pages import PageMaster
from semistream.master.publish import check_target, publish, scratch_folder
from semistream.master.shards import ShardWriter, column_order, describe, shard_files
from semistream.master.sorting import RowSorter, int64_view
from semistream.master.sources import Source, open_source

RANK = "__rank"
_RESERVED = (CODE, RANK)
DEFAULT_MEMORY_LIMIT = 256 << 20


def build_pages(
    source: Source,
    path: str | Path,
    *,
    on: str | Sequence[str],
    page_rows: int = DEFAULT_PAGE_ROWS,
    order: str | None = None,
    frequency: Frequencies | None = None,
    schema: pa.Schema | None = None,
    overwrite: bool = False,
    keep_versions: int = 1,
    memory_limit: int = DEFAULT_MEMORY_LIMIT,
    code_mask: int | None = None,
    progress: Callable[[int], None] | None = None,
    origin: Origin | None = None,
) -> PageMaster:
    """Write `source` as a page store and open it.

    `source` is Arrow data (a table, a reader, a Polars or pandas frame, a DuckDB relation), a sequence of record
    batches, a dataset, or the path of Parquet data; `on` names its key. Rows are sorted by key code, outside memory
    when they are more than `memory_limit` bytes. Rows with a null in the key can match nothing and are left out.

    order="frequency" puts the rows of the most wanted keys first. `frequency` says how wanted: the name of a
    numeric column (a key counts as its largest row), or a pair (keys, counts) of a table with the key
    columns, a key array or int64 codes, and as many numbers.

    A store that exists is refused, unless overwrite=True: then a new version is written beside the others and
    takes force at once when it is complete; `keep_versions` older ones stay, and those that are in use. `progress`
    is given the number of rows read so far. `code_mask` narrows hashed codes, so that tests can force collisions.
    `origin` is recorded: the source of the rows and how far it was read, from where `refresh_pages` can go on.
    """
    target = Path(path)
    if order is None:
        order = "frequency" if frequency is not None else "key"
    if order not in ("key", "frequency"):
        raise ConfigError(f"order={order!r} is not known; allowed are 'key' and 'frequency'")
    if (order == "frequency") != (frequency is not None):
        raise ConfigError("order='frequency' and frequency= go together: give both or neither")
    if memory_limit < 1 << 16 or keep_versions < 0:
        raise ConfigError(
            f"memory_limit={memory_limit} must be at least {1 << 16} bytes and keep_versions={keep_versions} at least 0"
        )
    check_page_rows(page_rows)
    check_target(target, overwrite)
    found, batches = open_source(source, schema, memory_limit // 8)
    keys = (on,) if isinstance(on, str) else tuple(on)
    feed = Feed(found, keys, code_mask, frequency if isinstance(frequency, str) else None, progress)
    given = given_frequencies(frequency, keys, feed.coder)
    with scratch_folder(target) as scratch:
        folder = scratch / "version"
        folder.mkdir()
        layout = Layout(found, keys, page_rows, order)
        manifest = write_version(layout, feed, batches, given, folder, scratch, memory_limit)
        if origin is not None:
            manifest.origin, manifest.positions = recorded(origin), {}
            if origin.source is not None and origin.position is not None:
                manifest.positions[origin.source] = origin.position
        publish(target, scratch, folder, manifest, keep_versions)
    return PageMaster(target, version=manifest.version)


def recorded(origin: Origin) -> dict[str, Any]:
    """What a manifest says of where its rows come from, and when they came."""
    return asdict(replace(origin, refreshed_at=datetime.now(UTC).isoformat(timespec="milliseconds")))


@dataclass(frozen=True)
class Layout:
    """What a version is to look like."""

    schema: pa.Schema
    on: tuple[str, ...]
    page_rows: int
    order: str


class RowFeed(Protocol):
    """Gives rows in the form of a store, and says what it has seen once all were asked for."""

    coder: KeyCoder
    columns: PhysicalSchema
    code_column: str
    physical: pa.Schema
    null_counts: dict[str, int]
    null_key_rows: int

    def take(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Int64s, npt.NDArray[np.float64] | None]:
        """The rows that can match, physical; their codes; their frequencies if a column tells them."""


def write_version(
    layout: Layout,
    feed: RowFeed,
    batches: Iterator[pa.RecordBatch],
    given: tuple[Int64s, npt.NDArray[np.float64]] | None,
    folder: Path,
    scratch: Path,
    memory_limit: int,
) -> Manifest:
    """Write all rows in their order as one shard into a folder; `given` are frequencies of codes."""
    ranks: KeyRanks | None = None
    if layout.order == "frequency":
        ranks = KeyRanks()
        rows = _by_rank(feed, batches, ranks, given, scratch, memory_limit)
    else:
        rows = _by_code(feed, batches, scratch, memory_limit)
    names = column_order(
        feed.columns.columns, feed.code_column, {name for name, count in feed.null_counts.items() if count}
    )
    ordered = pa.schema([feed.physical.field(name) for name in names])
    with ShardWriter(folder, shard_files(0), ordered, feed.code_column, layout.page_rows) as writer:
        for batch in rows:
            writer.write(batch)
        shard = writer.finish()
    manifest = describe(
        layout.schema,
        layout.on,
        feed.coder,
        names,
        feed.code_column,
        [] if shard is None else [shard],
        page_rows=layout.page_rows,
        null_key_rows=feed.null_key_rows,
    )
    if ranks is not None:
        checksum = ranks.save(folder / KEYS)
        manifest.order = layout.order
        manifest.keys = len(ranks.codes)
        manifest.largest_code = int(ranks.codes.max()) if len(ranks.codes) else None
        manifest.files[KEYS] = {"bytes": (folder / KEYS).stat().st_size, "blocks": checksum}
    return manifest


class Feed:
    """Turns source batches into physical batches with a code column, and counts what it sees."""

    def __init__(
        self,
        schema: pa.Schema,
        on: tuple[str, ...],
        code_mask: int | None = None,
        weight: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        require_columns(schema, names_of(schema, "the master data"), "master data")
        require_columns(schema, on if weight is None else (*on, weight), "master data")
        for name in schema.names:
            if name in _RESERVED:
                raise SchemaError(f"the column name {name!r} is reserved in a page store: rename the column")
        self.coder = KeyCoder([schema.field(name).type for name in on], mask=code_mask, names=on)
        self.columns = PhysicalSchema(schema)
        check_written(schema, "the master data")
        self._on = [schema.get_field_index(name) for name in on]
        self._weight = None if weight is None else schema.get_field_index(weight)
        self._progress = progress
        self.rows_read = 0
        self.null_key_rows = 0
        self.null_counts = dict.fromkeys(schema.names, 0)
        self.n_bytes = 0
        fields = [pa.field(column.name, column.physical) for column in self.columns.columns]
        key = self.columns.columns[self._on[0]]
        # Where the key's own eight bytes are its code, a second copy of them would only be more to read.
        own = self.coder.exact and key.width == 8 and not pa.types.is_floating(key.physical)
        self.code_column = key.name if own else CODE
        self.physical = pa.schema(fields if own else [pa.field(CODE, pa.int64()), *fields])

    def take(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Int64s, npt.NDArray[np.float64] | None]:
        """The rows that can match, physical; their codes; their frequencies if a column tells them."""
        check_batch(batch, "the master data")
        self.rows_read += batch.num_rows
        codes, valid = self.coder.codes([batch.column(i) for i in self._on])
        arrays = self.columns.encode(batch.columns)
        if valid is not None:
            self.null_key_rows += batch.num_rows - int(valid.sum())
            usable = pa.array(valid)
            arrays, codes = [array.filter(usable) for array in arrays], np.ascontiguousarray(codes[valid])
        for column, array in zip(self.columns.columns, arrays, strict=True):
            self.null_counts[column.name] += array.null_count
        weights = None
        if self._weight is not None:
            weights = weights_of(arrays[self._weight], batch.schema.names[self._weight])
        if self.code_column == CODE:
            arrays.insert(0, pa.array(codes))
        physical = pa.RecordBatch.from_arrays(arrays, schema=self.physical)
        self.n_bytes += physical.nbytes
        if self._progress is not None:
            self._progress(self.rows_read)
        return physical, codes, weights


def _by_code(
    feed: RowFeed, batches: Iterator[pa.RecordBatch], scratch: Path, memory_limit: int
) -> Iterator[pa.RecordBatch]:
    sorter = RowSorter(feed.physical, feed.code_column, scratch, memory_limit)
    for batch in batches:
        sorter.add(feed.take(batch)[0])
    return sorter.sorted()


def _by_rank(
    feed: RowFeed,
    batches: Iterator[pa.RecordBatch],
    ranks: KeyRanks,
    given: tuple[Int64s, npt.NDArray[np.float64]] | None,
    scratch: Path,
    memory_limit: int,
) -> Iterator[pa.RecordBatch]:
    """Ranks are known only after the last row, so the rows wait on disk."""
    spool = scratch / "spool.arrow"
    with pa.OSFile(str(spool), "wb") as file, pa.ipc.new_file(file, feed.physical) as writer:
        for batch in batches:
            physical, codes, weights = feed.take(batch)
            ranks.add(codes, weights)
            writer.write_batch(physical)
    ranks.finish(given)
    ranked = feed.physical.append(pa.field(RANK, pa.int64()))
    sorter = RowSorter(ranked, RANK, scratch, memory_limit)
    waiting = pa.ipc.open_file(pa.memory_map(str(spool)))
    for i in range(waiting.num_record_batches):
        batch = waiting.get_batch(i)
        rank = ranks.rank(int64_view(batch.column(feed.code_column)))
        sorter.add(pa.RecordBatch.from_arrays([*batch.columns, pa.array(rank)], schema=ranked))
    return (batch.select(feed.physical.names) for batch in sorter.sorted())
