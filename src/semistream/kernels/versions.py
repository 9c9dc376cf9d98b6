"""Keys that are cached with SOME of their versions: those that were asked for, of master data with a history.

Most tuples ask for what is true today. A version is cached by itself if no other row of its key is valid at any time of
its own: then it is all that R has for these times. For any other time the key is not cached. Where rows overlap, or
none was valid, the key is cached with all of its rows, which answer for all times.
"""

# mypy: disallow_untyped_defs=False
from __future__ import annotations

import numpy as np

from semistream.kernels.arena import A_BASE, A_SHIFT, POOL, take_slot
from semistream.kernels.cache import C_KEYS, C_ROWS, COUNT_MASK, SOME, cache_insert, find_key, free_rows
from semistream.kernels.compiled import njit
from semistream.kernels.raw import address_of, get_bit, store_i32
from semistream.kernels.rows import NIL, PAGES
from semistream.kernels.validity import (
    CLOCK,
    PACKED_CLOCK,
    first_valid,
    load_bound,
    load_number,
    rounded_down,
)

_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
#: where the rows and tuples of runs are: columns of both, and the clocks of time, start and end
HISTORY = f"Tuple(({PAGES}, {PAGES}, {CLOCK}, {CLOCK}, {CLOCK}))"


@njit(nogil=True, inline="always")
def _is_open(address, valid, bit, at):
    """Whether a bound is null; `valid` is where its column's null bits are on the page, or -1."""
    return valid >= 0 and get_bit(address + valid, at + bit) == 0


@njit(nogil=True, inline="always")
def _read_bounds(first, stop, pages, start, end, begins, goes_to):
    """The bounds of the rows of a run: `_FIRST` for a null start, `_LAST` for a null end."""
    page_rows, base, kind, data, valid, _, bit = pages
    start_column, start_width, start_divisor, _ = start
    end_column, end_width, end_divisor, _ = end
    for row in range(first, stop):
        page = 0 if base.size == 1 else row // page_rows
        at, here, layout = row - page * page_rows, base[page], kind[page]
        begins[row - first] = load_bound(
            here + data[layout, start_column] + at * abs(start_width), start_width, start_divisor
        )
        if _is_open(here, valid[layout, start_column], bit[layout, start_column], at):
            begins[row - first] = _FIRST
        goes_to[row - first] = load_bound(here + data[layout, end_column] + at * abs(end_width), end_width, end_divisor)
        if _is_open(here, valid[layout, end_column], bit[layout, end_column], at):
            goes_to[row - first] = _LAST


@njit(nogil=True, inline="always")
def _overlap(begin, end, other_begin, other_end):
    """Whether two rows may be valid at one time; `_LAST` may stand for a null end, which is behind the last time."""
    return (begin < other_end or other_end == _LAST) and (other_begin < end or end == _LAST)


@njit(
    f"void(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], {HISTORY}, int64[::1], int64[::1], boolean[::1],"
    " int64[::1], int64[::1])",
    cache=True,
    nogil=True,
)
def wanted_versions(runs, ids, offsets, starts, ends, history, bounds, rows, is_whole, stops, times):
    """Which rows of runs to cache: those that their tuples ask for, or all.

    Run u has the tuples `ids[offsets[u] : offsets[u + 1]]` and the rows `starts[u] .. ends[u]`. `rows` and `times` get
    the rows of one of `runs` after the other, as far as `stops`: all that it has if it `is_whole`, else some, each with
    a time at which it was asked for. They have room for all tuples and rows. Bounds are compared with each other, so
    both must have the same unit. `bounds` is for work, and takes twice the rows of the longest run.
    """
    pages, tuples, time, start, end = history
    tuple_rows, tuple_base, tuple_kind, tuple_data, _, _, _ = tuples
    time_column, time_width, _, unit = time[0], time[1], time[2], start[3]
    half = bounds.size // 2
    begins, goes_to = bounds[:half], bounds[half:]
    filled = 0
    for r in range(runs.size):
        u = runs[r]
        first, count = filled, ends[u] - starts[u]
        whole = count < 2
        if not whole:
            _read_bounds(starts[u], ends[u], pages, start, end, begins, goes_to)
        t = offsets[u]
        while t < offsets[u + 1] and not whole:
            page = 0 if tuple_base.size == 1 else ids[t] // tuple_rows
            at = (ids[t] - page * tuple_rows) * abs(time_width)
            asked = load_number(tuple_base[page] + tuple_data[tuple_kind[page], time_column] + at, time_width)
            now = rounded_down(asked, unit)
            t += 1
            met = -1
            for i in range(count):
                if begins[i] <= now and now < goes_to[i]:
                    whole |= met >= 0
                    met = i
            if met < 0:
                whole = True
            if whole:
                break
            known = False
            for i in range(first, filled):
                known |= rows[i] == starts[u] + met
            if known:
                continue
            for i in range(count):
                whole |= i != met and _overlap(begins[i], goes_to[i], begins[met], goes_to[met])
            rows[filled] = starts[u] + met
            times[filled] = asked
            filled += 1
        is_whole[r] = whole or filled - first == count
        if is_whole[r]:
            filled = first
            for row in range(starts[u], ends[u]):
                rows[filled] = row
                times[filled] = 0
                filled += 1
        stops[r] = filled


@njit(
    f"int64(int64[::1], int64[::1], int64[::1], int64[::1], boolean[::1], int64[::1], int64, int64[::1], int64[::1],"
    f" {POOL}, int64[::1], int64, int64[::1], int64[::1], {PACKED_CLOCK}, {PACKED_CLOCK})",
    cache=True,
    nogil=True,
)
def admit_versions(
    codes, stops, rows, times, is_whole, counts, runs, entries, state, cached, blocks, chain, out_slots, out_ids,
    start, end,
):  # fmt: skip
    """`kernels.cache.cache_admit` for run r with `rows` as far as `stops[r]`: all that the key has, or some of them.

    A key that has some versions gets those that it lacks, or all of its rows instead. Row i was asked for at
    `times[i]`.
    """
    arena, extents, pool = cached
    arena_at, extents_at, pool_at = address_of(arena), address_of(extents), address_of(pool)
    entries_at, size, blocks_at = address_of(entries), entries.size >> 1, address_of(blocks)
    base, shift = arena[A_BASE], arena[A_SHIFT]
    filled = 0
    for r in range(runs):
        at = find_key(entries_at, size, codes[r])
        reference = NIL
        count = counts[r]
        if at >= 0:
            meta = entries[2 * at + 1]
            if meta & SOME == 0:
                continue
            count = max(count, (meta >> 32) & COUNT_MASK)
            reference = meta & NIL
            if is_whole[r]:
                state[C_ROWS] -= free_rows(reference, arena_at, pool_at, blocks_at, chain)
                reference = NIL
        known = reference
        for i in range(stops[r - 1] if r else 0, stops[r]):
            if known != NIL:
                after, before = rounded_down(times[i], start[3]), rounded_down(times[i], end[3])
                if first_valid(base + (known << shift), base, shift, after, before, start, end) != 0:
                    continue
            slot = take_slot(arena_at, extents_at, pool_at)
            store_i32(slot, reference)
            reference = (slot - base) >> shift
            out_slots[filled] = slot
            out_ids[filled] = rows[i]
            filled += 1
            state[C_ROWS] += 1
        meta = (min(count, COUNT_MASK) << 32) | reference
        if not is_whole[r]:
            meta |= SOME
        if at >= 0:
            entries[2 * at + 1] = meta
        else:
            cache_insert(entries_at, size, codes[r], meta)
            state[C_KEYS] += 1
    return filled
