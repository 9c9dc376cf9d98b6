"""A cache in a file that several processes map: each finds the hot keys that the others met.

A generation is never changed but for its counts, which all processes raise as they hit (an increment lost to a race
costs a little accuracy, nothing else). The next one is built aside from the best keys of this one and of the builder's
own cache, and takes force by a rename; whoever still maps the old file keeps it until the next look. All of it is soft
state: without it a join is slower, never wrong, and whatever goes wrong with its files is noted and kept from the join
(see `generation_file.py` for what a file is and how it is checked).
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from semistream.columns.rows import BatchColumns, RowLayout
from semistream.kernels import generation as kernel
from semistream.kernels.cache import ENTRY_BYTES
from semistream.kernels.rows import BLOCK_BYTES
from semistream.parts.backoff import BackOff
from semistream.parts.cache import MAX_LOAD, Cache
from semistream.parts.generation_file import (
    HEADER_BYTES,
    Found,
    Generation,
    GenerationError,
    Scratch,
    generations_in,
    path_of,
    remove_scratch,
)

__all__ = ["Generation", "Generations"]

_LOCK = "build.lock"
_GROUP_ROWS = 8192
_KEY_BYTES = ENTRY_BYTES / MAX_LOAD
#: one request says little about a key that was met for the first time
_DISCOUNT = 0.5
_GROWTH = 0.5
_WINDOW_PER_KEY = 40
_LEAST_TUPLES = 10_000
_DRIFT = 0.9
#: failures to open a file that say nothing about the file
_NOT_THE_FILE = (errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN)


class Generations:
    """The generations of one folder: the newest one, and how the next is made.

    `signature` stands for everything a cached row depends on (version of R, columns); a file with another one is not
    used. `limit_bytes` bounds a generation's file.

    No method raises for what is wrong with the files, folder or disk. Each such failure is counted in `failures`, the
    last one given in `last_failure`, and the files are then left alone for a while (`BackOff`), but for the generation
    that is mapped already. What ends the waiting for good is a new generation that could be mapped.
    """

    def __init__(
        self,
        folder: Path,
        signature: str,
        limit_bytes: int,
        layout: RowLayout,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder
        self.signature = signature
        self.limit_bytes = limit_bytes
        self.layout = layout
        self.current: Generation | None = None
        self.failures = 0
        self.last_failure: str | None = None
        self._off = BackOff(clock)
        self._fresh_tuples = 0
        #: files that were looked at and are of no use
        self._refused: set[Found] = set()
        with self._softly("making the folder"):
            folder.mkdir(parents=True, exist_ok=True)

    @staticmethod
    def least_bytes(layout: RowLayout) -> int:
        """The smallest limit that is worth a generation."""
        return HEADER_BYTES + 64 * (layout.slot_bytes + BLOCK_BYTES) + (1 << 16)

    def _note(self, doing: str, error: Exception) -> None:
        self.failures += 1
        self.last_failure = f"{doing} {self.folder}: {error}"
        self._off.failed()

    @contextmanager
    def _softly(self, doing: str) -> Iterator[None]:
        """Keeps failures of files from the join."""
        try:
            yield
        except (OSError, GenerationError) as error:
            self._note(doing, error)

    def refresh(self) -> bool:
        """Map the newest generation; True if it is another one than before."""
        if self._off.waiting:
            return False
        with self._softly("looking for a generation in"):
            found = generations_in(self.folder)
            self._refused.intersection_update(found)
            for file in found:
                if self._is_current(file):
                    return False
                if file not in self._refused and self._use(file):
                    return True
        return False

    def _is_current(self, file: Found) -> bool:
        return self.current is not None and file.inode == self.current.inode

    def _use(self, file: Found) -> bool:
        try:
            self.current = Generation(file.path, self.layout, self.signature)
        except FileNotFoundError:
            # Replaced while we looked: there will be another.
            return False
        except (OSError, GenerationError) as error:
            if not isinstance(error, OSError) or error.errno not in _NOT_THE_FILE:
                self._refused.add(file)
            self._note(f"using {file.path.name} in", error)
            return False
        self._off.worked()
        self._fresh_tuples = 0
        return True

    def saw(self, tuples: int) -> None:
        """`tuples` more stream tuples passed through the private cache."""
        self._fresh_tuples += tuples

    def is_due(self, private: Cache) -> bool:
        """Whether a new generation promises enough to be worth building."""
        if self._off.waiting:
            return False
        now = self.current
        if now is None:
            return self._fresh_tuples > 0
        if now.complete or self._fresh_tuples < _LEAST_TUPLES:
            return False
        if now.asked >= _LEAST_TUPLES * 5 and now.hit_rate < _DRIFT * now.header.hit_rate:
            return True
        if not now.header.full and private.is_full:
            return True
        return now.asked >= (1.0 if now.header.full else _GROWTH) * now.header.window

    @contextmanager
    def building(self) -> Iterator[bool]:
        """The right to build; False when another process has it or has just used it, or the folder fails."""
        lock = self._lock()
        try:
            yield lock is not None and self._may_build()
        finally:
            if lock is not None:
                with suppress(OSError):
                    os.close(lock)

    def _lock(self) -> int | None:
        if self._off.waiting:
            return None
        with self._softly("locking"):
            # Whoever went on to a newer version of R has removed the folder.
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return handle
            except BlockingIOError:
                os.close(handle)
            except BaseException:
                os.close(handle)
                raise
        return None

    def _may_build(self) -> bool:
        """Whether the newest file is the one that a new generation would start from, or none that anybody can use."""
        mine = False
        with self._softly("looking for a generation in"):
            remove_scratch(self.folder)
            newest = next(iter(generations_in(self.folder)), None)
            mine = newest is None or self._is_current(newest) or newest in self._refused
        return mine

    def merge(self, private: Cache) -> None:
        """Publish the next generation: the best keys of the current one and of a process's own cache."""
        row_bytes = float(self.layout.slot_bytes)
        if private.rows and self.layout.has_var:
            row_bytes += private.blocks.live * BLOCK_BYTES / private.rows
        old = self.current
        window = float(self._fresh_tuples) if old is None else old.header.window + old.asked
        sources = [_Source(private, window / max(self._fresh_tuples, 1), 0.0 if old is None else _DISCOUNT)]
        if old is not None:
            sources.append(_Source(old.cache, 1.0, 0.0))
        histogram = np.zeros((2, kernel.CLASSES))
        for source in sources:
            source.weigh(row_bytes, histogram)
        lowest, chance, keys, full = _cut(histogram, self._room(row_bytes))
        rescale = 0.5 if full and window > _WINDOW_PER_KEY * keys else 1.0
        with self._softly("building a generation in"), self._scratch(keys, self._wanted(keys, private)) as scratch:
            # The old keys first: they are what the new generation must not lose if rows come out larger than expected.
            for source in reversed(sources):
                source.copy(scratch.cache, row_bytes, lowest, chance, rescale)
            hit_rate = 0.0 if old is None else old.hit_rate
            self._publish(scratch, window * rescale, hit_rate, full=full, complete=False)

    def load(self, keys: int, fill: Callable[[Cache], bool], room_bytes: int | None = None) -> bool:
        """Publish a generation that `fill` loads with all of R; False if that cannot be had, and `merge` may be.

        `fill` says whether there was room for all, in `room_bytes` if they are given: the disk then sets no more aside.
        """
        loaded = False
        with self._softly("loading all of R into"), self._scratch(keys, room_bytes) as scratch:
            if not fill(scratch.cache):
                raise GenerationError(f"R is larger than it seemed: {self.limit_bytes} bytes are too few")
            self._publish(scratch, 0.0, 1.0, full=True, complete=True)
            loaded = True
        return loaded

    def _room(self, row_bytes: float) -> float:
        """Bytes for keys and rows, less what the last, partly used extents take."""
        return 0.98 * (self.limit_bytes - HEADER_BYTES) - 4 * max(4096.0, 16 * row_bytes)

    def _wanted(self, keys: int, private: Cache) -> int:
        """Bytes that all rows of both sources take at most: the disk need not set more aside."""
        rows = (private.pool.extents + private.blocks.extents) * private.arena.extent_bytes
        if self.current is not None:
            rows += self.current.header.arena
        # An extent may leave as much as one of its eight or more slots unused, and the last ones more.
        return Cache.directory_bytes(keys) + rows * 8 // 7 + 64 * max(self.layout.slot_bytes, BLOCK_BYTES) + (1 << 16)

    def _scratch(self, keys: int, wanted: int | None) -> Scratch:
        length = self.limit_bytes if wanted is None else min(wanted, self.limit_bytes)
        return Scratch(self.folder, self.layout, keys, length)

    def _publish(self, scratch: Scratch, window: float, hit_rate: float, *, full: bool, complete: bool) -> None:
        found = generations_in(self.folder)
        numbers = [file.number for file in found]
        if self.current is not None:
            numbers.append(self.current.number)
        # Above all that there are, also those nobody can use: they are removed with the others.
        number = max(numbers, default=0) + 1
        path = path_of(self.folder, number)
        scratch.publish(path, number, self.signature, window, hit_rate, full=full, complete=complete)
        for file in found:
            with suppress(OSError):
                file.path.unlink()


