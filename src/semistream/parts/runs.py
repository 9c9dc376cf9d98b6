"""Runs: all rows of a code, which stand side by side on R's pages, and all tuples that ask for it.

tuples -> TupleRuns (sorted by code) -> CodeRuns (pages of every code) -> where their rows are -> RunPairs
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from semistream.columns.rows import Paged, page_view
from semistream.columns.validity import Validity
from semistream.kernels import lookup as kernel
from semistream.kernels import validity as validity_kernel
from semistream.kernels import versions as versions_kernel
from semistream.master.base import PageBlock

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class TupleRuns:
    """Tuples by code: `codes` are distinct, those of `codes[u]` are `refs[offsets[u] : offsets[u + 1]]`."""

    def __init__(self, codes: Int64s, refs: Int64s, offsets: Int64s) -> None:
        self.codes, self.refs, self.offsets = codes, refs, offsets

    @staticmethod
    def of(codes: Int64s, refs: Int64s) -> TupleRuns:
        """Tuples with these codes, in any order, and what names them."""
        order = np.argsort(codes, kind="stable")
        distinct = np.empty(len(codes), dtype=np.int64)
        offsets = np.empty(len(codes) + 1, dtype=np.int64)
        count = int(kernel.distinct_runs(codes[order], distinct, offsets))
        return TupleRuns(distinct[:count], refs[order], offsets[: count + 1])

    def taken(self, runs: Int64s) -> TupleRuns:
        """Some of the runs, in another order."""
        lengths = self.offsets[runs + 1] - self.offsets[runs]
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        refs = self.refs[np.repeat(self.offsets[runs] - offsets[:-1], lengths) + np.arange(offsets[-1])]
        return TupleRuns(self.codes[runs], refs, offsets)

    def lengths(self, at: int, stop: int) -> Int64s:
        """Tuples of the runs at .. stop - 1."""
        return self.offsets[at + 1 : stop + 1] - self.offsets[at:stop]


class PageRanges:
    """Ranges of pages that do not decrease, to be read in groups."""

    def __init__(self, first: Int64s, last: Int64s) -> None:
        self.first, self.last = first, last

    def __len__(self) -> int:
        return len(self.first)

    def pages_from(self, at: int, pages: Int64s) -> tuple[int, int]:
        """Distinct pages of as many ranges from `at` on as fit the array: their number, and the range behind the last.

        Both say "nothing" when the first range alone has more pages.
        """
        stop = np.empty(1, dtype=np.int64)
        count = int(kernel.group_pages(self.first, self.last, at, len(self), pages, stop))
        return count, int(stop[0])

    def within(self, at: int, stop: int, page: int) -> int:
        """The range behind those from `at` on that need no page behind this one."""
        return int(np.searchsorted(self.last[at:stop], page, side="right")) + at


class CodeRuns(PageRanges):
    """Distinct codes in the order of their pages; and, once found, where their rows are.

    In a block that was searched, run u is `starts[u] .. ends[u]`; an empty one says that R lacks the code.
    """

    def __init__(self, codes: Int64s, first: Int64s, last: Int64s) -> None:
        super().__init__(first, last)
        self.codes = codes
        self.starts, self.ends = np.empty_like(codes), np.empty_like(codes)

    def find(self, at: int, stop: int, block: PageBlock, fences: Int64s, ordered: bool) -> None:
        """Where on the block's pages the rows of codes at .. stop - 1 begin and end.

        `fences` are the first codes of R's pages, whose rows stand in the order of their codes if `ordered`.
        """
        kernel.find_runs(
            self.codes,
            self.first,
            self.last,
            at,
            stop,
            page_view(block),
            block.rows,
            block.pages,
            ordered,
            fences,
            self.starts,
            self.ends,
        )


class RunPairs:
    """Pairs of the tuples and rows of runs at .. stop - 1; each `step` fills both arrays once."""

    def __init__(self, tuples: TupleRuns, runs: CodeRuns, at: int, stop: int, first_only: bool) -> None:
        self._stop = stop
        self._cursor = np.array([at, 0, -1], dtype=np.int64)
        self._tuples, self._runs, self._first_only = tuples, runs, first_only
        self._valid: tuple[Any, ...] | None = None

    def leave_out_invalid(self, validity: Validity, tuples: Paged, block: PageBlock) -> None:
        """Leave rows of the block out that were not valid at the time of their tuple."""
        self._valid = page_view(block), page_view(tuples), validity.time, validity.start, validity.end

    @property
    def unfinished(self) -> bool:
        return bool(self._cursor[0] < self._stop)

    def step(self, left: Int64s, right: Int64s) -> int:
        """The next pairs, as many as the arrays take; returns how many."""
        tuples, runs = self._tuples, self._runs
        arrays = (tuples.refs, tuples.offsets, self._stop, runs.starts, runs.ends, self._cursor, left, right)
        if self._valid is not None:
            return int(validity_kernel.expand_valid(*arrays, *self._valid))
        return int(kernel.expand_pairs(*arrays, self._first_only))


@dataclass(frozen=True, eq=False)
class Versions:
    """Rows of keys with a history that are worth a place in a cache: those that were asked for.

    Those of run r are `rows[stops[r - 1] : stops[r]]`: all that the key has if it `is_whole`; else each of them was
    asked for at its time in `times`, and is all that R has for the times at which it was valid.
    """

    rows: Int64s
    times: Int64s
    stops: Int64s
    is_whole: Bools

    @staticmethod
    def of(tuples: TupleRuns, runs: CodeRuns, some: Int64s, validity: Validity, form: Paged, block: Paged) -> Versions:
        """What the tuples of some runs, which stand in `form`, ask of their rows in a block."""
        lengths = runs.ends[some] - runs.starts[some]
        room = int(lengths.sum() + (tuples.offsets[some + 1] - tuples.offsets[some]).sum())
        rows, times = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64)
        stops, is_whole = np.zeros(len(some), dtype=np.int64), np.zeros(len(some), dtype=np.bool_)
        bounds = np.empty(2 * int(lengths.max(initial=0)), dtype=np.int64)
        history = page_view(block), page_view(form), validity.time, validity.start, validity.end
        found = (bounds, rows, is_whole, stops, times)
        versions_kernel.wanted_versions(some, tuples.refs, tuples.offsets, runs.starts, runs.ends, history, *found)
        count = int(stops[-1]) if len(stops) else 0
        return Versions(rows[:count], times[:count], stops, is_whole)
