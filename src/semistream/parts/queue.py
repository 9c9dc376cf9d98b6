"""A queue of waiting tuples that are answered from the cache, strictly in the order in which they came."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from semistream.columns.rows import RowLayout
from semistream.columns.validity import AsOf
from semistream.kernels import validity
from semistream.kernels import waiting as kernel
from semistream.kernels.raw import peek_i64
from semistream.parts.arena import Arena
from semistream.parts.cache import Cache
from semistream.parts.waiting import WaitingArea
from semistream.spec import JoinSpec

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: a pair's row where a tuple is listed as it is without a match
NO_ROW = kernel.NO_ROW
ALL_ROWS = int(np.iinfo(np.int64).max)
NO_NULLS = np.empty(0, dtype=np.bool_)


@dataclass(frozen=True)
class Asking:
    """Tuples to be answered in order: what names them, their codes, and which have a null key (of length 0: none)."""

    refs: Int64s
    codes: Int64s
    null: Bools
    count: int
    #: the tuples' times, if they decide which rows of a key a tuple meets
    as_of: AsOf | None = None


@dataclass(frozen=True)
class Listing:
    """With how many rows a tuple is listed at most, and when once more without one, to come out unmatched."""

    most_rows: int
    last: int

    @staticmethod
    def of(spec: JoinSpec, exact: bool) -> Listing:
        """As a join asks for; `exact`: equal codes are equal keys."""
        most_rows = ALL_ROWS
        if exact and not spec.carries_master:
            most_rows = 1 if spec.how == "semi" else 0
        last = kernel.ONLY_IF_ALONE if exact else kernel.ALWAYS_LAST
        return Listing(most_rows, last if spec.keeps_unmatched else 0)

    @property
    def has_unmatched(self) -> bool:
        """Whether tuples may be listed without a row at all."""
        return self.last != 0

    def ends_unmatched(self, found: int) -> bool:
        """Whether a tuple with that many rows is listed once more without one."""
        return self.last == kernel.ALWAYS_LAST or (self.last == kernel.ONLY_IF_ALONE and found == 0)


class Answers:
    """Pairs of tuples and cached rows, in order, up to the first tuple that the cache cannot answer."""

    def __init__(self, cache: Cache, asking: Asking, listing: Listing) -> None:
        self._cursor = np.zeros(4, dtype=np.int64)
        self._count, self._as_of, self._layout = asking.count, asking.as_of, cache.layout
        self._arguments = (
            asking.refs,
            asking.codes,
            asking.null,
            asking.count,
            cache.entries,
            cache.arena.state,
            listing.most_rows,
            listing.last,
            self._cursor,
        )

    @property
    def unfinished(self) -> bool:
        return bool(self._cursor[0] < self._count and not self._cursor[2])

    @property
    def done(self) -> int:
        """Tuples that were answered."""
        return int(self._cursor[0])

    def step(self, left: Int64s, right: Int64s) -> int:
        """The next pairs, as many as the arrays take; returns how many."""
        if self._as_of is not None:
            bounds = self._as_of.validity.packed(self._layout)
            return int(validity.answer_valid(*self._arguments, left, right, self._as_of.times, *bounds))
        return int(kernel.answer_pairs(*self._arguments, left, right))


def answered_prefix(cache: Cache, asking: Asking) -> int:
    """How many of the first tuples the cache answers."""
    return int(kernel.answered_prefix(asking.codes, asking.null, asking.count, cache.entries))


class WaitingQueue(WaitingArea):
    """One list of tuples, in arrival order. With `null_keys` there are tuples that match nothing among them."""

    HEADER = kernel.QUEUE_HEADER

    def __init__(self, arena: Arena, layout: RowLayout, null_keys: bool) -> None:
        super().__init__(arena, layout)
        self._null_flag = layout.flag_at if null_keys else 0
        self._only = np.zeros(1, dtype=np.int64)
        self._after_front = 0

    def mark_null_keys(self, slots: Int64s, null: Bools) -> None:
        """Of tuples that have just come, note those with a null key."""
        kernel.mark_null_keys(slots, len(slots), null, self._null_flag)

    def null_keys(self, slots: Int64s, out: Bools) -> Bools:
        """Which of these tuples have a null key."""
        if not self._null_flag:
            return NO_NULLS
        kernel.read_null_keys(slots, len(slots), self._null_flag, out)
        return out[: len(slots)]

    @property
    def front_code(self) -> int:
        """Code of the oldest tuple."""
        return int(peek_i64(self.head()))

    def uncached(self, cache: Cache, most: int, codes: Int64s) -> tuple[int, int]:
        """Codes of the tuples at the front that the cache lacks: their number, and that of the tuples."""
        walked = np.zeros(1, dtype=np.int64)
        missing = kernel.uncached_codes(
            self.head(), self.arena.state, cache.entries, self._null_flag, most, codes, walked
        )
        return int(missing), int(walked[0])

    def front(self, slots: Int64s, codes: Int64s) -> int:
        """The oldest tuples, as many as `slots` takes; returns how many."""
        cursor = np.zeros(2, dtype=np.int64)
        count = self.collect(self._only, cursor, slots, codes)
        self._after_front = int(cursor[1])
        return count

    def leave(self, slots: Int64s, count: int) -> None:
        """Of the tuples that `front` gave as `slots`, the first ones are done."""
        self.cut(self._after_front if count == len(slots) else int(slots[count]), count)
        self.free(slots, count)
