"""Tuple by tuple, page by page: units of look-ups whose pages are known, and the pairs that they give.

A *unit* is one tuple and one of the pages that its key's run stands on (see `kernels/units.py`).

    UnitList.step -> tuples and pages of the next units -> where these pages are -> UnitPairs.step -> pairs
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from semistream.columns.rows import Paged, page_view
from semistream.kernels import units as kernel

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

EVERY = np.empty(0, dtype=np.bool_)
LAST_PAGE = int(np.iinfo(np.int64).max)


class CodedPages(Paged, Protocol):
    """Pages in memory whose rows can be searched by their codes: a block, or a cache of pages."""

    #: rows on each page
    rows: Int32s


@dataclass(frozen=True)
class Asked:
    """Tuples that are looked up: what names each in a pair, its code, and the first and last page of its key."""

    refs: Int64s
    codes: Int64s
    first: Int64s
    last: Int64s
    count: int


class UnitList:
    """Units of the wanted tuples (of length 0: all of them) with pages inside `low..high`, a few with every step."""

    def __init__(self, asked: Asked, wanted: Bools = EVERY, low: int = 0, high: int = LAST_PAGE) -> None:
        self._asked, self._wanted = asked, wanted
        self._low, self._high = low, high
        self._cursor = np.array([0, -1], dtype=np.int64)

    @property
    def unfinished(self) -> bool:
        return bool(self._cursor[0] < self._asked.count)

    def step(self, room: int, tuples: Int64s, pages: Int64s) -> int:
        """The next units, `room` of them at most; returns how many."""
        asked = self._asked
        return int(
            kernel.page_units(
                asked.first,
                asked.last,
                self._wanted,
                asked.count,
                self._low,
                self._high,
                self._cursor,
                room,
                tuples,
                pages,
            )
        )


class UnitPairs:
    """Pairs of units, in their order, with the rows of their codes on page `ordinals[unit]` of a block.

    `ordered` says that the rows of a page stand in the order of their codes; `first_only` that one row is enough.
    """

    def __init__(
        self,
        asked: Asked,
        tuples: Int64s,
        ordinals: Int64s,
        block: CodedPages,
        *,
        ordered: bool,
        first_only: bool,
    ) -> None:
        self._cursor = np.array([0, -1, -1], dtype=np.int64)
        self._units = len(ordinals)
        self._arguments = (
            asked.refs,
            asked.codes,
            tuples,
            ordinals,
            self._units,
            page_view(block),
            block.rows,
            ordered,
            first_only,
            self._cursor,
        )

    @property
    def unfinished(self) -> bool:
        return bool(self._cursor[0] < self._units)

    def step(self, left: Int64s, right: Int64s) -> int:
        """The next pairs, as many as the arrays take; returns how many."""
        return int(kernel.pair_units(*self._arguments, left, right))
