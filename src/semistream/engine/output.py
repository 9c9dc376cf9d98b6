"""Pairs in, record batches out: the half of every join that is the same for all algorithms.

An algorithm finds pairs of a stream tuple and a master row and names both by numbers; `Tuples` and `Rows` know how to
take the columns of such numbers. Here hashed matches are confirmed on the true key columns, `how` decides which rows
survive, and the output columns are built.

Rows are built in pieces: each side of a piece takes at most an eighth of the budget, or is a single row. Columns that
are dictionaries get one of their own in every batch, and a batch is cut where its dictionary outgrows its index type.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.keys import equal_keys
from semistream.columns.nested import TooManyValuesError
from semistream.columns.physical import PhysicalColumn, PhysicalSchema
from semistream.columns.rows import INT32_MAX, Paged, RowLayout, take_paged
from semistream.columns.validity import AsOf, Validity
from semistream.engine.chunk import Chunk, JoinStats
from semistream.parts.budget import Budget
from semistream.parts.matches import mark_tuples, side_by_side
from semistream.spec import JoinSpec

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_for_files: ContextVar[bool] = ContextVar("for files", default=False)
#: physical columns within that many bytes, or how many of the rows would fit
Taken = list[pa.Array] | int
#: in the schema's metadata of batches that hold tuples without a match, where these come apart
_APART = b"semistream.unmatched"


def is_apart(batch: pa.RecordBatch) -> bool:
    """Whether a batch holds tuples without a match, in the columns of the stream (`JoinSpec.apart`)."""
    metadata = batch.schema.metadata
    return metadata is not None and _APART in metadata


def apart_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of batches of such tuples, for a stream of this one."""
    return schema.with_metadata({**(schema.metadata or {}), _APART: b""})


def null_columns(columns: Sequence[PhysicalColumn], rows: int) -> list[pa.Array]:
    """Columns of nulls, by way of the physical type: Arrow cannot make nulls of every type itself."""
    return [column.to_logical(pa.nulls(rows, column.physical)) for column in columns]


@contextlib.contextmanager
def for_files() -> Iterator[None]:
    """Say that the rows of joins that this thread runs go to files: those of one master row stand side by side.

    A stream asks for few keys again and again. Where their rows stand together, a codec writes a value once and how
    often it follows, which takes it less time than to look for values that are scattered. To bring them together takes
    a few percent of a join's time, so nobody does it for rows that are not compressed.
    """
    token = _for_files.set(True)
    try:
        yield
    finally:
        _for_files.reset(token)


class Rows(Protocol):
    """Something that can give the columns of rows named by numbers: a block of R, the cache."""

    @property
    def form(self) -> Paged | RowLayout:
        """How the rows stand in memory: as paged columns, or packed."""

    def take(self, ids: Int64s, start: int, count: int, limit: int = INT32_MAX, /) -> Taken:
        """Physical columns of `ids[start : start + count]`, or how many of these rows fit the limit of bytes."""


class Tuples(Rows, Protocol):
    """Stream tuples named by numbers: of a chunk, or waiting ones."""

    def mark(self, ids: Int64s, count: int, /) -> Bools:
        """Note that tuples have matched; True for those that have for the first time."""


class PagedRows:
    """Rows of paged columns: a block of R, a page cache, a chunk of the stream."""

    def __init__(self, physical: PhysicalSchema, source: Paged) -> None:
        self._physical, self.form = physical, source

    def take(self, ids: Int64s, start: int, count: int, limit: int = INT32_MAX) -> Taken:
        return take_paged(self._physical, self.form, ids, start, count, columns=self._physical.every, limit=limit)


class ChunkTuples(PagedRows):
    """The tuples of a chunk."""

    def __init__(self, physical: PhysicalSchema, chunk: Chunk) -> None:
        super().__init__(physical, chunk.columns)
        self._matched = chunk.matched

    def mark(self, ids: Int64s, count: int) -> Bools:
        return mark_tuples(self._matched, ids, count)

    def matched(self, ids: Int64s) -> Bools:
        """Which tuples have matched, where that is noted."""
        return self._matched[ids]


@dataclass(frozen=True)
class Sides:
    """What output must know of both sides: their columns, and where the keys stand among them."""

    stream: PhysicalSchema
    master: PhysicalSchema
    #: master columns that are output: the first ones of those that are read
    selected: int
    #: equal codes are equal keys; else these columns are compared
    exact: bool
    stream_keys: list[int]
    master_keys: list[int]
    schema: pa.Schema
    #: of the rows of a key those that were valid at the tuple's time; None: all
    validity: Validity | None = None


