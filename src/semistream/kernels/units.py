"""Tuple by tuple, page by page: look-ups whose pages are already known.

A *unit* is one tuple and one of the pages its key's run stands on. Whatever order tuples come in, and however
many pages a run has, work in units needs no sorting and fits any buffer: a run longer than the buffer is just
more units.
"""

# mypy: disallow_untyped_defs=False
from __future__ import annotations

import numpy as np

from semistream.kernels.compiled import njit
from semistream.kernels.lookup import _bound
from semistream.kernels.pages import read_fully
from semistream.kernels.raw import copy_bytes, load_i64
from semistream.kernels.rows import PAGES


@njit(
    "int64(int64[::1], int64[::1], boolean[::1], int64, int64, int64, int64[::1], int64, int64[::1], int64[::1])",
    cache=True,
    nogil=True,
)
def page_units(first, last, wanted, stop, low, high, cursor, room, out_tuples, out_pages):
    """Units of the wanted tuples before `stop` with pages inside `low..high`, until there are `room` of them.

    `wanted` of length 0: every tuple. A tuple with first page -1 has none. `cursor`: tuple, page to go on
    with or -1.
    """
    count = 0
    tuple_ = cursor[0]
    page = cursor[1]
    while tuple_ < stop:
        if first[tuple_] >= 0 and (wanted.size == 0 or wanted[tuple_]):
            if page < 0:
                page = max(first[tuple_], low)
            end = min(last[tuple_], high)
            while page <= end:
                if count == room:
                    cursor[0] = tuple_
                    cursor[1] = page
                    return count
                out_tuples[count] = tuple_
                out_pages[count] = page
                count += 1
                page += 1
        page = -1
        tuple_ += 1
    cursor[0] = tuple_
    cursor[1] = -1
    return count


@njit(
    f"int64(int64[::1], int64[::1], int64[::1], int64[::1], int64, {PAGES}, int32[::1], boolean, boolean,"
    " int64[::1], int64[::1], int64[::1])",
    cache=True,
    nogil=True,
)
def pair_units(refs, codes, tuples, ordinals, count, pages, rows, ordered, first_only, cursor, out_refs, out_rows):
    """Pair the tuple of each unit, in order, with the rows of its code on the block's page `ordinals[unit]`.

    `cursor`: unit, row to go on with or -1, row after the run. Stops when the pair buffers are full. On pages
    in another order than the code's (`ordered` false) the page is searched row by row.
    """
    page_rows, base, kind, data, _, _, _ = pages
    code_column = data.shape[1] - 1
    filled = 0
    unit = cursor[0]
    row = cursor[1]
    end = cursor[2]
    while unit < count:
        ordinal = ordinals[unit]
        if row < 0:
            code = codes[tuples[unit]]
            address = base[ordinal] + data[kind[ordinal], code_column]
            if ordered:
                row = _bound(address, rows[ordinal], code, False)
            else:
                row = 0
                while row < rows[ordinal] and load_i64(address + 8 * row) != code:
                    row += 1
            end = row
            while end < rows[ordinal] and load_i64(address + 8 * end) == code:
                end += 1
                if first_only:
                    break
        while row < end:
            if filled == out_refs.size:
                cursor[0] = unit
                cursor[1] = row
                cursor[2] = end
                return filled
            out_refs[filled] = refs[tuples[unit]]
            out_rows[filled] = ordinal * page_rows + row
            filled += 1
            row += 1
        row = -1
        unit += 1
    cursor[0] = unit
    cursor[1] = -1
    cursor[2] = -1
    return filled


@njit(
    "void(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, int64[::1], int64, int64, int64,"
    " int64[::1], int64[::1])",
    cache=True,
    nogil=True,
)
def read_each(fds, borders, shifts, tuples, pages, count, starts, address, capacity, align, base, result):
    """Reads the page of every unit, shared or not, until the room is used up; a tuple's own pages in one go.

    Files and places of pages are those of `pages.read_pages`. `result`: units served, preads, bytes asked for, then
    -1 or the offset at which a read failed and of which file.
    """
    room = 0
    unit = 0
    result[0] = result[1] = result[2] = 0
    result[3] = -1
    while unit < count:
        file = np.searchsorted(borders, pages[unit], side="right") - 1
        shift = shifts[file]
        low = (starts[pages[unit]] - shift) // align * align
        end = starts[pages[unit] + 1] - shift
        size = (end + align - 1) // align * align - low
        if room + size > capacity:
            return
        after = unit + 1
        while after < count and tuples[after] == tuples[unit] and pages[after] < borders[file + 1]:
            wider = (starts[pages[after] + 1] - shift + align - 1) // align * align - low
            if room + wider > capacity:
                break
            size = wider
            end = starts[pages[after] + 1] - shift
            after += 1
        if room > 0 and after < count and tuples[after] == tuples[unit]:
            # An empty buffer takes more of this tuple's pages at once.
            return
        if not read_fully(fds[file], address + room, low, end, size, result):
            result[4] = file
            return
        for k in range(unit, after):
            base[k] = address + room + starts[pages[k]] - shift - low
        result[0] = after
        room += size
        unit = after


# ------------------------------------------------------------------------------------------ pages in memory


@njit(
    "int64(int64[::1], int64[::1], int64, int64, int32[::1], float32[::1], boolean[::1])",
    cache=True,
    nogil=True,
)
def find_resident(first, last, stop, group, directory, utility, resident):
    """Which tuples have all pages of their run in memory; each is a point for the group of its first page.

    A tuple without a page (first -1) is answered already. Returns how many are.
    """
    found = 0
    for i in range(stop):
        here = True
        for page in range(first[i], last[i] + 1):
            if page >= 0 and directory[page] < 0:
                here = False
                break
        resident[i] = here
        if here:
            found += 1
            if first[i] >= 0:
                utility[first[i] // group] += 1.0
    return found


#: pages side by side, the rows of each, and its number in R
NUMBERED = f"Tuple(({PAGES}, int32[::1], int64[::1]))"


@njit(
    f"void(int64[::1], int64[::1], int64[::1], {NUMBERED}, {NUMBERED}, int32[::1], int64, int64)",
    cache=True,
    nogil=True,
)
def store_pages(ordinals, frames, starts, block, cache, directory, memory, frame_bytes):
    """Copy pages of a block into frames, whatever these held before, and note where they are now.

    With `starts` of length 0 the pages are parts of an Arrow table: they are pointed at, not copied.
    """
    block_view, block_rows, block_pages = block
    _, block_base, block_kind, block_data, block_valid, block_offs, block_bit = block_view
    view, rows, pages = cache
    _, base, _, data, valid, offs, bit = view
    for i in range(ordinals.size):
        ordinal = ordinals[i]
        frame = frames[i]
        page = block_pages[ordinal]
        if pages[frame] >= 0:
            directory[pages[frame]] = -1
        base[frame] = block_base[ordinal]
        if starts.size > 0:
            base[frame] = memory + frame * frame_bytes
            copy_bytes(base[frame], block_base[ordinal], starts[page + 1] - starts[page])
        rows[frame] = block_rows[ordinal]
        kind = block_kind[ordinal]
        for c in range(data.shape[1]):
            data[frame, c] = block_data[kind, c]
            valid[frame, c] = block_valid[kind, c]
            offs[frame, c] = block_offs[kind, c]
            bit[frame, c] = block_bit[kind, c]
        pages[frame] = page
        directory[page] = frame
