"""Pairs in, record batches out: the half of every join that is the same for all algorithms.

An algorithm finds pairs of a stream tuple and a master row, and says how to take the columns of each (`Take`). Here
hashed matches are confirmed on the true key columns, `how` decides which rows survive, and the output columns are
built.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.keys import equal_keys
from semistream.columns.physical import PhysicalSchema
from semistream.columns.rows import Paged, take_paged
from semistream.kernels import tuples as tuple_kernel
from semistream.master.base import Master, PageReader
from semistream.operators.chunk import Chunk, JoinStats, Scratch
from semistream.parts.cache import Cache
from semistream.spec import JoinSpec

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Take = Callable[[Int64s, int, int], "list[pa.Array] | None"]
Mark = Callable[[Int64s, int], Bools]


class JoinOutput(ABC):
    """Builds the rows of a join; what it needs to know of the two sides is set by `SemiStreamJoin`."""

    master: Master
    spec: JoinSpec
    reader: PageReader
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
        lefts = left(a, 0, count)
        rights = right(b, 0, count) if how in ("inner", "left") or not self._exact else []
        if lefts is None or rights is None:
            half = count // 2
            yield from self._emit(left, right, a[:half].copy(), b[:half].copy(), half, mark)
            yield from self._emit(left, right, a[half:count].copy(), b[half:count].copy(), count - half, mark)
            return
        if not self._exact:
            same = equal_keys(
                self._decoded_keys(self._stream, lefts, self._key_at),
                self._decoded_keys(self.reader.physical, rights, self._master_keys),
            )
            if not same.all():
                keep = pa.array(same)
                lefts = [array.filter(keep) for array in lefts]
                rights = [array.filter(keep) for array in rights]
                a = a[:count][same]
                count = len(a)
                if count == 0:
                    return
        if how != "inner":
            first = mark(a, count)
            if how == "anti":
                return
            if how == "semi" and not first.all():
                keep = pa.array(first)
                lefts = [array.filter(keep) for array in lefts]
        columns = self._stream.decode(lefts)
        if self._select:
            for column, array in zip(self.reader.physical.columns, rights[: len(self._select)], strict=False):
                columns.append(column.to_logical(array))
        yield pa.RecordBatch.from_arrays(columns, schema=self.output_schema)

    @staticmethod
    def _decoded_keys(physical: PhysicalSchema, arrays: list[pa.Array], at: list[int]) -> list[pa.Array]:
        return [physical.columns[i].to_logical(arrays[i]) for i in at]

    def _with_nulls(self, columns: list[pa.Array]) -> pa.RecordBatch:
        """Stream columns (logical) of tuples without a match, master columns null."""
        rows = len(columns[0]) if columns else 0
        nulls = [pa.nulls(rows, self.master.schema.field(name).type) for name in self._select]
        return pa.RecordBatch.from_arrays([*columns, *nulls], schema=self.output_schema)

    def _take_chunk(self, chunk: Chunk) -> Take:
        """Stream columns of tuples of a chunk."""

        def take(ids: Int64s, start: int, count: int) -> list[pa.Array] | None:
            return take_paged(self._stream, chunk.columns, ids, start, count, self._every_column)

        return take

    def _take_block(self, block: Paged) -> Take:
        """Master columns of rows of a block."""
        physical = self.reader.physical
        every = np.arange(len(physical), dtype=np.int64)

        def take(ids: Int64s, start: int, count: int) -> list[pa.Array] | None:
            return take_paged(physical, block, ids, start, count, every)

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
        arrays = take(refs, 0, count)
        if arrays is None:
            half = count // 2
            self.stats.unmatched -= count
            yield from self._emit_unmatched(take, refs[:half].copy(), half)
            yield from self._emit_unmatched(take, refs[half:count].copy(), count - half)
            return
        yield self._with_nulls(self._stream.decode(arrays))

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
