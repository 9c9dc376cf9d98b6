"""Rows in the order of their pairs, unmatched tuples in their place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.keys import equal_keys
from semistream.columns.rows import INT32_MAX, Paged, RowLayout
from semistream.engine.output import Output, Rows, Taken, Tuples
from semistream.parts.queue import NO_ROW, Listing

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class FlaggedTuples(Tuples, Protocol):
    """Tuples that can also say whether they have matched."""

    def matched(self, ids: Int64s, /) -> Bools:
        """Which of these have."""


class _RealRows:
    """Rows of those pairs that have one."""

    def __init__(self, rows: Rows, real: Bools) -> None:
        self._rows, self._real = rows, real

    @property
    def form(self) -> Paged | RowLayout:
        return self._rows.form

    def take(self, ids: Int64s, start: int, count: int, limit: int = INT32_MAX) -> Taken:
        where = np.flatnonzero(self._real[start : start + count])
        found = self._rows.take(ids[start + where], 0, len(where), limit)
        return int(where[found - 1]) + 1 if isinstance(found, int) else found


class OrderedOutput:
    """Builds rows as they are listed, none before another."""

    def __init__(self, output: Output, listing: Listing) -> None:
        self._output, self._listing = output, listing

    def pairs(
        self, tuples: FlaggedTuples, rows: Rows, left: Int64s, right: Int64s, count: int
    ) -> Iterator[pa.RecordBatch]:
        """Rows of the pairs in their order; a pair with NO_ROW is the tuple as it is unmatched.

        Where times decide, each pair has a row that was valid at the tuple's time.
        """
        if count == 0:
            return
        left, right = left[:count], right[:count]
        real = right != NO_ROW if self._listing.has_unmatched else np.ones(count, dtype=np.bool_)
        carried = None if self._output.leaves_rows else _RealRows(rows, real)
        for start, size, lefts, rights in self._output.pieces(tuples, carried, left, right, count):
            stop = start + size
            yield from self._piece(tuples, left[start:stop], real[start:stop], lefts, rights)

    def _piece(
        self, tuples: FlaggedTuples, ids: Int64s, real: Bools, lefts: list[pa.Array], rights: list[pa.Array]
    ) -> Iterator[pa.RecordBatch]:
        """Rows of a piece; `rights` holds the real rows only."""
        output, keep = self._output, None
        if not output.sides.exact:
            keep = self._confirmed(tuples, ids, real, lefts, rights)
            lefts = [array.filter(pa.array(keep)) for array in lefts]
        rights = rights[: output.sides.selected]
        if rights and (keep is not None or not real.all()):
            rights = _spread(rights, keep, real if self._listing.has_unmatched else None)
        kept = real if keep is None else real[keep]
        output.stats.unmatched += int(len(kept) - np.count_nonzero(kept))
        if output.spec.apart and not kept.all():
            alone = pa.array(~kept)
            yield from output.with_nulls([array.filter(alone) for array in lefts])
            matched = pa.array(kept)
            lefts, rights = ([array.filter(matched) for array in side] for side in (lefts, rights))
            kept = kept[kept]
        if len(kept):
            yield from output.built(lefts, rights)

    def _confirmed(
        self, tuples: FlaggedTuples, ids: Int64s, real: Bools, lefts: list[pa.Array], rights: list[pa.Array]
    ) -> Bools:
        """Which rows stay, once the true keys of hashed matches are compared."""
        sides, how = self._output.sides, self._output.spec.how
        keys = [lefts[i] for i in sides.stream_keys]
        if not real.all():
            keys = [array.filter(pa.array(real)) for array in keys]
        same = equal_keys(keys, [rights[i] for i in sides.master_keys])
        keep = np.zeros(len(ids), dtype=np.bool_)
        where = np.flatnonzero(real)[same]
        if how != "inner":
            first = tuples.mark(np.ascontiguousarray(ids[where]), len(where))
            if how == "semi":
                where = where[first]
        if how != "anti":
            keep[where] = True
        alone = np.flatnonzero(~real)
        if len(alone):
            keep[alone] = ~tuples.matched(np.ascontiguousarray(ids[alone]))
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
