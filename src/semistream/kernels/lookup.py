"""Looking sorted codes up in sorted pages, and pairing what was found."""

# mypy: disallow_untyped_defs=False
from __future__ import annotations

import numpy as np

from semistream.kernels.compiled import njit
from semistream.kernels.raw import load_i64
from semistream.kernels.rows import PAGES

#: rows of a code up to which its last one is looked for step by step
_SHORT_RUN = 16


@njit("int64(int64[::1], int64[::1], int64[::1])", cache=True, nogil=True)
def distinct_runs(codes, out_codes, out_offsets):
    """Distinct values of sorted codes; run u is `offsets[u]..offsets[u+1]`. Returns how many."""
    count = 0
    for i in range(codes.size):
        if i == 0 or codes[i] != codes[i - 1]:
            out_codes[count] = codes[i]
            out_offsets[count] = i
            count += 1
    out_offsets[count] = codes.size
    return count


@njit("int64(int64[::1], int64[::1], int64, int64, int64[::1], int64[::1])", cache=True, nogil=True)
def group_pages(first, last, start, stop, out_pages, result):
    """Distinct pages of the codes from `start` on, as many codes as have all their pages in the buffer.

    Page ranges must not decrease. result[0]: code after the last taken. Returns the number of pages; 0 when the
    first code alone has more pages than the buffer.
    """
    count = 0
    code = start
    while code < stop:
        begin = first[code]
        if count > 0 and begin <= out_pages[count - 1]:
            begin = out_pages[count - 1] + 1
        if count + last[code] - begin + 1 > out_pages.size:
            break
        for page in range(begin, last[code] + 1):
            out_pages[count] = page
            count += 1
        code += 1
    result[0] = code
    return count


@njit(nogil=True, inline="always")
def _bound(address, rows, code, upper):
    """First row of a page whose code is not less than `code` (or, with `upper`, greater)."""
    low = 0
    high = rows
    while low < high:
        middle = (low + high) >> 1
        value = load_i64(address + 8 * middle)
        if value < code or (upper and value == code):
            low = middle + 1
        else:
            high = middle
    return low


@njit(nogil=True, inline="always")
def _near_bound(address, rows, code, low_code, high_code):
    """As `_bound` (lower), from where the code would stand if codes were spread evenly between the page's fences."""
    span = np.float64(high_code) - np.float64(low_code)
    at = rows >> 1
    if span > 0.0:
        share = (np.float64(code) - np.float64(low_code)) / span
        at = np.int64(min(max(share, 0.0), 1.0) * (rows - 1))
    step = 4
    if load_i64(address + 8 * at) < code:
        low = at + 1
        high = min(low + step, rows)
        while high < rows and load_i64(address + 8 * (high - 1)) < code:
            low = high
            step *= 2
            high = min(low + step, rows)
    else:
        high = at
        low = max(high - step, 0)
        while low > 0 and load_i64(address + 8 * low) >= code:
            high = low
            step *= 2
            low = max(high - step, 0)
    while low < high:
        middle = (low + high) >> 1
        if load_i64(address + 8 * middle) < code:
            low = middle + 1
        else:
            high = middle
    return low


@njit(
    f"void(int64[::1], int64[::1], int64[::1], int64, int64, {PAGES}, int32[::1], int64[::1], boolean,"
    " int64[::1], int64[::1], int64[::1])",
    cache=True,
    nogil=True,
)
def find_runs(codes, first, last, start, stop, block, rows, pages, ordered, fences, out_start, out_end):
    """Block rows `out_start[u]..out_end[u]` of each code whose pages are in the block (equal when it is absent).

    `rows` are the rows on each page of the block, `pages` the numbers of its pages, sorted; `fences` the first code
    of every page, by which a search begins near its end. On a store in another order than the code's (`ordered`
    false) the page is searched row by row.
    """
    page_rows, base, kind, data, _, _, _ = block
    code_column = data.shape[1] - 1
    at = 0
    for u in range(start, stop):
        if u > start and first[u] < first[u - 1]:
            at = 0
        while at < pages.size and pages[at] < first[u]:
            at += 1
        out_start[u] = 0
        out_end[u] = 0
        found = False
        ordinal = at
        while ordinal < pages.size and pages[ordinal] <= last[u]:
            address = base[ordinal] + data[kind[ordinal], code_column]
            if ordered:
                page = pages[ordinal]
                if page + 1 < fences.size and fences[page] < fences[page + 1]:
                    low = _near_bound(address, rows[ordinal], codes[u], fences[page], fences[page + 1])
                else:
                    low = _bound(address, rows[ordinal], codes[u], False)
                high = low
                if low < rows[ordinal] and load_i64(address + 8 * low) == codes[u]:
                    high = low + 1
                    near = min(low + _SHORT_RUN, rows[ordinal])
                    while high < near and load_i64(address + 8 * high) == codes[u]:
                        high += 1
                    if high == low + _SHORT_RUN:
                        high = _bound(address, rows[ordinal], codes[u], True)
            else:
                low = 0
                while low < rows[ordinal] and load_i64(address + 8 * low) != codes[u]:
                    low += 1
                high = low
                while high < rows[ordinal] and load_i64(address + 8 * high) == codes[u]:
                    high += 1
            if high > low:
                if not found:
                    out_start[u] = ordinal * page_rows + low
                    found = True
                out_end[u] = ordinal * page_rows + high
            ordinal += 1


@njit(
    "int64(int64[::1], int64[::1], int64, int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], boolean)",
    cache=True,
    nogil=True,
)
def expand_pairs(ids, offsets, stop, starts, ends, cursor, out_ids, out_rows, first_only):
    """Pair the tuples of run u (`ids[offsets[u]..offsets[u+1]]`) with block rows `starts[u]..ends[u]`.

    `cursor`: run, tuple within `ids`, block row to go on with (-1: the run's first). Stops when the buffers are full.
    """
    filled = 0
    u = cursor[0]
    t = cursor[1]
    row = cursor[2]
    while u < stop:
        last = ends[u]
        if first_only and last > starts[u]:
            last = starts[u] + 1
        if t < offsets[u]:
            t = offsets[u]
        while t < offsets[u + 1] and last > starts[u]:
            if row < 0:
                row = starts[u]
            while row < last:
                if filled == out_ids.size:
                    cursor[0] = u
                    cursor[1] = t
                    cursor[2] = row
                    return filled
                out_ids[filled] = ids[t]
                out_rows[filled] = row
                filled += 1
                row += 1
            row = -1
            t += 1
        u += 1
    cursor[0] = u
    cursor[1] = t
    cursor[2] = -1
    return filled
