"""Which keys of a store the source has no more: its keys are read, and compared with the store's as codes.

Both sides are sorted together outside memory, so a source of any size can be compared. A key counts as many rows on
both sides, or it has changed; one that changed without its watermark is a reason to read everything again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from semistream.columns.keys import KeyCoder
from semistream.columns.physical import PhysicalSchema
from semistream.master.base import Int64s
from semistream.master.format import CODE
from semistream.master.live import LiveRows
from semistream.master.pages import PageMaster
from semistream.master.publish import scratch_folder
from semistream.master.refresh import whole_codes
from semistream.master.sorting import RowSorter, int64_view

_SIDED = pa.schema([(CODE, pa.int64()), ("stored", pa.int64())])


@dataclass(frozen=True)
class Differences:
    """Codes of keys, sorted: those that only the store has, and those of which the source has other numbers of rows."""

    gone: Int64s
    other: Int64s


def compare_keys(keys: Iterator[pa.RecordBatch], master: PageMaster, folder: Path, memory_limit: int) -> Differences:
    """How the keys of a source, as batches of the key columns, differ from those of a store."""
    coder = master.coder.rows
    with scratch_folder(folder) as scratch:
        sorter = RowSorter(_SIDED, CODE, scratch, memory_limit // 2)
        for codes in codes_of(keys, coder):
            sorter.add(_sided(codes, 0))
        with LiveRows(master, memory_limit // 4, master.on) as live:
            for batch in live.all_but(np.empty(0, dtype=np.int64)):
                sorter.add(_sided(int64_view(batch.column(0)), 1))
        gone, other = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for piece in whole_codes(sorter.sorted(), memory_limit // 16):
            codes, stored = int64_view(piece.column(0)), int64_view(piece.column(1))
            distinct, number = np.unique(codes, return_inverse=True)
            here = np.bincount(number, weights=stored, minlength=len(distinct))
            there = np.bincount(number, weights=1 - stored, minlength=len(distinct))
            gone.append(distinct[there == 0])
            other.append(distinct[(there > 0) & (there != here)])
    return Differences(np.concatenate(gone), np.concatenate(other))


def codes_of(keys: Iterable[pa.RecordBatch], coder: KeyCoder) -> Iterator[Int64s]:
    """Codes of keys, without those that have a null and so match nothing."""
    for batch in keys:
        codes, valid = coder.codes(batch.columns)
        yield codes if valid is None else np.ascontiguousarray(codes[valid])


def keys_with(codes: Int64s, master: PageMaster, memory_limit: int) -> Iterator[pa.RecordBatch]:
    """The keys of a store that have these codes, as `deletes` of a refresh; a key comes as often as it has rows."""
    schema = pa.schema([master.schema.field(name) for name in master.on])
    physical = PhysicalSchema(schema)
    with closing(PageMaster(master.path, master.version)) as again, LiveRows(again, memory_limit, master.on) as live:
        for batch in live.rows_of(codes):
            arrays = physical.decode([batch.column(name) for name in master.on])
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _sided(codes: Int64s, stored: int) -> pa.RecordBatch:
    sides = np.full(len(codes), stored, dtype=np.int64)
    return pa.RecordBatch.from_arrays([pa.array(codes), pa.array(sides)], schema=_SIDED)