class Output:
    """Builds the rows of a join. Every thread that builds rows has one of its own, with its own counts."""

    def __init__(self, spec: JoinSpec, sides: Sides, budget: Budget, stats: JoinStats) -> None:
        self.spec, self.sides, self.budget, self.stats = spec, sides, budget, stats
        self.schema = sides.schema
        #: every pair is a match; else pairs are confirmed here
        self.exact = sides.exact and sides.validity is None
        #: of the matches of a tuple one is enough: nothing of the master row is output
        self.first_only = self.exact and not spec.carries_master
        #: nothing of the master rows is needed for output, nor to confirm keys
        self.leaves_rows = sides.exact and not spec.carries_master
        self._marks = spec.how != "inner"
        self._apart = apart_schema(sides.stream.schema) if spec.apart else None
        #: bytes that one side of a piece of rows may take; a single row may take more
        self.piece_bytes = budget.piece_bytes

    def beside(self, stats: JoinStats) -> Output:
        """The same for another thread."""
        return Output(self.spec, self.sides, self.budget, stats)

    def of_chunk(self, chunk: Chunk) -> ChunkTuples:
        """The tuples of a chunk, for `pairs` and `unmatched`."""
        return ChunkTuples(self.sides.stream, chunk)

    def of_block(self, block: Paged) -> PagedRows:
        """The rows of a block of R, for `pairs`."""
        return PagedRows(self.sides.master, block)

    def pairs(self, tuples: Tuples, rows: Rows, left: Int64s, right: Int64s, count: int) -> Iterator[pa.RecordBatch]:
        """Rows of the pairs of tuple `left[i]` and master row `right[i]`: confirmed, marked, built as `how` asks."""
        return self.matches(tuples, rows, left, right, self.valid_pairs(tuples, rows, left, right, count))

    def matches(self, tuples: Tuples, rows: Rows, left: Int64s, right: Int64s, count: int) -> Iterator[pa.RecordBatch]:
        """The same of pairs of which each has a row that was valid at the tuple's time."""
        if count == 0:
            return
        exact = self.sides.exact
        if exact and self.spec.how == "anti":
            tuples.mark(left, count)
            return
        carried = None if self.leaves_rows else rows
        if carried is not None and _for_files.get():
            left, right = side_by_side(left, right, count)
        for start, size, lefts, rights in self.pieces(tuples, carried, left, right, count):
            if exact and not self._marks:
                yield from self.built(lefts, rights)
            else:
                yield from self._confirmed(tuples, left[start : start + size], lefts, rights)

    def as_of(self, tuples: Rows, ids: Int64s, count: int) -> AsOf | None:
        """The times of tuples `ids[:count]`, if these decide which rows of a key a tuple meets."""
        validity = self.sides.validity
        return None if validity is None else validity.asked(tuples.form, ids, count)

    def valid_pairs(self, tuples: Rows, rows: Rows, left: Int64s, right: Int64s, count: int) -> int:
        """Bring the pairs to the front whose row was valid at the tuple's time, if that is asked; returns how many."""
        validity = self.sides.validity
        return count if validity is None else validity.keep(tuples.form, rows.form, left, right, count)

    def pieces(
        self, tuples: Rows, rows: Rows | None, left: Int64s, right: Int64s, count: int
    ) -> Iterator[tuple[int, int, list[pa.Array], list[pa.Array]]]:
        """Physical columns of both sides of some pairs (without `rows` of one), in pieces that are small enough.

        Each with the place of its first pair and their number.
        """
        start, size = 0, count
        while start < count:
            size = min(size, count - start)
            lefts = tuples.take(left, start, size, self.piece_bytes)
            if isinstance(lefts, int):
                size = lefts
                continue
            rights = rows.take(right, start, size, self.piece_bytes) if rows is not None else []
            if isinstance(rights, int):
                size = rights
                continue
            yield start, size, lefts, rights
            start += size
            size *= 2

    def _confirmed(
        self, tuples: Tuples, ids: Int64s, lefts: list[pa.Array], rights: list[pa.Array]
    ) -> list[pa.RecordBatch]:
        """The pairs whose keys are really equal, each marked; a semi join takes the first of a tuple."""
        sides, how = self.sides, self.spec.how
        if not sides.exact:
            same = equal_keys([lefts[i] for i in sides.stream_keys], [rights[i] for i in sides.master_keys])
            if not same.all():
                keep = pa.array(same)
                lefts = [array.filter(keep) for array in lefts]
                rights = [array.filter(keep) for array in rights]
                ids = ids[same]
                if len(ids) == 0:
                    return []
        if self._marks:
            first = tuples.mark(ids, len(ids))
            if how == "anti":
                return []
            if how == "semi" and not first.all():
                keep = pa.array(first)
                lefts = [array.filter(keep) for array in lefts]
        return self.built(lefts, rights)

    def built(self, lefts: list[pa.Array], rights: list[pa.Array]) -> list[pa.RecordBatch]:
        """Output batches of physical columns: one, or as few as their types allow."""
        try:
            columns = self.sides.stream.decode(lefts) + self.sides.master.decode(rights[: self.sides.selected])
        except TooManyValuesError:
            half = len(lefts[0]) // 2
            if not half:
                raise
            first = self.built([array.slice(0, half) for array in lefts], [a.slice(0, half) for a in rights])
            return first + self.built([array.slice(half) for array in lefts], [a.slice(half) for a in rights])
        return [self._noted(columns)]

    def _noted(self, columns: list[pa.Array]) -> pa.RecordBatch:
        batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        self.budget.note_piece(batch.get_total_buffer_size())
        return batch

    def unmatched(self, tuples: Rows, ids: Int64s, count: int) -> Iterator[pa.RecordBatch]:
        """Tuples that are finished and found nothing: output for left and anti joins, gone otherwise."""
        self.stats.unmatched += count
        if count == 0 or not self.spec.keeps_unmatched:
            return
        for _, _, arrays, _ in self.pieces(tuples, None, ids, ids, count):
            yield from self.with_nulls(arrays)

    def with_nulls(self, arrays: list[pa.Array]) -> Iterator[pa.RecordBatch]:
        """Physical stream columns of tuples without a match, master columns null; or the stream's columns alone."""
        masters = self.sides.master.columns[: self.sides.selected]
        for columns in self.sides.stream.decode_pieces(arrays):
            if self._apart is not None:
                yield pa.RecordBatch.from_arrays(columns, schema=self._apart)
                continue
            yield self._noted([*columns, *null_columns(masters, len(columns[0]))])

    def stream_columns(self, tuples: Rows, ids: Int64s) -> Iterator[tuple[int, list[pa.Array]]]:
        """Stream columns of waiting tuples, in pieces, each with the place of its first tuple."""
        for start, _, arrays, _ in self.pieces(tuples, None, ids, ids, len(ids)):
            for columns in self.sides.stream.decode_pieces(arrays):
                yield start, columns
                start += len(columns[0])
