"""A thread that reads and checks groups of pages, one after another, and needs the interpreter for none of them."""

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


@njit(
    "void(int64, int64, int64[::1], int64[::1], int64[::1], int64[::1], uint64[::1], int64[::1], int64, int64, int64,"
    " int64[:, ::1], int64[::1], int64[:, ::1], int64[:, ::1])",
    cache=True,
    nogil=True,
)
def serve_reads(
    asked, done, fds, borders, shifts, starts, sums, addresses, capacity, gap, align, pages, counts, base, results
):
    """Take numbers of buffers from the pipe `asked`, fill each, and put its number into the pipe `done`.

    Buffer b at `addresses[b]` is for the first `counts[b]` of `pages[b]`; what is found goes to row b of `base` and
    `results`. Several threads may serve the same pipes.
    """
    word = np.empty(1, dtype=np.uint8)
    at = address_of(word)
    while True:
        got = native_read(asked, at, 1)
        if got < 0:
            # A signal came, which is for the main thread.
            continue
        if got == 0 or word[0] == END:
            return
        b = np.int64(word[0])
        count = counts[b]
        found = results[b]
        read_pages(
            fds, borders, shifts, pages[b, :count], starts, addresses[b], capacity, gap, align, base[b, :count], found
        )
        found[5] = -1
        if found[3] < 0:
            read = found[0]
            found[5] = verify_pages(base[b, :read], pages[b, :read], starts, sums)
        while native_write(done, at, 1) < 1:
            pass
