"""Which pairs of a stream tuple and a master row belong together in time: start <= time < end.

Times may count in different units. A value is divided by what its unit has in the other one, the finer of the two by
more than 1: times are rounded down and bounds up, which changes no comparison and cannot overflow. A null start lies
before all times, a null end behind them; times are not null, for such tuples are set aside before.

Helpers take numbers and no arrays, which would be reference-counted for every row. Which of a key's rows was valid
nobody can foresee, so that no branch depends on it: a pair is written, and stays if it counts.
"""

# mypy: disallow_untyped_defs=False
from __future__ import annotations

import numpy as np

from semistream.kernels.arena import A_BASE, A_SHIFT
from semistream.kernels.cache import PROBE_TILE, SOME, count_request, find_key, find_tile
from semistream.kernels.compiled import njit
from semistream.kernels.raw import (
    address_of,
    get_bit,
    load_i8,
    load_i16,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    prefetch,
)
from semistream.kernels.rows import NIL, PAGES
from semistream.kernels.waiting import ALWAYS_LAST, NO_ROW, ONLY_IF_ALONE

#: how kernels are given a time or a bound of rows in paged columns: its column, its width (negative: without a sign),
#: by what it is divided, and by what a time is that is compared with it
CLOCK = "UniTuple(int64, 4)"
#: the same of packed rows: where its cell is, its width, both divisors, where null bits are, and which is its own or -1
PACKED_CLOCK = "UniTuple(int64, 6)"

#: rows per key that are fetched before any is looked at, and runs of rows in pages that are
_FETCHED_ROWS, _FETCHED_RUNS = 8, 32


@njit(nogil=True, inline="always")
def load_number(address, width):
    """An integer of that many bytes; a negative width says that it has no sign."""
    if width == 8:
        value = load_i64(address)
    elif width == 4:
        value = load_i32(address)
    elif width == 2:
        value = load_i16(address)
    elif width == 1:
        value = load_i8(address)
    elif width == -4:
        value = load_u32(address)
    elif width == -2:
        value = load_u16(address)
    else:
        value = load_u8(address)
    return value


@njit(nogil=True, inline="always")
def load_bound(address, width, divisor):
    """A bound, rounded up."""
    value = load_number(address, width)
    if divisor != 1:
        quotient = value // divisor
        # Near the least number the product may overflow, and it is not equal then either.
        value = quotient if quotient * divisor == value else quotient + 1
    return value


@njit(nogil=True, inline="always")
def rounded_down(value, divisor):
    quotient = value
    if divisor != 1:
        quotient = value // divisor
    return quotient


@njit(f"void(int64[::1], int64, int64, {PAGES}, int64, int64, int64[::1])", cache=True, nogil=True)
def times_paged(ids, first, count, pages, column, width, out):
    """The times of tuples `ids[first : first + count]` in paged columns."""
    page_rows, base, kind, data, _, _, _ = pages
    size = abs(width)
    for i in range(count):
        row = ids[first + i]
        page = 0 if base.size == 1 else row // page_rows
        out[i] = load_number(base[page] + data[kind[page], column] + (row - page * page_rows) * size, width)


@njit("void(int64[::1], int64, int64, int64, int64, int64[::1])", cache=True, nogil=True)
def times_rows(slots, first, count, cell, width, out):
    """The same of packed tuples."""
    for i in range(count):
        out[i] = load_number(slots[first + i] + cell, width)


