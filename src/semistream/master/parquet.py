"""R as Parquet files, read in place: a scan without an index.

This is what MESHJOIN, SSJ and SSBJ are for. Pages are ranges of rows, whatever the row groups: batches are
decoded a few thousand rows at a time through small read buffers, so memory does not grow with the row group. The scan
keeps going where the last read ended; only a jump (a restart, or the end of a cycle) seeks. Files are not mapped: a
read that fails is an error, a mapping that fails is a signal.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from semistream.columns.border import check_batch
from semistream.columns.keys import KeyCoder
from semistream.columns.physical import Kind, PhysicalSchema
from semistream.columns.stream_keys import StreamCoder
from semistream.errors import ConfigError, SchemaError, StoreError
from semistream.master.base import (
    Bytes,
    Int64s,
    Master,
    PageBlock,
    PageReader,
    check_page_rows,
    require_columns,
)
from semistream.sealed import digest

DEFAULT_PARQUET_PAGE_ROWS = 4096
_SAMPLE_ROWS = 4096
_WIDTH_ROWS = 256
_BUILD_BATCH_ROWS = 1 << 17
# What a decoder may hold of one column: a dictionary and a data page, about a megabyte each by default.
_DECODER_BYTES = 2 << 20


@dataclass(frozen=True)
class _State:
    """What changes when a file is written again."""

    path: str
    size: int
    changed_ns: int | None

    @classmethod
    def of(cls, fragment: Any) -> _State:
        info = fragment.filesystem.get_file_info(fragment.path)
        return cls(fragment.path, info.size or 0, info.mtime_ns)


@dataclass(frozen=True)
class _File:
    """A Parquet file: how to open it, its rows by row group, and the columns its path stands for."""

    fragment: Any
    group_ends: Int64s
    constants: dict[str, Any]
    state: _State

    @property
    def n_rows(self) -> int:
        return int(self.group_ends[-1]) if len(self.group_ends) else 0

    def require_unchanged(self) -> None:
        """Refuse a file that was written again since it was found: its rows would be mixed with others."""
        try:
            found = _State.of(self.fragment)
        except (pa.ArrowException, OSError) as error:
            raise StoreError(f"{self.state.path} cannot be read: {error}") from error
        if found != self.state:
            raise StoreError(f"{self.state.path} was changed while it was in use: open the master data again")

    def open(self) -> pq.ParquetFile:
        return pq.ParquetFile(self.fragment.open(), buffer_size=1 << 16, pre_buffer=False)


def _footer_digest(fragment: Any, size: int) -> str:
    """Of the bytes that say where everything else is: length, magic, and the metadata before them."""
    with fragment.filesystem.open_input_file(fragment.path) as file:
        end: bytes = file.read_at(min(8, size), max(size - 8, 0))
        length = min(int.from_bytes(end[:4], "little"), max(size - 8, 0))
        return digest(file.read_at(length + len(end), size - length - len(end)))


class ParquetFiles:
    """The rows of one or more Parquet files in a fixed order, from any row on.

    All files below a path must have the same columns, in any order: a value that is cast to fit, or a column that is
    made up, would be a wrong row. A dataset says itself which schema its files are to be read in.
    """

    def __init__(self, source: str | Path | ds.Dataset) -> None:
        self._source = source
        self.schema, self._files, self.decoder_bytes = _discover(source)
        self.ends = np.cumsum([file.n_rows for file in self._files], dtype=np.int64)
        self.n_rows = int(self.ends[-1]) if len(self.ends) else 0

    def rows_within(self, n_bytes: int, most: int) -> int:
        """Number of rows that take about `n_bytes` in memory, from 1 to `most`; by the footers and the first rows."""
        # Footers know long values wherever they are, but count a value that is in a dictionary next to nothing.
        row_bytes = self._stored_row_bytes
        sample = next(self.batches(self.schema.names, 0, min(_WIDTH_ROWS, most)), None)
        if sample is not None and sample.num_rows:
            row_bytes = max(row_bytes, sample.nbytes / sample.num_rows)
        return max(1, min(most, int(n_bytes / max(row_bytes, 1.0))))

    @property
    def _stored_row_bytes(self) -> float:
        groups = [
            metadata.row_group(i)
            for metadata in (file.fragment.metadata for file in self._files)
            for i in range(metadata.num_row_groups)
        ]
        return max((group.total_byte_size / group.num_rows for group in groups if group.num_rows), default=0.0)

    def batches(
        self, columns: Sequence[str], first_row: int, batch_rows: int, threads: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Batches of at most `batch_rows` rows, with exactly these columns."""
        schema = pa.schema([self.schema.field(name) for name in columns])
        at = int(np.searchsorted(self.ends, first_row, side="right"))
        skip = first_row - (int(self.ends[at - 1]) if at else 0)
        for file in self._files[at:]:
            group = int(np.searchsorted(file.group_ends, skip, side="right"))
            skip -= int(file.group_ends[group - 1]) if group else 0
            try:
                for batch in _file_batches(file, schema, group, batch_rows, threads):
                    if skip >= batch.num_rows:
                        skip -= batch.num_rows
                        continue
                    yield batch.slice(skip)
                    skip = 0
            except (pa.ArrowException, OSError) as error:
                raise StoreError(f"{file.fragment.path} cannot be read: {error}") from error

    @cached_property
    def identity(self) -> str:
        """A name for the files as they were found: paths, sizes, times of the last change, footers."""
        facts = []
        for file in self._files:
            state = file.state
            try:
                facts.append([state.path, state.size, state.changed_ns, _footer_digest(file.fragment, state.size)])
            except (pa.ArrowException, OSError) as error:
                raise StoreError(f"{state.path} cannot be read: {error}") from error
            file.require_unchanged()
        return f"parquet-{digest(json.dumps(facts).encode())}"

    @property
    def lineage(self) -> str:
        """A name for the place the files came from."""
        given = self._source
        paths = [f.state.path for f in self._files] if isinstance(given, ds.Dataset) else [os.path.abspath(given)]
        return f"parquet-{digest(json.dumps(paths).encode())}"

    def range_of(self, column: str) -> tuple[int, int] | None:
        """Least and largest value of a column of integers, if every row group's statistics say so."""
        ends: list[int] = []
        for file in self._files:
            metadata = file.fragment.metadata
            at = next((i for i in range(metadata.num_columns) if metadata.schema.column(i).path == column), None)
            for group in range(metadata.num_row_groups):
                found = metadata.row_group(group).column(at).statistics if at is not None else None
                if found is None or not found.has_min_max or not isinstance(found.min, int):
                    return None
                ends += [found.min, found.max]
        return (min(ends), max(ends)) if ends else None


