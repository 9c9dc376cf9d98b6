"""Writing the files of a store: sorted rows in, pages and their index out.

One writer serves `build_pages` and the tasks of a Spark job. It sees its own shard only; what must be the same in all
of them (types, order of columns, rows per page) is decided before, and what they have in common after.

    sorted batches -> pages of equal length -> pages file -> index file: places, first codes,
                                                             checksums of what was written
"""

from __future__ import annotations

import mmap
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from semistream.columns.keys import KeyCoder
from semistream.columns.physical import Kind, PhysicalColumn
from semistream.errors import StoreError
from semistream.kernels.hashing import xxhash64_bytes
from semistream.kernels.pages import CHECKSUM_SEED, hash_pages, layout_pages
from semistream.master.base import Bools, Int64s
from semistream.master.footer import record_batch_blocks
from semistream.master.format import Manifest, encode_schema
from semistream.master.page_index import first_buffers
from semistream.master.sorting import int64_view
from semistream.sealed import sync

_LAYOUT_PAGES = 1 << 14
# The Arrow writer does not cut a slice out of a buffer of 64 bytes or less (a bitmap of 512 rows), and such a
# page would be laid out unlike the others: pages of small batches are copied first.
_SMALL = 512


@dataclass(frozen=True)
class Shard:
    """A finished shard: what the manifest must know of it. Plain values, so that a task can report it as JSON."""

    pages_file: str
    index_file: str
    rows: int
    pages: int
    first_code: int
    last_code: int
    null_counts: dict[str, int]
    n_bytes: int
    pages_bytes: int
    index_bytes: int
    index_sum: str
    #: places of the first columns, which are the same on all full pages; None without a full page
    fixed_places: list[int] | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def column_order(columns: Sequence[PhysicalColumn], code_column: str, with_nulls: Collection[str]) -> list[str]:
    """Columns of one place on every page first, then those with nulls, then those of varying length."""
    fixed = [c for c in columns if c.kind is not Kind.VAR]
    # An Arrow null column has no buffers, so its nulls move nothing.
    still = [c.name for c in fixed if c.name not in with_nulls or pa.types.is_null(c.physical)]
    moved = [c.name for c in fixed if c.name not in still]
    loose = [c.name for c in columns if c.kind is Kind.VAR]
    front = [] if code_column in still else [code_column]
    return [*front, *still, *(name for name in moved if name != code_column), *loose]


def _common_layout(names: Sequence[str], shards: Sequence[Shard]) -> list[str]:
    """The columns whose place is the same on every full page of all shards."""
    places = [shard.fixed_places for shard in shards if shard.fixed_places is not None]
    if not places:
        return list(names)
    shortest = min(places, key=len)
    same = all(one[: len(shortest)] == shortest for one in places)
    return list(names[: len(shortest)]) if same else []


def describe(
    schema: pa.Schema,
    on: Sequence[str],
    coder: KeyCoder,
    names: Sequence[str],
    code_column: str,
    shards: Sequence[Shard],
    *,
    page_rows: int,
    null_key_rows: int,
) -> Manifest:
    """The manifest of a version in key order that consists of these shards."""
    rows = sum(shard.rows for shard in shards)
    counts = {name: sum(shard.null_counts.get(name, 0) for shard in shards) for name in schema.names}
    files: dict[str, dict[str, Any]] = {}
    for shard in shards:
        files[shard.pages_file] = {"bytes": shard.pages_bytes}
        files[shard.index_file] = {"bytes": shard.index_bytes, "xxhash64": shard.index_sum}
    return Manifest(
        schema=encode_schema(schema),
        on=list(on),
        coder=coder.to_json(),
        rows=rows,
        pages=sum(shard.pages for shard in shards),
        keys=None,
        null_key_rows=null_key_rows,
        null_counts=counts,
        page_rows=page_rows,
        order="key",
        physical=list(names),
        code_column=code_column,
        fixed_layout=_common_layout(names, shards),
        row_bytes=sum(shard.n_bytes for shard in shards) / max(rows, 1),
        shards=[
            {"pages": s.pages, "rows": s.rows, "pages_file": s.pages_file, "index_file": s.index_file} for s in shards
        ],
        files=files,
        largest_code=max((shard.last_code for shard in shards), default=None),
    )


def shard_files(number: int) -> tuple[str, str]:
    """Names of the two files of a shard."""
    return f"pages-{number:05d}.arrow", f"index-{number:05d}.arrow"