@njit(
    f"int64(int64[::1], int64, int64, int64[::1], int64[::1], int64, {PAGES}, {CLOCK}, {CLOCK})",
    cache=True,
    nogil=True,
)
def keep_valid_paged(times, first, count, left, right, kept, pages, start, end):
    """Move those of `count` pairs from `first` on that belong together to `kept`; returns the end of these.

    `times` are those of the pairs' tuples. A pair without a row stays.
    """
    page_rows, base, kind, data, valid, _, bit = pages
    start_column, start_width, start_divisor, start_times = start
    end_column, end_width, end_divisor, end_times = end
    page, begin = 0, 0
    for i in range(count):
        row = right[first + i]
        ok = np.int64(1)
        if row != NO_ROW:
            # Most rows stand on the page of the one before, and a division costs more than all the rest.
            if base.size > 1 and not 0 <= row - begin < page_rows:
                page = row // page_rows
                begin = page * page_rows
            at, here, layout = row - begin, base[page], kind[page]
            bound = load_bound(here + data[layout, start_column] + at * abs(start_width), start_width, start_divisor)
            begun = np.int64(bound <= rounded_down(times[i], start_times))
            bound = load_bound(here + data[layout, end_column] + at * abs(end_width), end_width, end_divisor)
            goes_on = np.int64(rounded_down(times[i], end_times) < bound)
            if valid[layout, start_column] >= 0:
                begun |= 1 - get_bit(here + valid[layout, start_column], at + bit[layout, start_column])
            if valid[layout, end_column] >= 0:
                goes_on |= 1 - get_bit(here + valid[layout, end_column], at + bit[layout, end_column])
            ok = begun & goes_on
        left[kept] = left[first + i]
        right[kept] = row
        kept += ok
    return kept


@njit(nogil=True, inline="always")
def packed_is_valid(row, after, before, start, end):
    """1 if a packed row has begun at `after` and has not ended at `before`, the tuple's time in either unit, else 0."""
    start_cell, start_width, start_divisor, _, start_nulls, start_null = start
    end_cell, end_width, end_divisor, _, end_nulls, end_null = end
    begun = np.int64(load_bound(row + start_cell, start_width, start_divisor) <= after)
    goes_on = np.int64(before < load_bound(row + end_cell, end_width, end_divisor))
    if start_null >= 0:
        begun |= get_bit(row + start_nulls, start_null)
    if end_null >= 0:
        goes_on |= get_bit(row + end_nulls, end_null)
    return begun & goes_on


@njit(
    f"int64(int64[::1], int64, int64, int64[::1], int64[::1], int64, {PACKED_CLOCK}, {PACKED_CLOCK})",
    cache=True,
    nogil=True,
)
def keep_valid_rows(times, first, count, left, right, kept, start, end):
    """The same where rows are packed."""
    for i in range(count):
        row = right[first + i]
        ok = np.int64(1)
        if row != NO_ROW:
            ok = packed_is_valid(row, rounded_down(times[i], start[3]), rounded_down(times[i], end[3]), start, end)
        left[kept] = left[first + i]
        right[kept] = row
        kept += ok
    return kept


# ------------------------------------------------------------------- pairs that are not listed unless they are valid


@njit(nogil=True, inline="always")
def _fetch_chains(rows, count, base, shift, ahead):
    """Bring the rows of chains that begin at `rows` near, one of each after the other: their cache misses overlap.

    To follow one chain after the other would wait for every row of it. `ahead` is for work.
    """
    alive = 0
    for t in range(count):
        if rows[t] > 0:
            ahead[alive] = rows[t]
            alive += 1
    for _ in range(_FETCHED_ROWS):
        going_on = 0
        for t in range(alive):
            reference = load_u32(ahead[t])
            if reference != NIL:
                row = base + (reference << shift)
                prefetch(row)
                ahead[going_on] = row
                going_on += 1
        alive = going_on
        if alive == 0:
            break


@njit(nogil=True, inline="always")
def first_valid(row, base, shift, after, before, start, end):
    """The first row of a chain that was valid at a time, or 0."""
    while row != 0 and packed_is_valid(row, after, before, start, end) == 0:
        reference = load_u32(row)
        row = 0 if reference == NIL else base + (reference << shift)
    return row