def _discover(source: str | Path | ds.Dataset) -> tuple[pa.Schema, list[_File], dict[str, int]]:
    if isinstance(source, ds.Dataset):
        dataset = source
    else:
        if not Path(source).exists():
            raise StoreError(f"master data {str(source)!r} does not exist")
        try:
            dataset = ds.dataset(str(source), format="parquet", partitioning="hive")
        except (pa.ArrowException, OSError) as error:
            raise StoreError(f"{source} is neither a page store nor Parquet data: {error}") from error
    files = []
    decoder: dict[str, int] = {}
    for fragment in dataset.get_fragments():
        if not isinstance(fragment, ds.ParquetFileFragment):
            raise StoreError("only datasets of Parquet files can be scanned in place: use build_pages")
        try:
            state = _State.of(fragment)
            metadata = fragment.metadata
            groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        except (pa.ArrowException, OSError) as error:
            raise StoreError(f"{fragment.path} is no readable Parquet file: {error}") from error
        for i in range(metadata.num_columns if groups else 0):
            largest = max(groups, key=lambda group: int(group.num_rows)).column(i)
            name = str(largest.path_in_schema).split(".")[0]
            size = min(int(largest.total_uncompressed_size), _DECODER_BYTES)
            decoder[name] = max(decoder.get(name, 0), size)
        ends = np.cumsum([group.num_rows for group in groups], dtype=np.int64)
        files.append(_File(fragment, ends, ds.get_partition_keys(fragment.partition_expression), state))
    if not files and not dataset.schema.names:
        raise StoreError(f"{source} holds no Parquet file")
    schema = dataset.schema if isinstance(source, ds.Dataset) else _common_schema(dataset.schema, files)
    return schema, files, decoder


