"""Moving tuples between columns, pages and packed rows.

Two sources feed a join: *paged* columns (an Arrow batch is one page; a block of a page store is many) and *packed
rows* in an arena. Two sinks take from it: fresh Arrow column buffers and packed rows. Work goes in tiles of rows,
column by column inside a tile, so the rows of a tile stay in the CPU cache while their columns are visited.

A packed row, seen from its payload address:

    | FIXED and BOOL cells, lengths of VAR cells (u32 each) | head of VAR chain (u32) | null bits |

The bytes of all VAR cells of a row stand one after another in a chain of small arena blocks, `[next u32][bytes]`.

`kinds` and `widths` describe the physical columns, `cells` where a cell starts in the payload, `null_bits` which bit
says null (-1: the column has none).
"""

# mypy: disallow_untyped_defs=False
from __future__ import annotations

import numpy as np

from semistream.kernels.compiled import njit
from semistream.kernels.raw import (
    copy_bytes,
    get_bit,
    load_i16,
    load_i32,
    load_i64,
    load_u8,
    load_u32,
    store_i16,
    store_i32,
    store_i64,
    store_u8,
)

TILE = 512
FIXED, BOOL, VAR = 0, 1, 2
NIL = 0xFFFFFFFF
BLOCK_BYTES = 32
BLOCK_ROOM = BLOCK_BYTES - 4

#: how kernels are given paged columns: one tuple of page_rows, base, kind, data, valid, offs, bit
PAGES = "Tuple((int64, int64[::1], int32[::1], int64[:,::1], int64[:,::1], int64[:,::1], int64[:,::1]))"
#: how kernels are given the columns of packed rows: one tuple of kinds, widths, cells, null_bits
CELLS = "UniTuple(int64[::1], 4)"


@njit(nogil=True, inline="always")
def _resolve_tile(ids, first, count, page_rows, base, kind, tile_base, tile_row, tile_kind):
    """Page address, row on the page and layout class of each row of a tile."""
    if base.size == 1:
        for t in range(count):
            tile_base[t] = base[0]
            tile_row[t] = ids[first + t]
            tile_kind[t] = kind[0]
        return
    for t in range(count):
        page = ids[first + t] // page_rows
        tile_base[t] = base[page]
        tile_row[t] = ids[first + t] - page * page_rows
        tile_kind[t] = kind[page]


@njit(
    f"void(int64[::1], int64, int64, {PAGES}, int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])",
    cache=True,
    nogil=True,
)
def gather_paged(ids, start, count, pages, columns, kinds, widths, out_data, out_valid):
    """Copy FIXED and BOOL cells of rows `ids[start:start+count]` of paged columns into column buffers.

    `columns` picks the paged columns; `out_valid` 0 says no bitmap is wanted. BOOL output must start zeroed.
    """
    page_rows, base, kind, data, valid, _, bit = pages
    tile_base = np.empty(TILE, np.int64)
    tile_row = np.empty(TILE, np.int64)
    tile_kind = np.empty(TILE, np.int64)
    done = 0
    while done < count:
        size = min(TILE, count - done)
        _resolve_tile(ids, start + done, size, page_rows, base, kind, tile_base, tile_row, tile_kind)
        for position in range(columns.size):
            c = columns[position]
            width = widths[position]
            shape = kinds[position]
            target = out_data[position] + done * width
            if shape == FIXED:
                if width == 8:
                    for t in range(size):
                        source = tile_base[t] + data[tile_kind[t], c] + tile_row[t] * 8
                        store_i64(target + 8 * t, load_i64(source))
                elif width == 4:
                    for t in range(size):
                        source = tile_base[t] + data[tile_kind[t], c] + tile_row[t] * 4
                        store_i32(target + 4 * t, load_i32(source))
                elif width == 2:
                    for t in range(size):
                        source = tile_base[t] + data[tile_kind[t], c] + tile_row[t] * 2
                        store_i16(target + 2 * t, load_i16(source))
                elif width == 1:
                    for t in range(size):
                        store_u8(target + t, load_u8(tile_base[t] + data[tile_kind[t], c] + tile_row[t]))
                else:
                    for t in range(size):
                        source = tile_base[t] + data[tile_kind[t], c] + tile_row[t] * width
                        copy_bytes(target + width * t, source, width)
            elif shape == BOOL:
                for t in range(size):
                    layout = tile_kind[t]
                    value = get_bit(tile_base[t] + data[layout, c], tile_row[t] + bit[layout, c])
                    at = out_data[position] + ((done + t) >> 3)
                    store_u8(at, load_u8(at) | (value << ((done + t) & 7)))
            if out_valid[position] != 0:
                for t in range(size):
                    layout = tile_kind[t]
                    value = 1
                    if valid[layout, c] >= 0:
                        value = get_bit(tile_base[t] + valid[layout, c], tile_row[t] + bit[layout, c])
                    at = out_valid[position] + ((done + t) >> 3)
                    store_u8(at, load_u8(at) | (value << ((done + t) & 7)))
        done += size


