"""Stores that came to their rows by changes: dead rows in the base and in runs, deleted keys, keys of several runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from semistream import build_pages, refresh_pages
from semistream.columns.keys import KeyCoder
from semistream.master.pages import PageMaster


def build_changed(
    table: pa.Table,
    path: Path,
    on: str | Sequence[str],
    page_rows: int,
    runs: int,
    by_frequency: bool = False,
    code_mask: int | None = None,
) -> PageMaster:
    """A store with the rows of a table, of which the base had others, made by so many refreshes.

    Of every six keys one is there from the beginning; the others are inserted, changed, changed again and again, and
    two are deleted and come back.
    """
    keys = [on] if isinstance(on, str) else list(on)
    rng = np.random.default_rng(table.num_rows)
    table = table.combine_chunks()
    coder = KeyCoder([table.schema.field(name).type for name in keys], mask=code_mask)
    codes, _ = coder.codes([_one(table[name]) for name in keys])
    # By code, so that all rows of a key have one fate.
    fate, turn = (codes ^ (codes >> 7)) % 6, 1 + (codes // 6) % runs
    mixed = picked(table, rng.permutation(table.num_rows))
    for name in keys:
        mixed = mixed.set_column(mixed.schema.get_field_index(name), table.schema.field(name), table[name])
    twice = rng.random(table.num_rows) < 0.2

    def rows(which: np.ndarray, other: bool = False) -> pa.Table:
        """These rows, or others with their keys, some of them twice."""
        if not other:
            return picked(table, np.flatnonzero(which))
        return picked(mixed, np.concatenate([np.flatnonzero(which), np.flatnonzero(which & twice)]))

    base = pa.concat_tables([rows(fate == 0), rows(fate >= 2, other=True)])
    frequency = None
    if by_frequency:
        frequency = (base.select(keys), rng.integers(0, 100, base.num_rows))
    build_pages(base, path, on=on, page_rows=page_rows, frequency=frequency, code_mask=code_mask).close()
    for run in range(1, runs + 1):
        mine, is_last = turn == run, run == runs
        comes = [rows(mine & (fate <= 3) & (fate > 0) & ((fate != 3) | is_last))]
        # Changed once more before their time, or otherwise than they will be in the end.
        comes.append(rows(((turn > run) & (fate == 2)) | (mine & (fate == 3) & (not is_last)), other=True))
        # Deleted, to come back in the last run.
        goes = rows(mine & (fate >= 4) & (not is_last))
        if is_last:
            comes.append(rows((fate >= 4) | ((fate == 3) & ~mine)))
        refresh_pages(path, pa.concat_tables(comes), deletes=goes.select(keys), compact="never").close()
    return PageMaster(path)


def picked(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """Rows of a table, also of one with views, which pyarrow cannot take from."""
    try:
        return table.take(pa.array(rows, pa.int64()))
    except pa.ArrowNotImplementedError:
        return pa.concat_tables([table.slice(0, 0), *(table.slice(int(row), 1) for row in rows)]).combine_chunks()


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