def _common_schema(schema: pa.Schema, files: list[_File]) -> pa.Schema:
    """The schema of files that agree: a column may hold nulls if it may in any file; else a `SchemaError`."""
    if not files:
        return schema
    first = files[0].fragment.path
    expected = _columns_of(files[0])
    nullable: set[str] = set()
    for file in files:
        found = _columns_of(file)
        path = file.fragment.path
        for name in [*expected, *found]:
            if name not in found:
                what = f"{path} has no column {name!r}, which {first} has"
                remedy = f"add the column {name!r} to the file"
            elif name not in expected:
                what = f"{path} has a column {name!r}, which {first} has not"
                remedy = f"remove the column {name!r} from the file, or add it to the others"
            elif found[name] != expected[name]:
                what = f"{path} has the column {name!r} as {found[name]}, but {first} as {expected[name]}"
                remedy = "write the file again with one type for both"
            else:
                continue
            raise SchemaError(f"{what}; all files of a folder must have the same columns: {remedy}, or move it away")
        nullable |= {column.name for column in file.fragment.physical_schema if column.nullable}
    return pa.schema([column.with_nullable(column.nullable or column.name in nullable) for column in schema])


def _columns_of(file: _File) -> dict[str, str | pa.DataType]:
    """Types of a file's columns by name; those that its path stands for are of the path in every file."""
    stored = {column.name: column.type for column in file.fragment.physical_schema}
    return {**stored, **dict.fromkeys(file.constants, "a part of its path")}


def _file_batches(
    file: _File, schema: pa.Schema, group: int, batch_rows: int, threads: bool
) -> Iterator[pa.RecordBatch]:
    with file.open() as opened:
        stored = set(opened.schema_arrow.names) - set(file.constants)
        own = [name for name in schema.names if name in stored]
        groups = list(range(group, opened.num_row_groups))
        file.require_unchanged()
        for batch in opened.iter_batches(batch_rows, row_groups=groups, columns=own, use_threads=threads):
            yield _conform(batch, schema, file.constants)
        file.require_unchanged()


