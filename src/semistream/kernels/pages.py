"""Finding, reading, checking and laying out pages of R, many at a time.

An operator touches thousands of pages between two batches. Each step here is one call for all of them,
without the GIL: which pages hold these codes, read them with as few `pread`s as pay off, check them, and say
where the buffers of each column lie.
"""

# mypy: disallow_untyped_defs=False
from __future__ import annotations

import mmap

import numpy as np

from semistream.kernels.compiled import njit
from semistream.kernels.hashing import xxhash64_bytes
from semistream.kernels.raw import (
    address_of,
    load_i32,
    load_i64,
    load_u16,
    load_u32,
    load_u64,
    native_madvise,
    native_mincore,
    native_pread,
)

FIXED, BOOL, VAR = 0, 1, 2
CHECKSUM_SEED = np.uint64(0)

MADV_WILLNEED = 3
#: since Linux 5.14
MADV_POPULATE_READ = 22
MEMORY_PAGE = mmap.PAGESIZE
# What Linux maps around a page that is touched, if it is in memory; so asking for it as well costs nothing.
_FAULT_AROUND = 1 << 16

# A block of the second index (order "frequency"): entries of (code, first row, rows), their number, a
# checksum.
TABLE_BLOCK = 4096
TABLE_ENTRY = 24
TABLE_ENTRIES = 170
TABLE_COUNT_AT = TABLE_ENTRIES * TABLE_ENTRY
TABLE_SUM_AT = TABLE_COUNT_AT + 8


@njit(nogil=True, inline="always")
def _upper_bound(fences, code, start):
    """First position from `start` on whose fence is greater than the code; gallops, as codes come sorted."""
    n = fences.shape[0]
    step = 1
    low = start
    high = start
    while high < n and fences[high] <= code:
        low = high + 1
        high += step
        step *= 2
    if high > n:
        high = n
    while low < high:
        middle = (low + high) >> 1
        if fences[middle] <= code:
            low = middle + 1
        else:
            high = middle
    return low


@njit("void(int64[::1], boolean[::1], int64[::1], int64[::1], int64[::1])", cache=True, nogil=True)
def locate_in_fences(fences, continues, codes, first, last):
    """Page range of the run of every code in a store sorted by code."""
    n = fences.shape[0]
    at = 0
    for i in range(codes.shape[0]):
        code = codes[i]
        if i > 0 and code == codes[i - 1]:
            first[i] = first[i - 1]
            last[i] = last[i - 1]
            continue
        if n == 0:
            first[i] = -1
            last[i] = -1
            continue
        if i > 0 and code < codes[i - 1]:
            at = 0
        at = _upper_bound(fences, code, at)
        page = max(at - 1, 0)
        last[i] = page
        # Every page from the second of a run on starts with the run's own code.
        while page > 0 and fences[page] == code and fences[page - 1] == code:
            page -= 1
        if page > 0 and fences[page] == code and continues[page]:
            page -= 1
        first[i] = page


@njit(nogil=True)
def read_fully(fd, address, low, end, size, result):
    """Read bytes `low .. low + size` of a file, at least up to `end`; False, and the offset, when a read fails.

    Counts reads and bytes in `result`, as `read_pages` says.
    """
    got = 0
    while got < end - low:
        count = native_pread(fd, address + got, size - got, low + got)
        if count <= 0:
            result[3] = low + got
            return False
        got += count
        result[1] += 1
    result[2] += size
    return True


@njit(nogil=True, inline="always")
def _run_from(i, file, borders, shifts, pages, starts, room, gap, align):
    """The read that begins with page `pages[i]`: the page behind its last, and bytes `low .. low + size` of the file.

    It needs them up to `end`. Neighbours come together as far as there is room; without room for one the read is empty.
    """
    shift = shifts[file]
    low = (starts[pages[i]] - shift) // align * align
    end = starts[pages[i] + 1] - shift
    size = (end + align - 1) // align * align - low
    if size > room:
        return i, low, end, size
    # Inside one aligned block a gap costs nothing.
    free = max(gap, align)
    j = i + 1
    while j < pages.shape[0] and pages[j] < borders[file + 1] and starts[pages[j]] - shift - end < free:
        wider = (starts[pages[j] + 1] - shift + align - 1) // align * align - low
        if wider > room:
            break
        size = wider
        end = starts[pages[j] + 1] - shift
        j += 1
    return j, low, end, size


@njit(
    "int64(int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, int64)",
    cache=True,
    nogil=True,
)
def fitting_pages(borders, shifts, pages, starts, capacity, gap, align):
    """How many of the sorted pages `read_pages` would read into so many bytes."""
    room = capacity
    i = 0
    file = 0
    while i < pages.shape[0]:
        while pages[i] >= borders[file + 1]:
            file += 1
        j, _, _, size = _run_from(i, file, borders, shifts, pages, starts, room, gap, align)
        if j == i:
            break
        room -= size
        i = j
    return i