class ShardWriter:
    """Cuts sorted rows into pages of equal length and writes them as record batches of one Arrow file.

    `schema` has the physical columns in the order of the file. Holds a page of rows and 17 bytes for every page
    written. Without `finish`, closing it removes what was written.
    """

    def __init__(
        self, folder: Path, files: tuple[str, str], schema: pa.Schema, code_column: str, page_rows: int
    ) -> None:
        self._folder = folder
        self._files = files
        self._schema = schema
        self._code = schema.get_field_index(code_column)
        self._page_rows = page_rows
        self._left: list[pa.RecordBatch] = []
        self._fences: list[Int64s] = []
        self._continues: list[Bools] = []
        self._first_code: int | None = None
        self._last_code = 0
        self._nulls = np.zeros(len(schema), dtype=np.int64)
        self._n_bytes = 0
        self.n_rows = 0
        self._done = False
        self._file = pa.OSFile(str(folder / files[0]), "wb")
        self._writer = pa.ipc.new_file(self._file, schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._done:
            with suppress(OSError, pa.ArrowException):
                self._writer.close()
            self._file.close()
            for name in self._files:
                (self._folder / name).unlink(missing_ok=True)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write all full pages; the rows of an unfinished one wait."""
        batch = batch.select(self._schema.names)
        if not batch.num_rows:
            return
        self._n_bytes += batch.nbytes
        self._nulls += [column.null_count for column in batch.columns]
        fill = 0
        if self._left:
            have = sum(part.num_rows for part in self._left)
            fill = min(self._page_rows - have, batch.num_rows)
            self._left.append(batch.slice(0, fill))
            if have + fill < self._page_rows:
                return
            self._put(_one_batch(self._left))
        full = (batch.num_rows - fill) // self._page_rows * self._page_rows
        if full:
            self._put(batch.slice(fill, full))
        rest = batch.slice(fill + full)
        # A copy of the few rows left, so that they do not keep the whole batch alive.
        self._left = [_copied(rest)] if rest.num_rows else []

    def finish(self) -> Shard | None:
        """Complete both files and sync them; None when there was no row, and then there is no file either."""
        if self._left:
            self._put(_one_batch(self._left))
        self._left = []
        if not self.n_rows:
            return None
        self._writer.close()
        self._file.close()
        places = self._write_index()
        for name in self._files:
            sync(self._folder / name)
        pages, index = (self._folder / name for name in self._files)
        content = np.fromfile(index, dtype=np.uint8)
        self._done = True
        assert self._first_code is not None
        return Shard(
            pages_file=pages.name,
            index_file=index.name,
            rows=self.n_rows,
            pages=-(-self.n_rows // self._page_rows),
            first_code=self._first_code,
            last_code=self._last_code,
            null_counts=dict(zip(self._schema.names, self._nulls.tolist(), strict=True)),
            n_bytes=self._n_bytes,
            pages_bytes=pages.stat().st_size,
            index_bytes=len(content),
            index_sum=f"{int(xxhash64_bytes(content.ctypes.data, len(content), CHECKSUM_SEED)):016x}",
            fixed_places=places,
        )

    def _put(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows > _SMALL:
            self._writer.write_table(pa.Table.from_batches([rows]), max_chunksize=self._page_rows)
        else:
            for start in range(0, rows.num_rows, self._page_rows):
                self._writer.write_batch(_copied(rows.slice(start, self._page_rows)))
        codes = int64_view(rows.column(self._code))
        fences = codes[:: self._page_rows].copy()
        before = np.empty_like(fences)
        before[1:] = codes[self._page_rows - 1 : -1 : self._page_rows][: len(fences) - 1]
        before[0] = self._last_code
        continues = before == fences
        if self._first_code is None:
            self._first_code = int(codes[0])
            continues[0] = False
        self._last_code = int(codes[-1])
        self._fences.append(fences)
        self._continues.append(continues)
        self.n_rows += rows.num_rows

    def _write_index(self) -> list[int] | None:
        """Where each page is and what its bytes hash to, taken from the file as it was written."""
        path = self._folder / self._files[0]
        offsets, lengths = record_batch_blocks(path)
        fences = np.concatenate(self._fences)
        if len(offsets) != len(fences) or bool((offsets[1:] != (offsets + lengths)[:-1]).any()):
            raise StoreError(f"{path} was not written page after page: this release of pyarrow is not supported")
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        base = offsets + np.frombuffer(mapped, dtype=np.uint8).ctypes.data
        sums = np.zeros(len(offsets), dtype=np.uint64)
        hash_pages(base, lengths, sums)
        table = pa.table(
            {
                "offset": offsets,
                "length": lengths,
                "first_code": fences,
                "continues": np.concatenate(self._continues),
                "checksum": sums,
            }
        )
        with pa.OSFile(str(self._folder / self._files[1]), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        return self._fixed_places(base[:-1])

    def _fixed_places(self, base: Int64s) -> list[int] | None:
        """The reader takes the places of columns from one full page: find how many of the first allow that."""
        if not len(base):
            return None
        columns = list(self._schema)
        var = [pa.types.is_string(c.type) or pa.types.is_binary(c.type) for c in columns]
        count = var.index(True) if True in var else len(columns)
        buffers = first_buffers(columns)[:count].copy()
        kinds = np.zeros(count, dtype=np.int64)
        still = np.ones(count, dtype=np.bool_)
        expected: Int64s | None = None
        for start in range(0, len(base), _LAYOUT_PAGES):
            part = base[start : start + _LAYOUT_PAGES]
            data, valid, offs = (np.empty((len(part), count), dtype=np.int64) for _ in range(3))
            layout_pages(part, buffers, kinds, data, valid, offs)
            expected = data[0].copy() if expected is None else expected
            still &= (data == expected).all(axis=0) & (valid == -1).all(axis=0)
        assert expected is not None
        return [int(place) for place in expected[: count if still.all() else int(np.argmin(still))]]


def _copied(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.take(pa.array(np.arange(rows.num_rows)))


def _one_batch(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    arrays = [pa.concat_arrays([part.column(i) for part in parts]) for i in range(parts[0].num_columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=parts[0].schema)
