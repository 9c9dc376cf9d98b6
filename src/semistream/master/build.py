"""Writing a page store from anything that gives record batches.

batches -> physical columns, code column -> sort (in memory, or runs on disk) -> pages.arrow ->
index.arrow
                                                                                      checksums of what
                                                                                      was written
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.keys import KeyCoder
from semistream.columns.physical import Kind, PhysicalSchema
from semistream.errors import ConfigError, SchemaError, StoreError
from semistream.kernels.hashing import xxhash64_bytes
from semistream.kernels.pages import CHECKSUM_SEED, hash_pages, layout_pages
from semistream.master import format as store_format
from semistream.master.base import DEFAULT_PAGE_ROWS, Bools, Int64s, check_page_rows, require_columns
from semistream.master.footer import record_batch_blocks
from semistream.master.format import CODE, INDEX, KEYS, PAGES, Manifest, encode_schema
from semistream.master.frequency import Frequencies, KeyRanks, given_frequencies, weights_of
from semistream.master.pages import PageMaster, first_buffers
from semistream.master.sorting import RowSorter, int64_view
from semistream.master.sources import Source, open_source

RANK = "__rank"
_RESERVED = (CODE, RANK)
DEFAULT_MEMORY_LIMIT = 256 << 20
_LAYOUT_PAGES = 1 << 14
# The Arrow writer does not cut a slice out of a buffer of 64 bytes or less (a bitmap of 512 rows), and such a
# page would be laid out unlike the others: pages of small batches are copied first.
_SMALL = 512


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
) -> PageMaster:
    """Write `source` as a page store and open it.

    `source` is a table, reader, dataset, sequence of record batches, or the path of Parquet data; `on` names
    its key. Rows are sorted by key code, outside memory when they are more than `memory_limit` bytes. Rows
    with a null in the key can match nothing and are left out.

    order="frequency" puts the rows of the most wanted keys first. `frequency` says how wanted: the name of a
    numeric column (a key counts as its largest row), or a pair (keys, counts) of a table with the key
    columns, a key array or int64 codes, and as many numbers.

    A store that exists is refused, unless overwrite=True: then a new version is written beside the others and
    takes force at once when it is complete; `keep_versions` older ones stay. `progress` is told the number of
    rows read so far. `code_mask` narrows hashed codes, so that tests can force collisions.
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
    store_format.check_target(target, overwrite)
    found, batches = open_source(source, schema, memory_limit // 8)
    keys = (on,) if isinstance(on, str) else tuple(on)
    feed = _Feed(found, keys, code_mask, frequency if isinstance(frequency, str) else None, progress)
    given = given_frequencies(frequency, keys, feed.coder)
    with store_format.scratch_folder(target) as scratch:
        folder = scratch / "version"
        folder.mkdir()
        ranks: KeyRanks | None = None
        if order == "frequency":
            ranks = KeyRanks()
            rows = _by_rank(feed, batches, ranks, given, scratch, memory_limit)
        else:
            rows = _by_code(feed, batches, scratch, memory_limit)
        pages = _PageWriter(folder / PAGES, feed, page_rows)
        pages.write_all(rows)
        _write_index(folder, pages)
        files = [PAGES, INDEX]
        if ranks is not None:
            ranks.save(folder / KEYS)
            files.append(KEYS)
        for name in files:
            store_format.sync(folder / name)
        manifest = Manifest(
            schema=encode_schema(found),
            on=list(keys),
            coder=feed.coder.to_json(),
            rows=pages.n_rows,
            pages=len(pages.fences),
            keys=None if ranks is None else len(ranks.codes),
            null_key_rows=feed.null_key_rows,
            null_counts=feed.null_counts,
            page_rows=page_rows,
            order=order,
            physical=pages.names,
            code_column=feed.code_column,
            fixed_layout=pages.fixed_layout,
            row_bytes=feed.n_bytes / max(pages.n_rows, 1),
            files={name: _about(folder / name, hashed=name == INDEX) for name in files},
        )
        store_format.publish(target, scratch, folder, manifest, keep_versions)
    return PageMaster(target, version=manifest.version)


class _Feed:
    """Turns source batches into physical batches with a code column, and counts what it sees."""

    def __init__(
        self,
        schema: pa.Schema,
        on: tuple[str, ...],
        code_mask: int | None,
        weight: str | None,
        progress: Callable[[int], None] | None,
    ) -> None:
        require_columns(schema, schema.names, "master data")
        require_columns(schema, on if weight is None else (*on, weight), "master data")
        for name in schema.names:
            if name in _RESERVED:
                raise SchemaError(f"the column name {name!r} is reserved in a page store: rename the column")
        self.coder = KeyCoder([schema.field(name).type for name in on], mask=code_mask, names=on)
        self.columns = PhysicalSchema(schema)
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
        self.rows_read += batch.num_rows
        codes, valid = self.coder.codes([batch.column(i) for i in self._on])
        if valid is not None:
            self.null_key_rows += batch.num_rows - int(valid.sum())
            batch, codes = batch.filter(pa.array(valid)), np.ascontiguousarray(codes[valid])
        arrays = self.columns.encode(batch.columns)
        for column, array in zip(self.columns.columns, arrays, strict=True):
            self.null_counts[column.name] += array.null_count
        if self.code_column == CODE:
            arrays.insert(0, pa.array(codes))
        physical = pa.RecordBatch.from_arrays(arrays, schema=self.physical)
        self.n_bytes += physical.nbytes
        weights = None
        if self._weight is not None:
            weights = weights_of(batch.column(self._weight), batch.schema.names[self._weight])
        if self._progress is not None:
            self._progress(self.rows_read)
        return physical, codes, weights


def _by_code(
    feed: _Feed, batches: Iterator[pa.RecordBatch], scratch: Path, memory_limit: int
) -> Iterator[pa.RecordBatch]:
    sorter = RowSorter(feed.physical, feed.code_column, scratch, memory_limit)
    for batch in batches:
        sorter.add(feed.take(batch)[0])
    return sorter.sorted()


def _by_rank(
    feed: _Feed,
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


class _PageWriter:
    """Cuts sorted rows into pages of equal length and writes them as record batches of one Arrow file."""

    def __init__(self, path: Path, feed: _Feed, page_rows: int) -> None:
        self._path = path
        self._feed = feed
        self._page_rows = page_rows
        self.n_rows = 0
        self._fences: list[Int64s] = []
        self._continues: list[Bools] = []
        self._last_code: np.int64 | None = None

    def write_all(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._arrange()
        schema = pa.schema([self._feed.physical.field(name) for name in self.names])
        left: list[pa.RecordBatch] = []
        with pa.OSFile(str(self._path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
            for batch in batches:
                left = self._write(writer, left, batch.select(self.names))
            if left:
                self._put(writer, _one_batch(left))
        self.fences = np.concatenate([np.empty(0, dtype=np.int64), *self._fences])
        self.continues = np.concatenate([np.empty(0, dtype=np.bool_), *self._continues])

    def _arrange(self) -> None:
        """Columns of one place on every page first, then those with nulls, then those of varying length."""
        counts, code = self._feed.null_counts, self._feed.code_column
        fixed = [c for c in self._feed.columns.columns if c.kind is not Kind.VAR]
        # An Arrow null column has no buffers, so its nulls move nothing.
        still = [c.name for c in fixed if not counts[c.name] or pa.types.is_null(c.physical)]
        moved = [c.name for c in fixed if c.name not in still]
        loose = [c.name for c in self._feed.columns.columns if c.kind is Kind.VAR]
        self.fixed_layout = still if code in still else [code, *still]
        self.names = [*self.fixed_layout, *moved, *loose]

    def _write(
        self, writer: pa.ipc.RecordBatchFileWriter, left: list[pa.RecordBatch], batch: pa.RecordBatch
    ) -> list[pa.RecordBatch]:
        """Write all full pages; returns the rows of the unfinished one."""
        have = sum(part.num_rows for part in left)
        fill = min(self._page_rows - have, batch.num_rows) if left else 0
        if left:
            left.append(batch.slice(0, fill))
            if have + fill < self._page_rows:
                return left
            self._put(writer, _one_batch(left))
        full = (batch.num_rows - fill) // self._page_rows * self._page_rows
        if full:
            self._put(writer, batch.slice(fill, full))
        rest = batch.slice(fill + full)
        # A copy of the few rows left, so that they do not keep the whole batch alive.
        return [_copied(rest)] if rest.num_rows else []

    def _put(self, writer: pa.ipc.RecordBatchFileWriter, rows: pa.RecordBatch) -> None:
        if rows.num_rows > _SMALL:
            writer.write_table(pa.Table.from_batches([rows]), max_chunksize=self._page_rows)
        else:
            for start in range(0, rows.num_rows, self._page_rows):
                writer.write_batch(_copied(rows.slice(start, self._page_rows)))
        codes = int64_view(rows.column(self.names.index(self._feed.code_column)))
        fences = codes[:: self._page_rows].copy()
        before = np.empty_like(fences)
        before[1:] = codes[self._page_rows - 1 : -1 : self._page_rows][: len(fences) - 1]
        before[0] = fences[0] if self._last_code is None else self._last_code
        continues = before == fences
        if self._last_code is None:
            continues[0] = False
        self._last_code = codes[-1]
        self._fences.append(fences)
        self._continues.append(continues)
        self.n_rows += rows.num_rows


def _copied(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.take(pa.array(np.arange(rows.num_rows)))


def _one_batch(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    arrays = [pa.concat_arrays([part.column(i) for part in parts]) for i in range(parts[0].num_columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=parts[0].schema)


def _write_index(folder: Path, pages: _PageWriter) -> None:
    """Where each page is and what its bytes hash to, taken from the file as it was written."""
    offsets, lengths = record_batch_blocks(folder / PAGES)
    sums = np.zeros(len(offsets), dtype=np.uint64)
    if len(offsets) != len(pages.fences) or bool((offsets[1:] != (offsets + lengths)[:-1]).any()):
        raise StoreError(f"{folder / PAGES} was not written page after page: this release of pyarrow is not supported")
    with (folder / PAGES).open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    view = np.frombuffer(mapped, dtype=np.uint8)
    base = offsets + view.ctypes.data
    hash_pages(base, lengths, sums)
    _check_layout(base, pages)
    table = pa.table(
        {
            "offset": offsets,
            "length": lengths,
            "first_code": pages.fences,
            "continues": pages.continues,
            "checksum": sums,
        }
    )
    with pa.OSFile(str(folder / INDEX), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def _check_layout(base: Int64s, pages: _PageWriter) -> None:
    """The reader takes the place of `fixed_layout` columns from two pages: make sure that holds for all."""
    feed = pages._feed
    physical = [feed.physical.field(name) for name in pages.names]
    buffers = first_buffers(physical)[: len(pages.fixed_layout)].copy()
    kinds = np.zeros(len(buffers), dtype=np.int64)
    expected: Int64s | None = None
    for start in range(0, len(base) - 1, _LAYOUT_PAGES):
        part = base[start : min(start + _LAYOUT_PAGES, len(base) - 1)]
        data, valid, offs = (np.empty((len(part), len(buffers)), dtype=np.int64) for _ in range(3))
        layout_pages(part, buffers, kinds, data, valid, offs)
        expected = data[0].copy() if expected is None else expected
        if bool((data != expected).any() or (valid != -1).any()):
            pages.fixed_layout = []
            return


def _about(path: Path, hashed: bool) -> dict[str, Any]:
    about: dict[str, Any] = {"bytes": path.stat().st_size}
    if hashed:
        content = np.fromfile(path, dtype=np.uint8)
        about["xxhash64"] = f"{int(xxhash64_bytes(content.ctypes.data, len(content), CHECKSUM_SEED)):016x}"
    return about
