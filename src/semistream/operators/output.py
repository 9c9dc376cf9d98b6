"""Pairs in, record batches out: the half of every join that is the same for all algorithms.

An algorithm finds pairs of a stream tuple and a master row, and says how to take the columns of each (`Take`). Here
hashed matches are confirmed on the true key columns, `how` decides which rows survive, and the output columns are
built.

Rows are built in pieces: each side of a piece takes at most an eighth of the budget, or is a single row. Columns that
are dictionaries get one of their own in every batch, and a batch is cut where its dictionary outgrows its index type.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.keys import equal_keys
from semistream.columns.nested import TooManyValuesError
from semistream.columns.physical import PhysicalSchema
from semistream.columns.rows import INT32_MAX, Paged, take_paged
from semistream.kernels import tuples as tuple_kernel
from semistream.master.base import Master, PageReader
from semistream.operators.chunk import Chunk, JoinStats, Scratch
from semistream.parts.budget import Budget
from semistream.parts.cache import Cache
from semistream.spec import JoinSpec

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
#: physical columns of `ids[start : start + count]` within that many bytes, or how many of these rows would fit
Take = Callable[[Int64s, int, int, int], "list[pa.Array] | int"]
Mark = Callable[[Int64s, int], Bools]


class JoinOutput(ABC):
    """Builds the rows of a join; what it needs to know of the two sides is set by `SemiStreamJoin`."""

    master: Master
    spec: JoinSpec
    reader: PageReader
    budget: Budget
    output_schema: pa.Schema | None
    #: code equality is key equality
    _exact: bool
    #: master columns of the result, and where the key columns stand among those read
    _select: list[str]
    _master_keys: list[int]
    _stream: PhysicalSchema
    _key_at: list[int]
    _every_column: Int64s

    @property
    @abstractmethod
    def stats(self) -> JoinStats:
        """What the join did so far, in counts."""

    def _emit(self, left: Take, right: Take, a: Int64s, b: Int64s, count: int, mark: Mark) -> Iterator[pa.RecordBatch]:
        """Rows of the pairs `a[i]`, `b[i]`: confirmed, marked and built as `how` asks."""
        if count == 0:
            return
        how = self.spec.how
        if self._exact and how == "anti":
            mark(a, count)
            return
        carries = how in ("inner", "left") or not self._exact
        for start, size, lefts, rights in self._pieces(left, right if carries else None, a, b, count):
            yield from self._emit_piece(lefts, rights, a[start : start + size], mark)

    def _emit_piece(
        self, lefts: list[pa.Array], rights: list[pa.Array], a: Int64s, mark: Mark
    ) -> Iterator[pa.RecordBatch]:
        how = self.spec.how
        if not self._exact:
            same = equal_keys([lefts[i] for i in self._key_at], [rights[i] for i in self._master_keys])
            if not same.all():
                keep = pa.array(same)
                lefts = [array.filter(keep) for array in lefts]
                rights = [array.filter(keep) for array in rights]
                a = a[same]
                if len(a) == 0:
                    return
        if how != "inner":
            first = mark(a, len(a))
            if how == "anti":
                return
            if how == "semi" and not first.all():
                keep = pa.array(first)
                lefts = [array.filter(keep) for array in lefts]
        yield from self._built(lefts, rights[: len(self._select)])

    def _pieces(
        self, left: Take, right: Take | None, a: Int64s, b: Int64s, count: int
    ) -> Iterator[tuple[int, int, list[pa.Array], list[pa.Array]]]:
        """The pairs in order, in pieces whose columns are small enough: where it starts, its size, both sides."""
        limit = self.piece_bytes
        start, size = 0, count
        while start < count:
            size = min(size, count - start)
            lefts = left(a, start, size, limit)
            if isinstance(lefts, int):
                size = lefts
                continue
            rights = right(b, start, size, limit) if right is not None else []
            if isinstance(rights, int):
                size = rights
                continue
            yield start, size, lefts, rights
            start += size
            size *= 2

    @cached_property
    def piece_bytes(self) -> int:
        """Bytes that one side of a piece of rows may take; a single row may take more."""
        return min(self.budget.total // 8, INT32_MAX)

    def _built(self, lefts: list[pa.Array], rights: list[pa.Array]) -> Iterator[pa.RecordBatch]:
        """Output batches of physical columns: as few as their types allow."""
        try:
            columns = self._stream.decode(lefts) + self.reader.physical.decode(rights)
        except TooManyValuesError:
            half = len(lefts[0]) // 2
            if not half:
                raise
            yield from self._built([array.slice(0, half) for array in lefts], [a.slice(0, half) for a in rights])
            yield from self._built([array.slice(half) for array in lefts], [a.slice(half) for a in rights])
            return
        yield self._noted(pa.RecordBatch.from_arrays(columns, schema=self.output_schema))

    def _noted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.budget.note_piece(batch.get_total_buffer_size())
        return batch

    def _with_nulls(self, arrays: list[pa.Array]) -> Iterator[pa.RecordBatch]:
        """Physical stream columns of tuples without a match, master columns null."""
        for columns in self._stream.decode_pieces(arrays):
            # By way of the physical type: Arrow cannot make nulls of every type itself.
            masters = self.reader.physical.columns[: len(self._select)]
            nulls = [column.to_logical(pa.nulls(len(columns[0]), column.physical)) for column in masters]
            yield self._noted(pa.RecordBatch.from_arrays([*columns, *nulls], schema=self.output_schema))

    def _stream_columns(self, take: Take, refs: Int64s, count: int) -> Iterator[tuple[int, list[pa.Array]]]:
        """Stream columns of waiting tuples, in pieces, each with the place of its first tuple."""
        for start, _, arrays, _ in self._pieces(take, None, refs, refs, count):
            for columns in self._stream.decode_pieces(arrays):
                yield start, columns
                start += len(columns[0])

    def _take_chunk(self, chunk: Chunk) -> Take:
        """Stream columns of tuples of a chunk."""

        def take(ids: Int64s, start: int, count: int, limit: int) -> list[pa.Array] | int:
            return take_paged(self._stream, chunk.columns, ids, start, count, self._every_column, limit)

        return take

    def _take_block(self, block: Paged) -> Take:
        """Master columns of rows of a block."""
        physical = self.reader.physical
        every = np.arange(len(physical), dtype=np.int64)

        def take(ids: Int64s, start: int, count: int, limit: int) -> list[pa.Array] | int:
            return take_paged(physical, block, ids, start, count, every, limit)

        return take

    def _mark_chunk(self, chunk: Chunk) -> Mark:
        def mark(ids: Int64s, count: int) -> Bools:
            first = np.empty(count, dtype=np.bool_)
            tuple_kernel.mark_ids(ids, count, chunk.matched, first)
            return first

        return mark

    def _emit_unmatched(self, take: Take, refs: Int64s, count: int) -> Iterator[pa.RecordBatch]:
        """Tuples that are finished and found nothing: output for left and anti joins, gone otherwise."""
        self.stats.unmatched += count
        if count == 0 or not self.spec.keeps_unmatched:
            return
        for _, _, arrays, _ in self._pieces(take, None, refs, refs, count):
            yield from self._with_nulls(arrays)

    def _probe_cache(self, cache: Cache, chunk: Chunk, scratch: Scratch) -> Generator[pa.RecordBatch, None, int]:
        """Stream-probing phase for one chunk: hits are finished; `scratch.misses` lists the others.

        The generator's return value is the number of misses (use `yield from`).
        """
        first_only = self._exact and not self.spec.carries_master
        scratch.found[: chunk.n_rows] = False
        cursor = np.zeros(3, dtype=np.int64)
        left, mark = self._take_chunk(chunk), self._mark_chunk(chunk)
        while cursor[0] < chunk.n_rows:
            count = cache.probe(
                chunk.codes,
                chunk.n_rows,
                cursor,
                scratch.left,
                scratch.right,
                scratch.found,
                scratch.misses,
                first_only,
            )
            yield from self._emit(left, cache.take, scratch.left, scratch.right, count, mark)
        missed = int(cursor[2])
        hits = chunk.n_rows - missed
        self.stats.cache_hits += hits
        self.stats.cache_misses += missed
        self.stats.finished += hits
        if hits and self.spec.how != "inner":
            lost = np.flatnonzero(scratch.found[: chunk.n_rows] & ~chunk.matched)
            yield from self._emit_unmatched(left, lost, len(lost))
        return missed
