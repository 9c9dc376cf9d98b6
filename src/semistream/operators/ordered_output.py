"""Rows in the order of their pairs, unmatched tuples in their place: what ORDEREDJOIN builds instead of `_emit`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.keys import equal_keys
from semistream.kernels import waiting as kernel
from semistream.operators.lookup import LookupJoin
from semistream.operators.output import Mark, Take

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Flags = Callable[[Int64s], Bools]


@dataclass
class Batch:
    """Tuples to be answered in order: what names them, their codes, how columns and flags are reached."""

    refs: Int64s
    codes: Int64s
    null: Bools
    n_rows: int
    take: Take
    mark: Mark
    matched: Flags


class OrderedOutput(LookupJoin):
    """A join by look-ups whose pairs come out as they are listed, none before another."""

    #: when a tuple is listed once more without a row, to come out unmatched: never (0), or as the kernel names it
    _last: int

    def _emit_in_order(self, batch: Batch, right: Take, a: Int64s, b: Int64s, count: int) -> Iterator[pa.RecordBatch]:
        """Rows of the pairs `a[i]`, `b[i]` in their order; `b[i]` NO_ROW is the tuple as it is unmatched."""
        if count == 0:
            return
        how = self.spec.how
        a, b = a[:count], b[:count]
        real = np.ones(count, dtype=np.bool_) if self._last == 0 else b != kernel.NO_ROW
        all_real = bool(real.all())
        lefts = batch.take(a, 0, count)
        rights: list[pa.Array] | None = []
        if how in ("inner", "left") or not self._exact:
            rows = b if all_real else b[real]
            rights = right(rows, 0, len(rows))
        if lefts is None or rights is None:
            half = count // 2
            yield from self._emit_in_order(batch, right, a[:half].copy(), b[:half].copy(), half)
            yield from self._emit_in_order(batch, right, a[half:].copy(), b[half:].copy(), count - half)
            return
        keep = None
        if not self._exact:
            keep = self._confirmed(batch, a, real, lefts, rights)
            real, lefts = real[keep], [array.filter(pa.array(keep)) for array in lefts]
        if how in ("inner", "left"):
            rights = rights[: len(self._select)]
            if keep is not None or not all_real:
                rights = _spread(rights, keep, b != kernel.NO_ROW if self._last else None)
        self.stats.unmatched += int(len(real) - np.count_nonzero(real))
        columns = self._stream.decode(lefts)
        if how in ("inner", "left"):
            for column, array in zip(self.reader.physical.columns, rights, strict=False):
                columns.append(column.to_logical(array))
        if len(real):
            yield pa.RecordBatch.from_arrays(columns, schema=self.output_schema)

    def _confirmed(self, batch: Batch, a: Int64s, real: Bools, lefts: list[pa.Array], rights: list[pa.Array]) -> Bools:
        """Which rows stay, now that the true keys of hashed matches are compared."""
        how = self.spec.how
        keys = self._decoded_keys(self._stream, lefts, self._key_at)
        if not real.all():
            keys = [array.filter(pa.array(real)) for array in keys]
        same = equal_keys(keys, self._decoded_keys(self.reader.physical, rights, self._master_keys))
        keep = np.zeros(len(a), dtype=np.bool_)
        where = np.flatnonzero(real)[same]
        if how != "inner":
            first = batch.mark(np.ascontiguousarray(a[where]), len(where))
            if how == "semi":
                where = where[first]
        if how != "anti":
            keep[where] = True
        alone = np.flatnonzero(~real)
        if len(alone):
            keep[alone] = ~batch.matched(np.ascontiguousarray(a[alone]))
        return keep


def _spread(arrays: list[pa.Array], keep: Bools | None, real: Bools | None) -> list[pa.Array]:
    """Arrays that hold the real rows only, at the places of all kept rows: null where no real row stands."""
    if real is None:
        return [array.filter(pa.array(keep)) for array in arrays]
    places = np.cumsum(real) - 1
    missing = ~real
    if keep is not None:
        places, missing = places[keep], missing[keep]
    indices = pa.array(places, mask=missing)
    return [array.take(indices) for array in arrays]