@njit(
    f"int64(int64[::1], int64, int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], boolean[::1], int64[::1],"
    f" boolean, int64[::1], {PACKED_CLOCK}, {PACKED_CLOCK})",
    cache=True,
    nogil=True,
)
def probe_valid(codes, stop, entries, arena, cursor, out_ids, out_rows, found, misses, counting, times, start, end):
    """`cache_find` and `cache_follow` (`kernels/cache.py`) in one, for rows valid at the tuple's time, `times[i]`.

    `cursor`: tuple, row to go on with, misses so far. `found[i]` says that the cache answers; the others are listed in
    `misses`. A key with SOME of its versions answers for the times of these; other tuples are missed.
    """
    filled = 0
    room = out_ids.size
    base = arena[A_BASE]
    shift = arena[A_SHIFT]
    missed = cursor[2]
    i = cursor[0]
    going_on = cursor[1]
    places = np.empty(PROBE_TILE, np.int64)
    rows = np.empty(PROBE_TILE, np.int64)
    ahead = np.empty(PROBE_TILE, np.int64)
    while i < stop:
        tile = min(PROBE_TILE, stop - i)
        if going_on > 0:
            # The tuple was found by the call before.
            tile = 1
            rows[0] = going_on
        else:
            find_tile(codes, i, tile, entries, base, shift, places, rows)
        _fetch_chains(rows, tile, base, shift, ahead)
        for t in range(tile):
            row = rows[t]
            if row < 0:
                misses[missed] = i + t
                missed += 1
                continue
            after = rounded_down(times[i + t], start[3])
            before = rounded_down(times[i + t], end[3])
            if going_on == 0:
                if filled == room and row > 0:
                    cursor[0] = i + t
                    cursor[1] = 0
                    cursor[2] = missed
                    return filled
                if row > 0 and entries[2 * places[t] + 1] & SOME != 0:
                    # At most one of them was valid then; if none of these, another may have been.
                    row = first_valid(row, base, shift, after, before, start, end)
                    if row == 0:
                        misses[missed] = i + t
                        missed += 1
                        continue
                    out_ids[filled] = i + t
                    out_rows[filled] = row
                    filled += 1
                    row = 0
                found[i + t] = True
                if counting:
                    count_request(entries, places[t])
            going_on = 0
            while row != 0:
                if filled == room:
                    cursor[0] = i + t
                    cursor[1] = row
                    cursor[2] = missed
                    return filled
                out_ids[filled] = i + t
                out_rows[filled] = row
                filled += packed_is_valid(row, after, before, start, end)
                reference = load_u32(row)
                row = 0 if reference == NIL else base + (reference << shift)
        i += tile
    cursor[0] = i
    cursor[1] = 0
    cursor[2] = missed
    return filled


@njit(
    f"int64(int64[::1], int64[::1], int64, int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], {PAGES},"
    f" {PAGES}, {CLOCK}, {CLOCK}, {CLOCK})",
    cache=True,
    nogil=True,
)
def expand_valid(ids, offsets, stop, starts, ends, cursor, out_ids, out_rows, pages, tuples, time, start, end):
    """`kernels.lookup.expand_pairs` for the rows of `pages` that were valid at the tuple's time, in `tuples`."""
    page_rows, base, kind, data, valid, _, bit = pages
    tuple_rows, tuple_base, tuple_kind, tuple_data, _, _, _ = tuples
    time_column, time_width, _, _ = time
    start_column, start_width, start_divisor, start_times = start
    end_column, end_width, end_divisor, end_times = end
    filled = 0
    u = cursor[0]
    t = cursor[1]
    row = cursor[2]
    page, begin = 0, 0
    fetched = 0
    while u < stop:
        if u >= fetched:
            fetched = min(u + _FETCHED_RUNS, stop)
            for v in range(u, fetched):
                if ends[v] > starts[v]:
                    there = starts[v] // page_rows
                    at, here, layout = starts[v] - there * page_rows, base[there], kind[there]
                    prefetch(here + data[layout, start_column] + at * abs(start_width))
                    prefetch(here + data[layout, end_column] + at * abs(end_width))
                    prefetch(here + valid[layout, end_column] + (at >> 3))
                    tuple_at = ids[offsets[v]]
                    there = 0 if tuple_base.size == 1 else tuple_at // tuple_rows
                    at = (tuple_at - there * tuple_rows) * abs(time_width)
                    prefetch(tuple_base[there] + tuple_data[tuple_kind[there], time_column] + at)
        if t < offsets[u]:
            t = offsets[u]
        while t < offsets[u + 1] and ends[u] > starts[u]:
            if row < 0:
                row = starts[u]
            there = 0 if tuple_base.size == 1 else ids[t] // tuple_rows
            at = (ids[t] - there * tuple_rows) * abs(time_width)
            asked = load_number(tuple_base[there] + tuple_data[tuple_kind[there], time_column] + at, time_width)
            after = rounded_down(asked, start_times)
            before = rounded_down(asked, end_times)
            while row < ends[u]:
                if filled == out_ids.size:
                    cursor[0] = u
                    cursor[1] = t
                    cursor[2] = row
                    return filled
                if base.size > 1 and not 0 <= row - begin < page_rows:
                    page = row // page_rows
                    begin = page * page_rows
                at, here, layout = row - begin, base[page], kind[page]
                bound = load_bound(
                    here + data[layout, start_column] + at * abs(start_width), start_width, start_divisor
                )
                begun = np.int64(bound <= after)
                bound = load_bound(here + data[layout, end_column] + at * abs(end_width), end_width, end_divisor)
                goes_on = np.int64(before < bound)
                if valid[layout, start_column] >= 0:
                    begun |= 1 - get_bit(here + valid[layout, start_column], at + bit[layout, start_column])
                if valid[layout, end_column] >= 0:
                    goes_on |= 1 - get_bit(here + valid[layout, end_column], at + bit[layout, end_column])
                out_ids[filled] = ids[t]
                out_rows[filled] = row
                filled += int(begun & goes_on)
                row += 1
            row = -1
            t += 1
        u += 1
    cursor[0] = u
    cursor[1] = t
    cursor[2] = -1
    return filled


