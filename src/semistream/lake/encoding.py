"""How each column of a file is encoded, decided on a sample of its rows: dictionary or not, compressed or not.

A dictionary of random numbers is as large as the numbers and costs a hash of each; compressing them costs time and
saves nothing. Texts and codes that repeat shrink to a fraction by either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from semistream.lake.target import CODEC

#: rows that are looked at, in runs of neighbours from all over: the first ones may be of one kind, and values that
#: compress well often lie side by side
SAMPLE_ROWS = 4096
_RUNS = 16
_GLANCE_ROWS = 512
#: what must remain at most for a dictionary, or compression, to be worth its time
_DICTIONARY_WORTH = 0.7
_COMPRESSION_WORTH = 0.8
#: While the writer still hopes for a dictionary it keeps a hash table of the column's values, which takes up to 24 ×
#: the bytes of the dictionary. In a row group of the usual size a larger dictionary than this saves little.
DICTIONARY_BYTES = 128 << 10
#: of the codecs that have one; a higher level takes several times as long for a few percent
_LEVELS = {"zstd": 1}


@dataclass(frozen=True)
class Encoding:
    """The choice for each column; nested columns are always compressed and may have a dictionary."""

    dictionary: tuple[str, ...]
    compressed: tuple[str, ...]
    codec: str = CODEC

    def writer_options(self, schema: pa.Schema) -> dict[str, Any]:
        """Arguments for `pyarrow.parquet.ParquetWriter`."""
        paths = _leaf_paths(schema)
        used = {name: self.codec if name in self.compressed else "NONE" for name in paths}
        codec = {path: used[name] for name, found in paths.items() for path in found}
        levels = {path: _LEVELS[name] for path, name in codec.items() if name in _LEVELS}
        return {
            "use_dictionary": [path for name in self.dictionary for path in paths[name]],
            "compression": codec,
            "compression_level": levels or None,
            "dictionary_pagesize_limit": DICTIONARY_BYTES,
        }


def choose_encoding(rows: pa.Table, group_rows: int, codec: str = CODEC) -> Encoding:
    """The encoding for columns of which these are some rows, in row groups of so many."""
    sample = _sampled(rows)
    dictionary, compressed = [], []
    for field, column in zip(sample.schema, sample.columns, strict=True):
        if _is_wrapped(field.type):
            dictionary.append(field.name)
            compressed.append(field.name)
        elif not pa.types.is_boolean(field.type) and not pa.types.is_null(field.type):
            values = column.combine_chunks()
            if _repeats(values, group_rows):
                # Codes of few bits in runs: what compression still saves is little, and so is what it costs.
                dictionary.append(field.name)
                compressed.append(field.name)
            elif _shrinks(values, codec):
                compressed.append(field.name)
    return Encoding(tuple(dictionary), tuple(compressed), codec)


def _sampled(rows: pa.Table) -> pa.Table:
    if rows.num_rows <= SAMPLE_ROWS:
        return rows
    step, length = rows.num_rows // _RUNS, SAMPLE_ROWS // _RUNS
    return pa.concat_tables([rows.slice(run * step, length) for run in range(_RUNS)])


def _is_wrapped(kind: pa.DataType) -> bool:
    """Types whose values are not simply one after the other."""
    kinds = (
        pa.types.is_nested,
        pa.types.is_dictionary,
        pa.types.is_run_end_encoded,
        pa.types.is_string_view,
        pa.types.is_binary_view,
    )
    return isinstance(kind, pa.BaseExtensionType) or any(is_kind(kind) for is_kind in kinds)


def _repeats(values: pa.Array, group_rows: int) -> bool:
    """Whether a dictionary and codes take clearly less than the values, in a row group of so many rows."""
    n = len(values)
    if n == 0:
        return False
    if pa.types.is_decimal32(values.type) or pa.types.is_decimal64(values.type):
        values = values.view(pa.binary(values.type.byte_width))
    if n > _GLANCE_ROWS and len(values.slice(0, _GLANCE_ROWS).unique()) == _GLANCE_ROWS:
        # There are about the square of that, too many for a dictionary; most columns of numbers end here.
        return False
    found, fewer = len(values.unique()), len(values.slice(0, n // 4).unique())
    width = max(values.nbytes / n, 1e-9)
    distinct = distinct_in(max(group_rows, n), found, n, fewer)
    if distinct * width > DICTIONARY_BYTES:
        return False
    bits = max(math.log2(max(distinct, 1)), 0)
    return bool(distinct * width / max(group_rows, n) + bits / 8 < _DICTIONARY_WORTH * width)


def distinct_in(rows: int, found: int, sampled: int, fewer: int) -> float:
    """How many values so many rows show, of which a sample showed `found`, and a quarter of it `fewer`.

    Values that are equally frequent run out. Where few are frequent and many rare, as in Zipf's law, new ones keep
    coming, at a rate that the growth from the quarter to the whole tells. The larger number counts: a dictionary that
    is given up half-way has cost its time. Values that the quarter has shown nearly all of have run out.
    """
    alike = expected_distinct(total_distinct(found, sampled), rows)
    if sampled < 4 or not fewer or found < 1.05 * fewer:
        return alike
    growth = math.log(found / fewer) / math.log(4)
    return min(float(rows), max(alike, found * math.exp(growth * math.log(rows / sampled))))


def total_distinct(found: int, rows: int) -> float:
    """How many equally frequent values there are where so many rows showed `found` of them.

    >>> round(total_distinct(100, 4096)), total_distinct(4096, 4096)
    (100, inf)
    """
    if found >= rows:
        return math.inf
    low, high = float(max(found, 1)), 1e12
    for _ in range(60):
        middle = math.sqrt(low * high)
        if expected_distinct(middle, rows) < found:
            low = middle
        else:
            high = middle
    return low


def expected_distinct(total: float, rows: int) -> float:
    """How many of `total` values so many rows show."""
    return float(rows) if math.isinf(total) else -total * math.expm1(-rows / total)


def _shrinks(values: pa.Array, codec: str) -> bool:
    """Whether the bytes of values can be compressed."""
    # Lengths are kept beside every text in a file, and they are the part that always shrinks: they count.
    raw = b"".join(memoryview(buffer) for buffer in pa.concat_arrays([values]).buffers()[1:] if buffer is not None)
    if len(raw) < 64:
        return False
    return len(pa.compress(raw, codec, asbytes=True)) < _COMPRESSION_WORTH * len(raw)


def _leaf_paths(schema: pa.Schema) -> dict[str, list[str]]:
    """How Parquet calls the leaves of each column."""
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema):
        pass
    found = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    paths: dict[str, list[str]] = {name: [] for name in schema.names}
    for at in range(len(found)):
        column = found.column(at)
        # A name may hold dots: the leaves of a column begin with the whole of it.
        top = next(name for name in schema.names if column.path == name or column.path.startswith(f"{name}."))
        paths[top].append(column.path)
    return paths