@dataclass(frozen=True)
class _Source:
    """A cache whose keys may go into the next generation.

    `scale` is what one of its requests counts for, `discount` what is taken off each count.
    """

    cache: Cache
    scale: float
    discount: float

    def weigh(self, row_bytes: float, histogram: npt.NDArray[np.float64]) -> None:
        cache = self.cache
        kernel.weigh(cache.entries, cache.arena.state, self.discount, self.scale, _KEY_BYTES, row_bytes, histogram)

    def copy(self, target: Cache, row_bytes: float, lowest: int, chance: int, rescale: float) -> None:
        """Copy all keys that are worth it, in groups."""
        cache = self.cache
        codes, counts, starts, ends = (np.empty(_GROUP_ROWS, dtype=np.int64) for _ in range(4))
        rows = np.empty(_GROUP_ROWS, dtype=np.int64)
        cursor = np.zeros(2, dtype=np.int64)
        while cursor[0] < cache.entries.size >> 1:
            keys = int(
                kernel.pick(
                    cache.entries,
                    cache.arena.state,
                    cursor,
                    self.discount,
                    self.scale,
                    _KEY_BYTES,
                    row_bytes,
                    lowest,
                    chance,
                    rescale * self.scale,
                    codes,
                    counts,
                    starts,
                    ends,
                    rows,
                )
            )
            filled = int(cursor[1])
            block = None
            if filled:
                arrays = cache.take(rows, 0, filled)
                if isinstance(arrays, int):
                    continue
                block = BatchColumns(self.cache.layout.physical, arrays, filled)
            if keys and target.admit(codes[:keys], starts[:keys], ends[:keys], counts[:keys], block) < keys:
                return


def _cut(histogram: npt.NDArray[np.float64], room: float) -> tuple[int, int, int, bool]:
    """Where the room ends: lowest class, its keys' chance in 2**32, keys in all, and whether anything stays out."""
    keys, size = (np.cumsum(row[::-1])[::-1] for row in histogram)
    if size[0] <= room:
        return 0, 1 << 32, int(keys[0]) + 8, False
    lowest = int(np.searchsorted(-size, -room, side="right")) - 1
    above = size[lowest + 1] if lowest + 1 < len(size) else 0.0
    share = (room - above) / histogram[1, lowest]
    chosen = keys[lowest] - (1.0 - share) * histogram[0, lowest]
    return lowest, int(share * 2**32), int(1.02 * chosen) + 64, True