@njit(
    "void(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, int64, int64, int64[::1],"
    " int64[::1])",
    cache=True,
    nogil=True,
)
def read_pages(fds, borders, shifts, pages, starts, address, capacity, gap, align, base, result):
    """Reads sorted pages into memory at `address`, neighbours together, until the room is used up.

    Pages borders[s] to borders[s + 1] - 1 are in file s: page p is bytes [starts[p], starts[p + 1]) of it, less
    shifts[s]. Reads begin and end on multiples of `align`, and none crosses the border of a file.
    `result`: pages read, preads, bytes asked for, then -1 or the offset at which a read failed and of which file.
    """
    used = 0
    i = 0
    file = 0
    result[0] = result[1] = result[2] = 0
    result[3] = -1
    while i < pages.shape[0]:
        while pages[i] >= borders[file + 1]:
            file += 1
        j, low, end, size = _run_from(i, file, borders, shifts, pages, starts, capacity - used, gap, align)
        if j == i:
            break
        if not read_fully(fds[file], address + used, low, end, size, result):
            result[4] = file
            return
        for k in range(i, j):
            base[k] = address + used + starts[pages[k]] - shifts[file] - low
        result[0] = j
        used += size
        i = j


@njit("void(int64[::1], int64[::1], uint64[::1])", cache=True, nogil=True)
def hash_pages(base, lengths, sums):
    """Checksum of every page in memory."""
    for i in range(base.shape[0]):
        sums[i] = xxhash64_bytes(base[i], lengths[i], CHECKSUM_SEED)


@njit("int64(int64[::1], int64[::1], int64[::1], uint64[::1])", cache=True, nogil=True)
def verify_pages(base, pages, starts, sums):
    """Position of the first page whose bytes are not those that were written, or -1."""
    for i in range(pages.shape[0]):
        p = pages[i]
        if xxhash64_bytes(base[i], starts[p + 1] - starts[p], CHECKSUM_SEED) != sums[p]:
            return i
    return -1


@njit("int64(int64[::1], uint8[::1], int64[::1])", cache=True, nogil=True)
def unseen_pages(pages, seen, positions):
    """How many of the pages are not marked in `seen`, a bit per page, and the positions of these."""
    count = 0
    for i in range(pages.shape[0]):
        p = pages[i]
        if not (seen[p >> 3] >> (p & 7)) & 1:
            positions[count] = i
            count += 1
    return count


@njit("void(int64[::1], uint8[::1])", cache=True, nogil=True)
def mark_seen(pages, seen):
    """Mark pages as `unseen_pages` looks for them."""
    for i in range(pages.shape[0]):
        seen[pages[i] >> 3] |= np.uint8(1 << (pages[i] & 7))


@njit(nogil=True, inline="always")
def _neighbours(base, pages, starts, first):
    """Mapped pages from `first` on that are asked for together: their addresses, and the page behind them."""
    low = base[first] // MEMORY_PAGE * MEMORY_PAGE
    end = base[first] + starts[pages[first] + 1] - starts[pages[first]]
    j = first + 1
    while j < pages.shape[0] and 0 <= base[j] - end < _FAULT_AROUND:
        end = base[j] + starts[pages[j] + 1] - starts[pages[j]]
        j += 1
    return low, end, j


@njit(nogil=True, inline="always")
def _is_in_memory(low, end, flag):
    """Whether the middle of some mapped bytes is; their ends may have been read with what is beside them."""
    middle = (low + end) // 2 // MEMORY_PAGE * MEMORY_PAGE
    return native_mincore(middle, MEMORY_PAGE, address_of(flag)) == 0 and flag[0] & 1 != 0


@njit("int64(int64[::1], int64[::1], int64[::1])", cache=True, nogil=True)
def pages_in_memory(base, pages, starts):
    """How many mapped pages need not be read from the disk, as far as the system tells."""
    flag = np.zeros(1, np.uint8)
    count = 0
    for i in range(pages.shape[0]):
        if _is_in_memory(base[i], base[i] + starts[pages[i] + 1] - starts[pages[i]], flag):
            count += 1
    return count


@njit("void(int64[::1], int64[::1], int64[::1])", cache=True, nogil=True)
def announce_pages(base, pages, starts):
    """Have the disk begin to read mapped pages, all at once; nothing is waited for, and no failure is told.

    What is in memory is not asked for: that takes longer than to see it.
    """
    flag = np.zeros(1, np.uint8)
    i = 0
    while i < pages.shape[0]:
        low, end, i = _neighbours(base, pages, starts, i)
        if not _is_in_memory(low, end, flag):
            native_madvise(low, end - low, MADV_WILLNEED)