@njit(
    "int64(int64[::1], int64[::1], boolean[::1], int64, int64[::1], int64[::1], int64, int64, int64[::1], int64[::1],"
    f" int64[::1], int64[::1], {PACKED_CLOCK}, {PACKED_CLOCK})",
    cache=True,
    nogil=True,
)
def answer_valid(
    refs, codes, null, stop, entries, arena, most_rows, last, cursor, out_refs, out_rows, times, start, end
):
    """`kernels.waiting.answer_pairs` for the rows that were valid at the tuple's time, `times[i]`.

    `cursor` has a fourth number: valid rows that the tuple to go on with had before.
    """
    entries_at, size = address_of(entries), entries.size >> 1
    base = arena[A_BASE]
    shift = arena[A_SHIFT]
    # Where no row is listed the first valid one is looked for all the same.
    lists = 1 if most_rows > 0 else 0
    most_rows = max(most_rows, 1)
    filled = 0
    room = out_refs.size
    i = cursor[0]
    row = cursor[1]
    listed = cursor[3]
    cursor[2] = 0
    while i < stop:
        if row == 0:
            listed = 0
            if null.size == 0 or not null[i]:
                at = find_key(entries_at, size, codes[i])
                if at < 0:
                    cursor[2] = 1
                    break
                reference = entries[2 * at + 1] & NIL
                count_request(entries, at)
                if reference != NIL:
                    row = base + (reference << shift)
        after = rounded_down(times[i], start[3])
        before = rounded_down(times[i], end[3])
        while row > 0 and listed < most_rows:
            if filled == room:
                cursor[0] = i
                cursor[1] = row
                cursor[3] = listed
                return filled
            out_refs[filled] = refs[i]
            out_rows[filled] = row
            ok = packed_is_valid(row, after, before, start, end)
            filled += ok * lists
            listed += ok
            reference = load_u32(row)
            row = 0 if reference == NIL else base + (reference << shift)
        if last == ALWAYS_LAST or (last == ONLY_IF_ALONE and listed == 0):
            if filled == room:
                cursor[0] = i
                cursor[1] = -1
                cursor[3] = listed
                return filled
            out_refs[filled] = refs[i]
            out_rows[filled] = NO_ROW
            filled += 1
        row = 0
        i += 1
    cursor[0] = i
    cursor[1] = 0
    cursor[3] = 0
    return filled