def _conform(batch: pa.RecordBatch, schema: pa.Schema, constants: dict[str, Any]) -> pa.RecordBatch:
    """The batch in the schema of the whole: reordered, cast, path columns and absent columns filled in."""
    arrays = []
    for column in schema:
        if column.name in constants:
            value = pa.array([constants[column.name]]).cast(column.type)
            array = value.take(pa.array(np.zeros(batch.num_rows, dtype=np.int64)))
        elif column.name in batch.schema.names:
            array = batch.column(column.name)
            array = array if array.type == column.type else array.cast(column.type)
        else:
            array = pa.nulls(batch.num_rows, column.type)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def scan_parquet(path: Path, batch_bytes: int) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Schema and rows of Parquet data in batches of about `batch_bytes`, for building a page store."""
    files = ParquetFiles(path)
    rows = files.rows_within(batch_bytes, _BUILD_BATCH_ROWS)
    return files.schema, files.batches(files.schema.names, 0, rows, threads=True)


class ParquetMaster(Master):
    """Parquet data as it lies there: scan operators only."""

    def __init__(
        self,
        source: str | Path | ds.Dataset,
        on: str | Sequence[str],
        page_rows: int = DEFAULT_PARQUET_PAGE_ROWS,
        code_mask: int | None = None,
    ) -> None:
        self.on = (on,) if isinstance(on, str) else tuple(on)
        self.files = ParquetFiles(source)
        self.schema = self.files.schema
        require_columns(self.schema, self.schema.names, "master data")
        require_columns(self.schema, self.on, "master data")
        self.n_rows = self.files.n_rows
        self.page_rows = check_page_rows(page_rows)
        self.order = "none"
        self.has_index = False
        self.version = 0
        self.identity = self.files.identity
        self.lineage = self.files.lineage
        key_types = [self.schema.field(name).type for name in self.on]
        self.coder = StreamCoder(KeyCoder(key_types, mask=code_mask, names=self.on))
        self.row_bytes = sum(self.column_bytes.values()) + 8

    @cached_property
    def column_bytes(self) -> dict[str, float]:
        """Mean bytes of a value of each column in memory, from the first rows."""
        physical = PhysicalSchema(self.schema)
        sample = next(self.files.batches(self.schema.names, 0, _SAMPLE_ROWS), None)
        if sample is None or not sample.num_rows:
            return {c.name: 16.0 if c.kind is Kind.VAR else c.width + 0.125 for c in physical.columns}
        arrays = physical.encode(sample.columns)
        return {c.name: array.nbytes / sample.num_rows for c, array in zip(physical.columns, arrays, strict=True)}

    @cached_property
    def code_range(self) -> tuple[int, int] | None:
        kind = self.schema.field(self.on[0]).type
        if len(self.on) > 1 or not pa.types.is_integer(kind):
            return None
        ends = self.files.range_of(self.on[0])
        if ends is None:
            return None
        try:
            codes, _ = self.coder.rows.codes([pa.array(ends, type=kind)])
        except (pa.ArrowException, OverflowError):
            return None
        return int(codes.min()), int(codes.max())

    def open(self, columns: Sequence[str], direct: bool = False, page_rows: int | None = None) -> ParquetReader:
        if direct:
            raise ConfigError("direct=True does not apply to Parquet in place: build a page store with build_pages")
        return ParquetReader(self, columns, check_page_rows(page_rows or self.page_rows))


class ParquetReader(PageReader):
    """Decodes the next rows of a scan; the arrays are its own, so no buffer is needed."""

    def __init__(self, master: ParquetMaster, columns: Sequence[str], page_rows: int) -> None:
        super().__init__(master.columns_schema(columns), master.n_rows, page_rows)
        self._files = master.files
        self._coder = master.coder.rows
        self._columns = list(dict.fromkeys([*columns, *master.on]))
        self._wanted = [self._columns.index(name) for name in columns]
        self._keys = [self._columns.index(name) for name in master.on]
        self._encoder = PhysicalSchema(master.columns_schema(self._columns))
        self._row_bytes = sum(master.column_bytes[name] for name in self._columns) + 8
        self._scan: Iterator[pa.RecordBatch] = iter(())
        self._left: pa.RecordBatch | None = None
        self._next_row = -1

    def held_bytes(self, n_pages: int) -> int:
        """A block, as much again while its batches are joined, and what the decoders hold."""
        decoders = sum(self._files.decoder_bytes.get(name, 0) for name in self._columns)
        return int(2 * n_pages * self.page_rows * self._row_bytes) + decoders

    def buffer_bytes(self, n_pages: int) -> int:
        return 0

    def read(self, first_page: int, n_pages: int, buffer: Bytes) -> PageBlock:
        pages = self._run(first_page, n_pages)
        first = min(first_page * self.page_rows, self.n_rows)
        count = min(len(pages) * self.page_rows, self.n_rows - first)
        if first != self._next_row:
            self._scan = self._files.batches(self._columns, first, max(count, 1))
            self._left = None
        arrays = self._rows(count)
        self._next_row = first + count
        codes, valid = self._coder.codes([arrays[i] for i in self._keys])
        wanted = [arrays[i] for i in self._wanted]
        if valid is not None:
            # A null key matches nothing: the row never reaches a kernel.
            mask = pa.array(valid)
            wanted, codes = [array.filter(mask) for array in wanted], np.ascontiguousarray(codes[valid])
        view = self.physical.view(wanted)
        none = np.full((1, 1), -1, dtype=np.int64)
        var = self.physical.kinds == int(Kind.VAR)
        return PageBlock(
            n_rows=len(codes),
            page_rows=max(count, 1),
            base=np.zeros(1, dtype=np.int64),
            rows=np.array([len(codes)], dtype=np.int32),
            kind=np.zeros(1, dtype=np.int32),
            data=np.append(view.data, codes.ctypes.data)[None, :],
            valid=np.append(np.where(view.has_nulls, view.valid, -1)[None, :], none, axis=1),
            offs=np.append(np.where(var, view.offs, -1)[None, :], none, axis=1),
            bit=np.append(view.bit, 0)[None, :],
            pages=np.array([first_page], dtype=np.int64),
            keep=(wanted, codes),
        )

    def _rows(self, count: int) -> list[pa.Array]:
        """The next rows of the scan as one physical array per column."""
        parts: list[list[pa.Array]] = []
        have = 0
        while have < count:
            batch = self._left if self._left is not None else next(self._scan, None)
            self._left = None
            if batch is None:
                raise StoreError(f"the Parquet files hold fewer rows than their footers say ({self.n_rows})")
            if have + batch.num_rows > count:
                self._left = batch.slice(count - have)
                batch = batch.slice(0, count - have)
            check_batch(batch, "the Parquet data")
            parts.append(self._encoder.encode(batch.columns))
            have += batch.num_rows
        if not parts:
            return [pa.array([], column.physical) for column in self._encoder.columns]
        if len(parts) == 1:
            return parts[0]
        return [pa.concat_arrays(arrays) for arrays in zip(*parts, strict=True)]

    def close(self) -> None:
        self._scan = iter(())
        self._left = None
        self._next_row = -1