@njit("int64(int64[::1], int64[::1], int64[::1])", cache=True, nogil=True)
def populate_pages(base, pages, starts):
    """Have mapped pages read in; -1, or the position of the first page for which that was refused.

    Touching a page of a mapping that cannot be read raises a signal, which ends the process; asking for it first
    returns an error. Neighbours are asked for together.
    """
    i = 0
    while i < pages.shape[0]:
        low, end, j = _neighbours(base, pages, starts, i)
        if native_madvise(low, end - low, MADV_POPULATE_READ) != 0:
            return i
        i = j
    return -1


@njit(
    "void(int64[::1], int64[::1], int64[::1], int64[:, ::1], int64[:, ::1], int64[:, ::1])",
    cache=True,
    nogil=True,
)
def layout_pages(base, buffers, kinds, data, valid, offs):
    """Where the column buffers of each page lie, from the page's own Arrow IPC metadata.

    `buffers` is the number of each column's first buffer in the message, -1 for a column without any (null
    type). The walk follows the flatbuffer tables Message (field 2: header) and RecordBatch (field 2:
    buffers).
    """
    for i in range(base.shape[0]):
        page = base[i]
        body = 8 + load_i32(page + 4)
        message = page + 8 + load_u32(page + 8)
        field = load_u16(message - load_i32(message) + 8)
        batch = message + field
        batch += load_u32(batch)
        vector = batch + load_u16(batch - load_i32(batch) + 8)
        vector += load_u32(vector) + 4
        for c in range(buffers.shape[0]):
            offs[i, c] = -1
            valid[i, c] = -1
            data[i, c] = body
            if buffers[c] < 0:
                continue
            at = vector + 16 * buffers[c]
            if load_i64(at + 8) > 0:
                valid[i, c] = body + load_i64(at)
            if kinds[c] == VAR:
                offs[i, c] = body + load_i64(at + 16)
                data[i, c] = body + load_i64(at + 32)
            else:
                data[i, c] = body + load_i64(at + 16)


@njit(
    "void(int64, int64[::1], int64[::1], int64, int64, int64, int64, int64[::1], int64[::1], int64[::1])",
    cache=True,
    nogil=True,
)
def locate_in_table(fd, fences, codes, address, blocks, gap_blocks, page_rows, first, last, result):
    """Page range of the run of every code through the second index; -1, -1 where the code is absent.

    `fences` is the first code of every block of the file, `address` room for `blocks` of them.
    `result`: preads, then -1 or the block that failed, then 0 for a failed read and 1 for a wrong checksum.
    """
    result[0] = 0
    result[1] = -1
    n = codes.shape[0]
    at = 0
    for i in range(n):
        if i > 0 and codes[i] < codes[i - 1]:
            at = 0
        at = _upper_bound(fences, codes[i], at)
        first[i] = at - 1
        at = max(at - 1, 0)
    low = np.int64(0)
    high = np.int64(0)
    checked = np.int64(-1)
    for i in range(n):
        block = first[i]
        if block < 0:
            last[i] = -1
            continue
        if block < low or block >= high:
            low = block
            high = block + 1
            for k in range(i + 1, n):
                if first[k] < low or first[k] - high >= gap_blocks or first[k] >= low + blocks:
                    break
                high = max(high, first[k] + 1)
            size = (high - low) * TABLE_BLOCK
            got = np.int64(0)
            while got < size:
                count = native_pread(fd, address + got, size - got, low * TABLE_BLOCK + got)
                if count <= 0:
                    result[1] = low
                    result[2] = 0
                    return
                got += count
                result[0] += 1
            checked = np.int64(-1)
        entries = address + (block - low) * TABLE_BLOCK
        if block != checked:
            if xxhash64_bytes(entries, TABLE_SUM_AT, CHECKSUM_SEED) != load_u64(entries + TABLE_SUM_AT):
                result[1] = block
                result[2] = 1
                return
            checked = block
        left = np.int64(0)
        right = load_i64(entries + TABLE_COUNT_AT)
        while left < right:
            middle = (left + right) >> 1
            if load_i64(entries + TABLE_ENTRY * middle) < codes[i]:
                left = middle + 1
            else:
                right = middle
        if left < load_i64(entries + TABLE_COUNT_AT) and load_i64(entries + TABLE_ENTRY * left) == codes[i]:
            row = load_i64(entries + TABLE_ENTRY * left + 8)
            rows = load_i64(entries + TABLE_ENTRY * left + 16)
            first[i] = row // page_rows
            last[i] = (row + rows - 1) // page_rows
        else:
            first[i] = -1
            last[i] = -1
