"""Laying R out by access frequency, and the second index that such an order needs.

oxhybridjoin2012 keeps the most wanted part of R at its front. Rows then no longer stand in key order, so a file of
(code, first row, rows), sorted by code, finds them again. All rows of a key stay together, whatever their own
frequencies say: a key is as frequent as its most frequent row.

Ranks need about 40 bytes per distinct key in memory while the store is built.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semistream.columns.border import check_batch
from semistream.columns.keys import KeyCoder
from semistream.errors import ChecksumError, ConfigError, SchemaError, StoreError
from semistream.kernels.pages import (
    TABLE_BLOCK,
    TABLE_COUNT_AT,
    TABLE_ENTRIES,
    TABLE_SUM_AT,
    hash_pages,
    locate_in_table,
)
from semistream.master.base import aligned_buffer, require_columns
from semistream.master.files import failed_read, open_file
from semistream.master.format import DAMAGED
from semistream.sealed import digest

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
UInt64s = npt.NDArray[np.uint64]

_MERGE_AT = 1 << 20
# Blocks of the second index read at once, and the gap worth reading over (a seek costs about 180 kB).
_TABLE_BLOCKS = 64
_TABLE_GAP_DIRECT, _TABLE_GAP_CACHED = 44, 4

Frequencies: TypeAlias = str | tuple[pa.Table | pa.RecordBatch | pa.Array | pa.ChunkedArray | Int64s, object]


def second_index_bytes(rows: int) -> int:
    """Bytes that the second index of that many keys takes in memory: a first code per block, and room for some."""
    return _TABLE_BLOCKS * TABLE_BLOCK + 8 * -(-rows // TABLE_ENTRIES)


class KeyRanks:
    """Collects every code with its rows and frequency, then ranks them: most frequent first, then by code."""

    def __init__(self) -> None:
        self._codes: list[Int64s] = []
        self._counts: list[Int64s] = []
        self._weights: list[Floats] = []
        self._waiting = 0
        self.codes: Int64s = np.empty(0, dtype=np.int64)
        self.starts: Int64s = np.empty(0, dtype=np.int64)
        self.counts: Int64s = np.empty(0, dtype=np.int64)
        self._ranks: Int64s = np.empty(0, dtype=np.int64)

    def add(self, codes: Int64s, weights: Floats | None) -> None:
        self._codes.append(codes)
        self._counts.append(np.ones(len(codes), dtype=np.int64))
        self._weights.append(np.zeros(len(codes)) if weights is None else weights)
        self._waiting += len(codes)
        if self._waiting > _MERGE_AT + 2 * len(self._codes[0]):
            self._fold()

    def _fold(self) -> None:
        if not self._codes:
            return
        codes = np.concatenate(self._codes)
        order = np.argsort(codes, kind="stable")
        codes = codes[order]
        heads = np.flatnonzero(np.append(True, codes[1:] != codes[:-1])) if len(codes) else np.empty(0, np.int64)
        counts, weights = np.concatenate(self._counts)[order], np.concatenate(self._weights)[order]
        if len(heads):
            counts, weights = np.add.reduceat(counts, heads), np.maximum.reduceat(weights, heads)
        self._codes, self._counts, self._weights = [codes[heads]], [counts], [weights]
        self._waiting = len(heads)

    def finish(self, given: tuple[Int64s, Floats] | None) -> None:
        """Rank; `given` frequencies replace those of the rows, codes that are not listed count as 0."""
        self._fold()
        if not self._codes:
            return
        self.codes, self.counts, weights = self._codes[0], self._counts[0], self._weights[0]
        if given is not None:
            weights = np.zeros(len(self.codes))
            at = np.searchsorted(self.codes, given[0])
            known = at < len(self.codes)
            known[known] = self.codes[at[known]] == given[0][known]
            np.add.at(weights, at[known], given[1][known])
        order = np.lexsort((self.codes, -weights))
        self._ranks = np.empty(len(order), dtype=np.int64)
        self._ranks[order] = np.arange(len(order))
        self.starts = np.empty(len(order), dtype=np.int64)
        self.starts[order] = np.cumsum(self.counts[order]) - self.counts[order]

    def rank(self, codes: Int64s) -> Int64s:
        return self._ranks[np.searchsorted(self.codes, codes)]

    def save(self, path: Path) -> str:
        """The second index: blocks of entries sorted by code, each with their number and a checksum.

        Returns a checksum of the blocks' first codes and checksums, which the blocks do not have themselves.
        """
        n_blocks = -(-len(self.codes) // TABLE_ENTRIES)
        blocks = np.zeros((n_blocks, TABLE_BLOCK), dtype=np.uint8)
        entries = blocks[:, :TABLE_COUNT_AT].view(np.int64).reshape(n_blocks, TABLE_ENTRIES, 3)
        filled = np.zeros((n_blocks * TABLE_ENTRIES, 3), dtype=np.int64)
        for column, values in enumerate((self.codes, self.starts, self.counts)):
            filled[: len(values), column] = values
        entries[:] = filled.reshape(n_blocks, TABLE_ENTRIES, 3)
        left = len(self.codes) - np.arange(n_blocks, dtype=np.int64) * TABLE_ENTRIES
        blocks[:, TABLE_COUNT_AT:TABLE_SUM_AT].view(np.int64)[:, 0] = np.minimum(left, TABLE_ENTRIES)
        base = blocks.ctypes.data + np.arange(n_blocks, dtype=np.int64) * TABLE_BLOCK
        sums: UInt64s = np.zeros(n_blocks, dtype=np.uint64)
        hash_pages(base, np.full(n_blocks, TABLE_SUM_AT, dtype=np.int64), sums)
        blocks[:, TABLE_SUM_AT:].view(np.uint64)[:, 0] = sums
        with path.open("wb") as file:
            file.write(blocks.data)
            file.flush()
            os.fsync(file.fileno())
        return _checksum(np.ascontiguousarray(entries[:, 0, 0]), sums)


def table_fences(path: Path, expected: str) -> Int64s:
    """First code of every block of a second index, if they and the blocks' checksums are those that were written."""
    fences, sums = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.uint64)]
    try:
        with path.open("rb") as file:
            while part := file.read(_TABLE_BLOCKS * TABLE_BLOCK):
                words = np.frombuffer(part, dtype=np.int64).reshape(-1, TABLE_BLOCK // 8)
                fences.append(words[:, 0].copy())
                sums.append(words[:, TABLE_SUM_AT // 8].view(np.uint64))
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read ({error}); {DAMAGED}") from error
    first = np.concatenate(fences)
    found = _checksum(first, np.concatenate(sums))
    if found != expected:
        raise ChecksumError(f"the blocks of {path} have the checksum {found}, {expected} was written: {DAMAGED}")
    return first


def table_keys(path: Path, expected: str, first_block: int = 0) -> tuple[Int64s, Int64s]:
    """Codes of a second index, sorted, and the first row of each, from a block on; a negative one counts from the end.

    Each block is checked.
    """
    wrong = verify_table(path, expected)
    if wrong:
        raise ChecksumError(wrong[0])
    blocks = len(table_fences(path, expected))
    start = first_block if first_block >= 0 else max(blocks + first_block, 0)
    words = np.fromfile(path, np.int64, offset=start * TABLE_BLOCK).reshape(-1, TABLE_BLOCK // 8)
    counts = words[:, TABLE_COUNT_AT // 8]
    entries = words[:, : 3 * TABLE_ENTRIES].reshape(len(words), TABLE_ENTRIES, 3)
    filled = np.arange(TABLE_ENTRIES) < counts[:, None]
    return entries[..., 0][filled], entries[..., 1][filled]


def verify_table(path: Path, expected: str) -> list[str]:
    """What is wrong with a second index, block by block; nothing if it is as it was written."""
    wrong: list[int] = []
    count = len(table_fences(path, expected))
    for first in range(0, count, _TABLE_BLOCKS):
        content = np.fromfile(path, np.uint8, _TABLE_BLOCKS * TABLE_BLOCK, offset=first * TABLE_BLOCK)
        blocks = content.reshape(-1, TABLE_BLOCK)
        base = content.ctypes.data + np.arange(len(blocks), dtype=np.int64) * TABLE_BLOCK
        sums: UInt64s = np.zeros(len(blocks), dtype=np.uint64)
        hash_pages(base, np.full(len(blocks), TABLE_SUM_AT, dtype=np.int64), sums)
        wrong += (first + np.flatnonzero(sums != blocks[:, TABLE_SUM_AT:].view(np.uint64)[:, 0])).tolist()
    return [f"block {block} of {path} has a wrong checksum: {DAMAGED}" for block in wrong]


def _checksum(fences: Int64s, sums: UInt64s) -> str:
    return digest(fences.tobytes() + sums.tobytes())


class SecondIndex:
    """Looks codes up in the file of (code, first row, rows)."""

    def __init__(self, path: Path, fences: Int64s, direct: bool) -> None:
        self._path = path
        self._fences = fences
        self._direct = direct
        self._scratch = aligned_buffer(_TABLE_BLOCKS * TABLE_BLOCK)
        self.reads = 0
        self._fd = open_file(path, direct)

    @property
    def nbytes(self) -> int:
        return int(self._fences.nbytes + self._scratch.nbytes)

    def locate(self, codes: Int64s, page_rows: int) -> tuple[Int64s, Int64s]:
        first, last = np.empty_like(codes), np.empty_like(codes)
        result = np.zeros(3, dtype=np.int64)
        gap = _TABLE_GAP_DIRECT if self._direct else _TABLE_GAP_CACHED
        locate_in_table(
            self._fd,
            self._fences,
            codes,
            self._scratch.ctypes.data,
            _TABLE_BLOCKS,
            gap,
            page_rows,
            first,
            last,
            result,
        )
        self.reads += int(result[0])
        if result[1] >= 0:
            if result[2] == 0:
                raise failed_read(self._path, self._fd, int(result[1]) * TABLE_BLOCK, self._direct)
            raise ChecksumError(f"block {result[1]} of {self._path} has a wrong checksum: {DAMAGED}")
        return first, last

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()


def weights_of(column: pa.Array, name: str) -> Floats:
    """Frequencies of a batch's rows; null counts as 0."""
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_decimal(column.type)):
        raise SchemaError(f"the frequency column {name!r} has type {column.type}; it must be a number")
    filled = pc.fill_null(column.cast(pa.float64(), safe=False), 0.0)
    weights: Floats = np.nan_to_num(filled.to_numpy(zero_copy_only=False))
    return weights


def _codes_of(keys: pa.Table, coder: KeyCoder) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """Codes of all rows, batch by batch: dictionaries of two batches may not fit one."""
    codes, valid = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.bool_)]
    for batch in keys.to_batches():
        check_batch(batch, "the table of frequencies")
        some, usable = coder.codes(batch.columns)
        codes.append(some)
        valid.append(np.ones(len(some), dtype=np.bool_) if usable is None else usable)
    return np.concatenate(codes), np.concatenate(valid)


def given_frequencies(
    frequency: Frequencies | None, on: tuple[str, ...], coder: KeyCoder
) -> tuple[Int64s, Floats] | None:
    """Codes and counts of frequencies that came as a pair (keys or codes, counts)."""
    if frequency is None or isinstance(frequency, str):
        return None
    if len(frequency) != 2:
        raise ConfigError("frequency must be the name of a column or a pair (keys, counts)")
    keys, counts = frequency
    weights = np.nan_to_num(np.asarray(counts, dtype=np.float64))
    valid = None
    if isinstance(keys, pa.Table | pa.RecordBatch):
        require_columns(keys.schema, on, "the table of frequencies")
        table = keys if isinstance(keys, pa.Table) else pa.Table.from_batches([keys])
        codes, valid = _codes_of(table.select(list(on)), coder)
    elif isinstance(keys, pa.ChunkedArray | pa.Array):
        codes, valid = _codes_of(pa.table({on[0]: keys}), coder)
    else:
        codes = np.asarray(keys, dtype=np.int64)
    if len(codes) != len(weights):
        raise ConfigError(f"frequency has {len(codes)} keys and {len(weights)} counts; they must be as many")
    return (codes, weights) if valid is None else (codes[valid], weights[valid])
