"""Sorting rows by an int64 column in bounded memory.

Runs that fit are sorted in memory and spilled as Arrow IPC files of one record batch each; the merge maps
them, so a run costs address space and no memory. It does not go row by row: splitters sampled from all runs
cut the value range into pieces of bounded size, and a piece is the concatenation of one slice of every run,
sorted once more (timsort finds the runs again, so this is a merge).

    run 0  |----a----|-----b-----|--c--|
    run 1  |--a--|---b---|------c------|      piece b = sort(b of run 0 + b of run 1 + ...)
    ...          ^       ^
                 splitters

A value with more rows than a piece may hold needs no sorting: its rows are passed on run by run. Equal
values keep the order in which they came.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64s = npt.NDArray[np.int64]

# Parts of the memory limit: a run is held twice while it is sorted, a piece up to three times while it is
# merged.
_RUN_SHARE = 0.4
_PIECE_SHARE = 0.15
_SPLITTER_GROUP = 4096
_COLUMN_THREADS = min(4, os.cpu_count() or 1)


def int64_view(array: pa.Array) -> Int64s:
    """The values of an eight-byte column without nulls, in place."""
    if not len(array):
        return np.empty(0, dtype=np.int64)
    return np.frombuffer(array.buffers()[1], dtype=np.int64, count=array.offset + len(array))[array.offset :]


class RowSorter:
    """Takes batches in any order, gives them back sorted by the column `by`."""

    def __init__(self, schema: pa.Schema, by: str, folder: Path, memory_limit: int) -> None:
        self._schema = schema
        self._by = schema.get_field_index(by)
        self._folder = folder
        self._run_bytes = int(memory_limit * _RUN_SHARE)
        self._piece_bytes = int(memory_limit * _PIECE_SHARE)
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._runs: list[Path] = []
        self._total_bytes = 0
        self._total_rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        size = batch.nbytes
        if self._pending and self._pending_bytes + size > self._run_bytes:
            self._spill()
        self._pending.append(batch)
        self._pending_bytes += size
        self._total_bytes += size
        self._total_rows += batch.num_rows

    def sorted(self) -> Iterator[pa.RecordBatch]:
        """All rows; the batches are as large as the memory limit allows."""
        with ThreadPoolExecutor(_COLUMN_THREADS) as pool:
            if not self._runs:
                if self._pending:
                    yield self._sort(self._take_pending(), pool)
                return
            if self._pending:
                self._spill(pool)
            yield from self._merge(pool)

    @property
    def runs(self) -> int:
        """Runs spilled so far; 0 while everything fits in memory."""
        return len(self._runs)

    def _take_pending(self) -> list[pa.RecordBatch]:
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        return pending

    def _spill(self, pool: ThreadPoolExecutor | None = None) -> None:
        if pool is None:
            with ThreadPoolExecutor(_COLUMN_THREADS) as own:
                self._spill(own)
            return
        run = self._sort(self._take_pending(), pool)
        path = self._folder / f"run-{len(self._runs):05d}.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, self._schema) as writer:
            writer.write_batch(run)
        self._runs.append(path)
        del run
        # Pieces of all sizes were freed by several threads: an allocator would keep as much again as a run holds.
        pa.default_memory_pool().release_unused()

    def _sort(self, batches: list[pa.RecordBatch], pool: ThreadPoolExecutor) -> pa.RecordBatch:
        """One sorted batch, column by column so that only one column exists three times."""
        values = int64_view(_concat([batch.column(self._by) for batch in batches]))
        move: Callable[[pa.Array], pa.Array]
        if bool((values[1:] >= values[:-1]).all()):
            move = _unmoved
        else:
            rows = pa.array(np.argsort(values, kind="stable"))

            def move(column: pa.Array) -> pa.Array:
                return column.take(rows)

        def one(i: int) -> pa.Array:
            return move(_concat([batch.column(i) for batch in batches]))

        return pa.RecordBatch.from_arrays(list(pool.map(one, range(len(self._schema)))), schema=self._schema)

    def _merge(self, pool: ThreadPoolExecutor) -> Iterator[pa.RecordBatch]:
        runs = [pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0) for path in self._runs]
        values = [int64_view(run.column(self._by)) for run in runs]
        piece_rows = max(1, int(self._piece_bytes * self._total_rows / max(self._total_bytes, 1)))
        for lows, highs, same in _pieces(values, piece_rows):
            slices = [
                run.slice(low, high - low)
                for run, low, high in zip(runs, lows.tolist(), highs.tolist(), strict=True)
                if high > low
            ]
            if slices and not same:
                yield self._sort(slices, pool)
                continue
            for part in slices:
                for start in range(0, part.num_rows, piece_rows):
                    yield part.slice(start, piece_rows)


def _pieces(values: list[Int64s], piece_rows: int) -> Iterator[tuple[Int64s, Int64s, bool]]:
    """Row ranges of all runs that belong together, in order; True marks a range of one single value.

    With every s-th value of every run as a splitter, fewer than s rows of a run lie strictly between two
    neighbouring splitters, so s = piece_rows / runs bounds what a piece can hold.
    """
    step = max(1, piece_rows // len(values))
    splitters = np.unique(np.concatenate([run[step - 1 :: step] for run in values]))
    done = np.zeros(len(values), dtype=np.int64)
    # In groups, so that the bounds of many runs at many splitters stay small.
    for start in range(0, len(splitters), _SPLITTER_GROUP):
        group = splitters[start : start + _SPLITTER_GROUP]
        before = np.stack([np.searchsorted(run, group, side="left") for run in values], axis=1)
        until = np.stack([np.searchsorted(run, group, side="right") for run in values], axis=1)
        # Where a step may end: just before and just after every splitter.
        bounds = np.stack([before, until], axis=1).reshape(-1, len(values)).astype(np.int64)
        totals = bounds.sum(axis=1)
        at = 0
        while at < len(totals):
            # The last step that still fits; at least one, which then is a single value or a bounded gap.
            total = int(done.sum())
            last = max(at, int(np.searchsorted(totals, total + piece_rows, side="right")) - 1)
            if totals[last] > total:
                yield done, bounds[last], last == at and at % 2 == 1
                done = bounds[last]
            at = last + 1
    yield done, np.array([len(run) for run in values], dtype=np.int64), False


def _unmoved(column: pa.Array) -> pa.Array:
    return column


def _concat(arrays: list[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
