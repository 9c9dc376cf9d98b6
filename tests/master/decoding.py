"""Rows of a `PageBlock` by plain byte copies, so that no kernel vouches for itself; and a table to store."""

from __future__ import annotations

import ctypes
import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.columns.keys import KeyCoder
from semistream.columns.physical import Kind, PhysicalColumn
from semistream.master.base import Master, PageBlock, PageReader, aligned_buffer


def _bytes(address: int, size: int) -> bytes:
    return ctypes.string_at(int(address), int(size)) if size else b""


def _bits(address: int, start: int, count: int) -> np.ndarray[Any, Any]:
    raw = np.frombuffer(_bytes(address, (start + count + 7) // 8), dtype=np.uint8)
    return np.unpackbits(raw, bitorder="little")[start : start + count]


def _packed(bits: np.ndarray[Any, Any]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(bits, bitorder="little").tobytes())


def page_column(block: PageBlock, page: int, c: int, column: PhysicalColumn) -> pa.Array:
    """One column of the block's page, physical."""
    n, base, k = int(block.rows[page]), int(block.base[page]), int(block.kind[page])
    if pa.types.is_null(column.physical):
        return pa.nulls(n)
    data, start = base + int(block.data[k, c]), int(block.bit[k, c])
    valid = None
    if block.valid[k, c] != -1:
        valid = _packed(_bits(base + int(block.valid[k, c]), start, n))
    assert (block.offs[k, c] == -1) == (column.kind is not Kind.VAR)
    if column.kind is Kind.BOOL:
        buffers = [valid, _packed(_bits(data, start, n))]
    elif column.kind is Kind.VAR:
        offsets = np.frombuffer(_bytes(base + int(block.offs[k, c]), 4 * (n + 1)), dtype=np.int32)
        low, high = (int(offsets[0]), int(offsets[-1])) if n else (0, 0)
        buffers = [
            valid,
            pa.py_buffer((offsets - low).tobytes()),
            pa.py_buffer(_bytes(data + low, high - low)),
        ]
    else:
        buffers = [valid, pa.py_buffer(_bytes(data, n * column.width))]
    array = pa.Array.from_buffers(column.physical, n, buffers)
    array.validate(full=True)
    return array


def block_table(reader: PageReader, block: PageBlock) -> pa.Table:
    """All rows of a block, logical, in block order."""
    assert block.n_rows == int(block.rows.sum())
    arrays = []
    for c, column in enumerate(reader.physical.columns):
        parts = [page_column(block, p, c, column) for p in range(len(block.base))]
        whole = pa.concat_arrays(parts) if parts else pa.array([], column.physical)
        arrays.append(column.to_logical(whole))
    return pa.table(arrays, schema=reader.physical.schema)


def block_codes(block: PageBlock) -> list[int]:
    c = block.data.shape[1] - 1
    code = PhysicalColumn("code", pa.int64(), Kind.FIXED, 8)
    return [v for p in range(len(block.base)) for v in page_column(block, p, c, code).to_pylist()]


def sorted_by_code(table: pa.Table, on: Sequence[str], mask: int | None = None) -> tuple[pa.Table, list[int]]:
    """What a store must hold: rows with a key, by code, equal codes as they came; and the codes."""
    coder = KeyCoder([table.schema.field(name).type for name in on], mask=mask)
    codes, valid = coder.codes([table[name].combine_chunks() for name in on])
    rows = np.arange(len(codes)) if valid is None else np.flatnonzero(valid)
    rows = rows[np.argsort(codes[rows], kind="stable")]
    return table.take(pa.array(rows)), codes[rows].tolist()


def read_all(
    master: Master, columns: Sequence[str], n_pages: int = 3, direct: bool = False
) -> tuple[pa.Table, list[int]]:
    """Every row of R by `read`, n_pages at a time."""
    tables, codes = [], []
    with master.open(list(columns), direct) as reader:
        buffer = aligned_buffer(reader.buffer_bytes(n_pages))
        for first in range(0, reader.n_pages, n_pages):
            block = reader.read(first, n_pages, buffer)
            tables.append(block_table(reader, block))
            codes += block_codes(block)
        schema = reader.physical.schema
    return pa.concat_tables(tables) if tables else schema.empty_table(), codes


def assert_same_table(found: pa.Table, expected: pa.Table) -> None:
    assert found.schema.names == expected.schema.names
    for name in expected.schema.names:
        assert found[name].to_pylist() == expected[name].to_pylist(), name
        assert found[name].type == expected[name].type


def every_type(n: int, seed: int = 0) -> pa.Table:
    """A column of every kind that behaves differently on a page, with and without nulls; keys repeat."""
    rng = np.random.default_rng(seed)
    ints = rng.integers(-50, 50, n)
    some = rng.random(n) < 0.2

    def column(values: list[Any], kind: pa.DataType, nulls: bool = True) -> pa.Array:
        return pa.array([None if nulls and gone else v for v, gone in zip(values, some, strict=True)], kind)

    words = [["", "a", "ünïcode ⚡", "x" * 40][int(i) % 4] + str(i) for i in ints]
    day = dt.date(2020, 1, 1)
    return pa.table(
        {
            "k": pa.array(ints, pa.int64()),
            "k32": column(ints.tolist(), pa.int32()),
            "word": column(words, pa.string()),
            "plain_word": column(words, pa.string(), nulls=False),
            "flag": column([bool(i & 1) for i in ints], pa.bool_()),
            "plain_flag": column([bool(i & 1) for i in ints], pa.bool_(), nulls=False),
            "tiny": column([int(i) for i in ints], pa.int8(), nulls=False),
            "ratio": column([float(i) / 7 for i in ints], pa.float64()),
            "money": column([Decimal(int(i)) / 4 for i in ints], pa.decimal128(12, 2)),
            "day": column([day + dt.timedelta(days=int(i)) for i in ints], pa.date32()),
            "at": column([dt.datetime(2020, 1, 1) + dt.timedelta(hours=int(i)) for i in ints], pa.timestamp("us")),
            "large": column(words, pa.large_string()),
            "coded": pa.array(words).dictionary_encode(),
            "list": column([[int(i), None] * (int(i) % 3) for i in ints], pa.list_(pa.int64())),
            "struct": column(
                [{"x": int(i), "y": str(i)} for i in ints], pa.struct({"x": pa.int64(), "y": pa.string()})
            ),
            "nothing": pa.nulls(n),
            "blob": column([bytes([int(i) & 255] * 5) for i in ints], pa.binary(5)),
        }
    )
