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

        def of_real(rows: Int64s, start: int, size: int, limit: int) -> list[pa.Array] | int:
            where = np.flatnonzero(real[start : start + size])
            found = right(rows[start + where], 0, len(where), limit)
            return int(where[found - 1]) + 1 if isinstance(found, int) else found

        carries = how in ("inner", "left") or not self._exact
        for start, size, lefts, rights in self._pieces(batch.take, of_real if carries else None, a, b, count):
            yield from self._emit_ordered_piece(
                batch, lefts, rights, a[start : start + size], real[start : start + size]
            )

    def _emit_ordered_piece(
        self, batch: Batch, lefts: list[pa.Array], rights: list[pa.Array], a: Int64s, real: Bools
    ) -> Iterator[pa.RecordBatch]:
        """Rows of a piece; `rights` holds the real rows only."""
        keep = None
        if not self._exact:
            keep = self._confirmed(batch, a, real, lefts, rights)
            lefts = [array.filter(pa.array(keep)) for array in lefts]
        rights = rights[: len(self._select)]
        if rights and (keep is not None or not real.all()):
            rights = _spread(rights, keep, real if self._last else None)
        kept = real if keep is None else real[keep]
        self.stats.unmatched += int(len(kept) - np.count_nonzero(kept))
        if len(kept):
            yield from self._built(lefts, rights)

    def _confirmed(self, batch: Batch, a: Int64s, real: Bools, lefts: list[pa.Array], rights: list[pa.Array]) -> Bools:
        """Which rows stay, now that the true keys of hashed matches are compared."""
        how = self.spec.how
        keys = [lefts[i] for i in self._key_at]
        if not real.all():
            keys = [array.filter(pa.array(real)) for array in keys]
        same = equal_keys(keys, [rights[i] for i in self._master_keys])
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
