"""A second thread for building output: rows of a batch are gathered in two halves at the same time.

To gather columns takes a third of a join's time and touches nothing but memory that is read, and buffers of its own.
Whoever runs a join where a processor would otherwise rest (the command line does) asks for it around its calls, in its
own thread; elsewhere, as in Spark's workers, where every processor has a task, nothing changes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
#: gathers so many rows, from the first of these on, into buffers at these addresses: values, and bitmaps
Gather = Callable[[int, int, Int64s, Int64s], None]

#: below this a thread is not worth waking
LEAST_ROWS = 4096
_helper: ContextVar[ThreadPoolExecutor | None] = ContextVar("helper", default=None)


@contextlib.contextmanager
def helped() -> Iterator[None]:
    """Have joins that this thread runs helped, if there is a processor for it.

    Enter it after the join was opened: memory that the helper reads must not be closed before it has ended.
    """
    if len(os.sched_getaffinity(0)) < 2 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) < 2:
        yield
        return
    helper = ThreadPoolExecutor(1, "semistream helper")
    token = _helper.set(helper)
    try:
        yield
    finally:
        _helper.reset(token)
        helper.shutdown()


def in_halves(gather: Gather, count: int, data: Int64s, valid: Int64s, steps: Int64s) -> None:
    """Gather `count` rows, with the helper if this thread has one; `steps` are the bytes of eight values per column."""
    helper = _helper.get()
    if helper is None or count < LEAST_ROWS:
        gather(0, count, data, valid)
        return
    # Bitmaps are cut between two bytes.
    half = count // 16 * 8
    bytes_of_half = half // 8
    other: Future[None] = helper.submit(
        gather,
        half,
        count - half,
        data + bytes_of_half * steps,
        np.where(valid != 0, valid + bytes_of_half, 0),
    )
    try:
        gather(0, half, data, valid)
    finally:
        _finished(other)


def _finished(work: Future[None]) -> None:
    """Wait to the end, also when a signal comes in between: the buffers go when the caller does."""
    interrupted: BaseException | None = None
    while True:
        try:
            work.result()
        except BaseException as error:
            if work.done():
                raise
            interrupted = error
        else:
            break
    if interrupted is not None:
        raise interrupted
