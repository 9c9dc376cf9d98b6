"""Threads that read and check groups of pages, one after another, and need the interpreter for none of them."""

# mypy: disallow_untyped_defs=False
from __future__ import annotations

import numpy as np

from semistream.kernels.compiled import njit
from semistream.kernels.pages import read_pages, verify_pages
from semistream.kernels.raw import address_of, native_read, native_write

#: what is written to a thread's pipe to end it; other bytes are numbers of buffers
END = 255
#: a buffer's results: those of `read_pages`, then the position of the first page that is not as written, or -1
RESULTS = 6


@njit("int64(int64, uint8[::1])", cache=True, nogil=True)
def next_byte(pipe, word):
    """Wait for a byte of a pipe; END too when nobody will write any more.

    `word` is an array, not its address: numba frees an array whose name is not used again, and another thread would
    get its memory.
    """
    while True:
        got = native_read(pipe, address_of(word), 1)
        if got == 0:
            return np.int64(END)
        # A signal may come instead, which is for the main thread.
        if got > 0:
            return np.int64(word[0])


@njit("void(int64, uint8[::1])", cache=True, nogil=True)
def pass_on(pipe, word):
    """Put the byte of `word` into a pipe."""
    while native_write(pipe, address_of(word), 1) < 1:
        pass


@njit(
    "void(int64, int64, int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, int64,"
    " int64[:, ::1], int64[::1], int64[:, ::1], int64[:, ::1])",
    cache=True,
    nogil=True,
)
def serve_reads(
    asked, read, fds, borders, shifts, starts, addresses, capacity, gap, align, pages, counts, base, results
):
    """Take numbers of buffers from the pipe `asked`, fill each, and put its number into the pipe `read`.

    Buffer b at `addresses[b]` is for the first `counts[b]` of `pages[b]`; what is found goes to row b of `base` and
    `results`. Several threads may serve the same pipes.
    """
    word = np.empty(1, dtype=np.uint8)
    while True:
        b = next_byte(asked, word)
        if b == END:
            return
        count = counts[b]
        read_pages(
            fds,
            borders,
            shifts,
            pages[b, :count],
            starts,
            addresses[b],
            capacity,
            gap,
            align,
            base[b, :count],
            results[b],
        )
        pass_on(read, word)


@njit(
    "void(int64, int64, int64[::1], uint64[::1], int64[:, ::1], int64[:, ::1], int64[:, ::1])", cache=True, nogil=True
)
def serve_checks(read, done, starts, sums, pages, base, results):
    """Take numbers of buffers that were filled from the pipe `read`, check the pages, and put them into `done`."""
    word = np.empty(1, dtype=np.uint8)
    while True:
        b = next_byte(read, word)
        if b == END:
            return
        found = results[b]
        found[5] = -1
        if found[3] < 0:
            count = found[0]
            found[5] = verify_pages(base[b, :count], pages[b, :count], starts, sums)
        pass_on(done, word)
