"""As-of joins: of the rows of a key those that were valid at the time of the stream tuple.

    start <= time < end        a null start: since ever; a null end: still; a null time: never

The three columns are all integers, all points of local time (dates, and timestamps without a zone), or all instants
(timestamps with a zone, whichever). Their units may differ, and are compared exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.plain import plain_type
from semistream.columns.rows import Paged, RowLayout, page_view
from semistream.errors import SchemaError
from semistream.kernels import validity as kernel

Int64s = npt.NDArray[np.int64]
PagedClock = tuple[int, int, int, int]
PackedClock = tuple[int, int, int, int, int, int]

#: pairs that are looked at together: their times stay in the processor's cache
_TILE = 4096
_NS_PER_UNIT = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_NS_PER_DAY = 86_400 * 1_000_000_000
_INTEGER, _LOCAL, _INSTANT = "integers", "local times without a zone", "instants with a time zone"


@dataclass(frozen=True)
class Clock:
    """How a column tells time."""

    name: str
    kind: pa.DataType
    #: what its values are; only alike ones can be compared
    family: str
    #: nanoseconds of a tick, 1 for integers
    tick: int
    #: bytes of a value, negative if it has no sign
    width: int

    @staticmethod
    def of(column: pa.Field, owner: str) -> Clock:
        """The clock of a column; refuses one that tells no time."""
        kind = plain_type(column.type)
        if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
            width = kind.bit_width // 8
            return Clock(column.name, column.type, _INTEGER, 1, width if pa.types.is_signed_integer(kind) else -width)
        if pa.types.is_date32(kind):
            return Clock(column.name, column.type, _LOCAL, _NS_PER_DAY, 4)
        if pa.types.is_date64(kind):
            return Clock(column.name, column.type, _LOCAL, _NS_PER_UNIT["ms"], 8)
        if pa.types.is_timestamp(kind):
            family = _LOCAL if kind.tz is None else _INSTANT
            return Clock(column.name, column.type, family, _NS_PER_UNIT[kind.unit], 8)
        raise SchemaError(
            f"column {column.name!r} of {owner} has type {column.type}, which tells no time for an as-of join; allowed "
            "are timestamps, dates and integers (but for uint64): cast it"
        )


def _divisors(time: Clock, bound: Clock) -> tuple[int, int]:
    """By what times and bounds are divided to be compared; the finer of the two alone by more than 1."""
    if time.family != bound.family:
        raise SchemaError(
            f"as_of={time.name!r} of the stream has type {time.kind} and {bound.name!r} of the master data has type "
            f"{bound.kind}: {time.family} cannot be compared with {bound.family}. Cast one of them so that both are "
            "the same: integers, dates and timestamps without a zone, or timestamps with one"
        )
    return max(bound.tick // time.tick, 1), max(time.tick // bound.tick, 1)


def check_times(time: pa.Field, bounds: Sequence[pa.Field]) -> None:
    """Refuses columns that cannot be compared, before any data is read."""
    clock = Clock.of(time, "the stream")
    for column in bounds:
        _divisors(clock, Clock.of(column, "the master data"))


@dataclass(frozen=True)
class Validity:
    """Which rows of R, as they are read, were valid at the time of a tuple; clocks as kernels take them."""

    #: `kernels.validity.CLOCK` of the stream's time, and of both bounds among the columns of R that are read
    time: PagedClock
    start: PagedClock
    end: PagedClock

    @staticmethod
    def between(
        stream: pa.Schema, time: str, master: pa.Schema, bounds: Sequence[str], read: Sequence[str]
    ) -> Validity:
        """By columns of these names; `read` are those of R that are read."""
        clock = Clock.of(stream.field(time), "the stream")
        made = []
        for name in bounds:
            bound = Clock.of(master.field(name), "the master data")
            of_time, of_bound = _divisors(clock, bound)
            made.append((read.index(name), bound.width, of_bound, of_time))
        start, end = made
        return Validity((stream.get_field_index(time), clock.width, 1, 1), start, end)

    @property
    def has_one_unit(self) -> bool:
        """Whether both bounds are compared with times in the same unit, and so may be compared with each other."""
        return self.start[3] == self.end[3]

    def packed(self, layout: RowLayout) -> tuple[PackedClock, PackedClock]:
        """The bounds in packed rows: `kernels.validity.PACKED_CLOCK`."""

        def clock(bound: PagedClock) -> PackedClock:
            at, nulls = bound[0], layout.header + layout.nulls_at
            return layout.header + int(layout.cells[at]), *bound[1:], nulls, int(layout.null_bits[at])

        return clock(self.start), clock(self.end)

    def asked(self, tuples: Paged | RowLayout, ids: Int64s, count: int) -> AsOf:
        """The times of tuples `ids[:count]`; `tuples` says how they stand in memory."""
        times = np.empty(count, dtype=np.int64)
        self._read_times(tuples, ids, 0, count, times)
        return AsOf(self, times)

    def _read_times(self, tuples: Paged | RowLayout, ids: Int64s, first: int, count: int, out: Int64s) -> None:
        at, width, _, _ = self.time
        if isinstance(tuples, RowLayout):
            kernel.times_rows(ids, first, count, tuples.header + int(tuples.cells[at]), width, out)
        else:
            kernel.times_paged(ids, first, count, page_view(tuples), at, width, out)

    def keep(self, tuples: Paged | RowLayout, rows: Paged | RowLayout, left: Int64s, right: Int64s, count: int) -> int:
        """Bring the pairs of a tuple and a row valid at its time to the front, in their order; returns how many."""
        times = np.empty(min(count, _TILE), dtype=np.int64)
        kept = 0
        for first in range(0, count, _TILE):
            some = min(_TILE, count - first)
            self._read_times(tuples, left, first, some, times)
            pairs = times, first, some, left, right, kept
            if isinstance(rows, RowLayout):
                kept = int(kernel.keep_valid_rows(*pairs, *self.packed(rows)))
            else:
                kept = int(kernel.keep_valid_paged(*pairs, page_view(rows), self.start, self.end))
        return kept


@dataclass(frozen=True, eq=False)
class AsOf:
    """The times of tuples that ask for rows: of their keys' rows they meet those that were valid then."""

    validity: Validity
    times: Int64s