@njit(f"int64(int64[::1], int64, int64, {PAGES}, int64, int64)", cache=True, nogil=True)
def var_offsets_paged(ids, start, count, pages, c, out_offsets):
    """int32 offsets of a VAR column's rows; returns the total, which the caller checks against int32."""
    page_rows, base, kind, _, valid, offs, bit = pages
    total = 0
    store_i32(out_offsets, 0)
    for i in range(count):
        row = ids[start + i]
        page = 0 if base.size == 1 else row // page_rows
        row -= page * page_rows
        layout = kind[page]
        live = True
        if valid[layout, c] >= 0:
            live = get_bit(base[page] + valid[layout, c], row + bit[layout, c]) == 1
        if live:
            at = base[page] + offs[layout, c] + 4 * row
            total += load_i32(at + 4) - load_i32(at)
        store_i32(out_offsets + 4 * (i + 1), total)
    return total


@njit(f"void(int64[::1], int64, int64, {PAGES}, int64, int64, int64)", cache=True, nogil=True)
def var_copy_paged(ids, start, count, pages, c, out_offsets, out_data):
    """Copy the bytes of a VAR column's rows behind the offsets made before."""
    page_rows, base, kind, data, _, offs, _ = pages
    for i in range(count):
        length = load_i32(out_offsets + 4 * (i + 1)) - load_i32(out_offsets + 4 * i)
        if length > 0:
            row = ids[start + i]
            page = 0 if base.size == 1 else row // page_rows
            row -= page * page_rows
            layout = kind[page]
            begin = load_i32(base[page] + offs[layout, c] + 4 * row)
            source = base[page] + data[layout, c] + begin
            copy_bytes(out_data + load_i32(out_offsets + 4 * i), source, length)


@njit(f"void(int64[::1], int64, int64, int64, int64, {CELLS}, int64[::1], int64[::1])", cache=True, nogil=True)
def gather_rows(rows, start, count, payload, nulls_at, packed, out_data, out_valid):
    """Copy FIXED and BOOL cells of packed rows (slot addresses) into column buffers."""
    kinds, widths, cells, null_bits = packed
    done = 0
    while done < count:
        size = min(TILE, count - done)
        first = start + done
        for c in range(kinds.size):
            width = widths[c]
            shape = kinds[c]
            cell = payload + cells[c]
            target = out_data[c] + done * width
            if shape == FIXED:
                if width == 8:
                    for t in range(size):
                        store_i64(target + 8 * t, load_i64(rows[first + t] + cell))
                elif width == 4:
                    for t in range(size):
                        store_i32(target + 4 * t, load_i32(rows[first + t] + cell))
                elif width == 2:
                    for t in range(size):
                        store_i16(target + 2 * t, load_i16(rows[first + t] + cell))
                elif width == 1:
                    for t in range(size):
                        store_u8(target + t, load_u8(rows[first + t] + cell))
                else:
                    for t in range(size):
                        copy_bytes(target + width * t, rows[first + t] + cell, width)
            elif shape == BOOL:
                for t in range(size):
                    at = out_data[c] + ((done + t) >> 3)
                    store_u8(at, load_u8(at) | (load_u8(rows[first + t] + cell) << ((done + t) & 7)))
            if out_valid[c] != 0:
                for t in range(size):
                    null = get_bit(rows[first + t] + payload + nulls_at, null_bits[c])
                    at = out_valid[c] + ((done + t) >> 3)
                    store_u8(at, load_u8(at) | ((1 - null) << ((done + t) & 7)))
        done += size


@njit("int64(int64[::1], int64, int64, int64, int64)", cache=True, nogil=True)
def var_offsets_rows(rows, start, count, cell, out_offsets):
    """int32 offsets of a VAR column of packed rows (its lengths stand in the rows)."""
    total = 0
    store_i32(out_offsets, 0)
    for i in range(count):
        total += load_u32(rows[start + i] + cell)
        store_i32(out_offsets + 4 * (i + 1), total)
    return total


@njit(
    "void(int64[::1], int64, int64, int64, int64, int64[::1], int64, int64, int64, int64, int64)",
    cache=True,
    nogil=True,
)
def var_copy_rows(rows, start, count, payload, head, var_cells, position, arena, shift, out_offsets, out_data):
    """Copy one VAR column (the `position`-th of `var_cells`) of packed rows out of their block chains."""
    for i in range(count):
        target = out_data + load_i32(out_offsets + 4 * i)
        left = load_i32(out_offsets + 4 * (i + 1)) - load_i32(out_offsets + 4 * i)
        if left == 0:
            continue
        skip = 0
        for before in range(position):
            skip += load_u32(rows[start + i] + payload + var_cells[before])
        block = arena + (load_u32(rows[start + i] + payload + head) << shift)
        while skip >= BLOCK_ROOM:
            block = arena + (load_u32(block) << shift)
            skip -= BLOCK_ROOM
        while left > 0:
            part = min(left, BLOCK_ROOM - skip)
            copy_bytes(target, block + 4 + skip, part)
            target += part
            left -= part
            skip = 0
            if left > 0:
                block = arena + (load_u32(block) << shift)


