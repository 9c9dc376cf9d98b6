"""Groups of pages: every range whole, no page twice, never more than fit."""

from __future__ import annotations

import numpy as np

from semistream.parts.runs import PageRanges

FIRST = np.array([0, 2, 3, 3, 7, 8])
LAST = np.array([1, 3, 3, 5, 7, 20])


def test_ranges_share_pages_and_stay_whole() -> None:
    ranges, pages = PageRanges(FIRST, LAST), np.empty(5, dtype=np.int64)
    count, stop = ranges.pages_from(0, pages)
    assert (pages[:count].tolist(), stop) == ([0, 1, 2, 3], 3)
    count, stop = ranges.pages_from(stop, pages)
    assert (pages[:count].tolist(), stop) == ([3, 4, 5, 7], 5)


def test_a_range_that_fits_no_group_is_named() -> None:
    assert PageRanges(FIRST, LAST).pages_from(5, np.empty(5, dtype=np.int64)) == (0, 5)


def test_ranges_of_a_group_cut_short() -> None:
    ranges = PageRanges(FIRST, LAST)
    assert ranges.pages_from(0, np.empty(100, dtype=np.int64))[1] == 6
    assert [ranges.within(0, 6, page) for page in (0, 1, 3, 6, 20)] == [0, 1, 3, 4, 6]