@njit(f"void(int64[::1], int64, int64, int64[::1], {PAGES}, int64[::1], int64, int64, {CELLS})", cache=True, nogil=True)
def pack_rows(ids, start, count, slots, pages, columns, payload, nulls_at, packed):
    """Write rows `ids[start:start+count]` of paged columns into packed rows at `slots[:count]` (all but VAR bytes).

    `columns` picks the paged columns, which `packed` describes.
    """
    page_rows, base, kind, data, valid, _, bit = pages
    kinds, widths, cells, null_bits = packed
    tile_base = np.empty(TILE, np.int64)
    tile_row = np.empty(TILE, np.int64)
    tile_kind = np.empty(TILE, np.int64)
    null_bytes = 0
    for c in range(columns.size):
        null_bytes = max(null_bytes, (null_bits[c] >> 3) + 1)
    done = 0
    while done < count:
        size = min(TILE, count - done)
        _resolve_tile(ids, start + done, size, page_rows, base, kind, tile_base, tile_row, tile_kind)
        for t in range(size):
            for b in range(null_bytes):
                store_u8(slots[done + t] + payload + nulls_at + b, 0)
        for position in range(columns.size):
            c = columns[position]
            width = widths[position]
            shape = kinds[position]
            cell = payload + cells[position]
            if shape == FIXED:
                if width == 8:
                    for t in range(size):
                        source = tile_base[t] + data[tile_kind[t], c] + tile_row[t] * 8
                        store_i64(slots[done + t] + cell, load_i64(source))
                elif width == 4:
                    for t in range(size):
                        source = tile_base[t] + data[tile_kind[t], c] + tile_row[t] * 4
                        store_i32(slots[done + t] + cell, load_i32(source))
                else:
                    for t in range(size):
                        source = tile_base[t] + data[tile_kind[t], c] + tile_row[t] * width
                        copy_bytes(slots[done + t] + cell, source, width)
            elif shape == BOOL:
                for t in range(size):
                    layout = tile_kind[t]
                    value = get_bit(tile_base[t] + data[layout, c], tile_row[t] + bit[layout, c])
                    store_u8(slots[done + t] + cell, value)
            if null_bits[position] >= 0:
                at = nulls_at + (null_bits[position] >> 3)
                shift = null_bits[position] & 7
                for t in range(size):
                    layout = tile_kind[t]
                    if valid[layout, c] >= 0:
                        null = 1 - get_bit(tile_base[t] + valid[layout, c], tile_row[t] + bit[layout, c])
                        here = slots[done + t] + payload + at
                        store_u8(here, load_u8(here) | (null << shift))
        done += size


@njit(f"int64(int64[::1], int64, int64, {PAGES}, int64[::1], int64[::1])", cache=True, nogil=True)
def var_blocks_needed(ids, start, count, pages, var_columns, out_bytes):
    """VAR bytes of each row into `out_bytes[:count]`; returns the number of blocks all of them take."""
    page_rows, base, kind, _, valid, offs, bit = pages
    blocks = 0
    for i in range(count):
        row = ids[start + i]
        page = 0 if base.size == 1 else row // page_rows
        row -= page * page_rows
        layout = kind[page]
        total = 0
        for position in range(var_columns.size):
            c = var_columns[position]
            live = True
            if valid[layout, c] >= 0:
                live = get_bit(base[page] + valid[layout, c], row + bit[layout, c]) == 1
            if live:
                at = base[page] + offs[layout, c] + 4 * row
                total += load_i32(at + 4) - load_i32(at)
        out_bytes[i] = total
        blocks += (total + BLOCK_ROOM - 1) // BLOCK_ROOM
    return blocks


@njit("void(int64[::1], int32[::1], int32[::1], int64[:,::1], int64[::1])", cache=True, nogil=True)
def copy_codes(base, rows, kind, data, out):
    """The key codes of a block (last column of its layout tables), page after page."""
    at = 0
    last = data.shape[1] - 1
    for page in range(base.size):
        source = base[page] + data[kind[page], last]
        for row in range(rows[page]):
            out[at] = load_i64(source + 8 * row)
            at += 1


@njit("void(int64[::1], int64, int64)", cache=True, nogil=True)
def clear_bytes(slots, count, flag):
    """Fresh tuples carry no operator flags and no counts."""
    for i in range(count):
        store_u8(slots[i] + flag, 0)
