"""A cache in a file that several processes map: each finds the hot keys that the others met.

A generation is never changed but for its counts, which all processes raise as they hit (an increment lost to a race
costs a little accuracy, nothing else). The next one is built aside from the best keys of this one and of the builder's
own cache, and takes force by a rename; whoever still maps the old file keeps it until the next look. It is built when
what the old one lacks has cost as much as building takes, and beside the tasks (`upkeep.py`). All of it is soft state:
without it a join is slower, never wrong, and whatever goes wrong with its files is noted and kept from the join (see
`generation_file.py` for what a file is and how it is checked).
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from semistream.columns.rows import RowLayout
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

__all__ = ["Generation", "Generations", "GivenUpError", "Seen"]

_LOCK = "build.lock"
#: entries of a directory that are copied in one go, after which a build may be given up
_GROUP_ENTRIES = 65536
_KEY_BYTES = ENTRY_BYTES / MAX_LOAD
#: how often its own spread is taken off a count of a process's own cache, against those in a generation
_DOUBT = 1.0
_WINDOW_PER_KEY = 40
_SALT = 0x9E3779B97F4A7C1
_LEAST_TUPLES = 10_000
#: what a missed tuple takes, in tuples that are hit: an estimate for mapped pages, too low past the page cache
_MISS = 8.0
#: of the hits of a private cache that has given its keys away, those that it will have with the keys that come after
_AGAIN = 0.7
#: a generation that has less than this part of its hits left has counts of a stream that is gone
_DRIFT = 0.9
#: part of the keys of a generation that are worth another one for those who come
_NEW_KEYS = 0.05
#: the rate of the coldest keys is looked at again when so many more tuples have asked
_LOOK_AGAIN = 1.25
#: failures to open a file that say nothing about the file
_NOT_THE_FILE = (errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN)


class GivenUpError(Exception):
    """Nobody wants the generation any more that is being built."""


@dataclass(frozen=True)
class Seen:
    """What a task has seen: its tuples, how many of them a cache has answered, and the seconds of its join."""

    tuples: int = 0
    hits: int = 0
    shared_hits: int = 0
    seconds: float = 0.0

    @property
    def private_rate(self) -> float:
        """Tuples that the private cache has answered, per tuple."""
        return (self.hits - self.shared_hits) / max(self.tuples, 1)

    @property
    def miss_seconds(self) -> float:
        """What a miss takes longer than a hit."""
        in_hits = self.hits + _MISS * (self.tuples - self.hits)
        return (_MISS - 1) * self.seconds / max(in_hits, 1.0)


class Generations:
    """The generations of one folder: the newest one, and how the next is made.

    `signature` stands for everything a cached row depends on (base of R, columns); a file with another one is not
    used. `runs` are the changes of R behind its base: files made with fewer of them, or with more, are used as well.
    `limit_bytes` bounds a generation's file.

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
        runs: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.signature = signature
        self.runs = tuple(runs)
        self.limit_bytes = limit_bytes
        self.layout = layout
        self.current: Generation | None = None
        self.failures = 0
        self.last_failure: str | None = None
        #: generations that were built here, and the seconds spent on building and verifying
        self.built = 0
        self.seconds = 0.0
        self._off = BackOff(clock)
        #: tuples since the generation is used, and those that the counts of the private cache stand for
        self._fresh_tuples = 0
        self._window = 0.0
        self._halvings = 0
        #: the newest generation, verified and mapped, until it is taken into use
        self._ready: Generation | None = None
        #: the rate of so many of the coldest keys, and how many tuples had asked when it was looked at
        self._coldest = (0, 0.0, 0.0)
        #: the part of its hits that the current generation still has
        self._still_true = 1.0
        #: files that were looked at and are of no use
        self._refused: set[Found] = set()
        with self._softly("making the folder"):
            folder.mkdir(parents=True, exist_ok=True)

    @staticmethod
    def least_bytes(layout: RowLayout) -> int:
        """The smallest limit that is worth a generation."""
        return HEADER_BYTES + 64 * (layout.slot_bytes + BLOCK_BYTES) + (1 << 16)

    def note(self, doing: str, error: Exception) -> None:
        """Count a failure, and leave the files alone for a while."""
        self.failures += 1
        self.last_failure = f"{doing} {self.folder}: {error}"
        self._off.failed()

    @contextmanager
    def _softly(self, doing: str) -> Iterator[None]:
        """Keeps failures of files from the join."""
        try:
            yield
        except (OSError, GenerationError) as error:
            self.note(doing, error)

    def refresh(self) -> bool:
        """Map the newest generation and use it; True if it is another one than before."""
        self.look()
        return self.adopt()

    @property
    def is_outdated(self) -> bool:
        """Whether there is a file that `look` may want to map."""
        outdated = False
        if not self._off.waiting:
            with self._softly("looking for a generation in"):
                newest = next(iter(generations_in(self.folder)), None)
                outdated = newest is not None and not self._is_mapped(newest) and newest not in self._refused
        return outdated

    def look(self) -> None:
        """Verify and map the newest generation, for `adopt`."""
        if self._off.waiting:
            return
        with self._softly("looking for a generation in"), self._timed():
            found = generations_in(self.folder)
            self._refused.intersection_update(found)
            for file in found:
                if self._is_mapped(file) or (file not in self._refused and self._map(file)):
                    return

    def adopt(self) -> bool:
        """Use what `look` has mapped; False if there is nothing new."""
        ready, self._ready = self._ready, None
        if ready is None or not ready.fits(self.runs):
            return False
        # R may have more changes than when it was mapped.
        ready.follow(self.runs)
        self.current = ready
        self._fresh_tuples = 0
        self._coldest = (0, 0.0, 0.0)
        self._still_true = 1.0
        return True

    def follow(self, runs: Sequence[str]) -> None:
        """Go on with a version of R that has more changes. What is mapped stays in use, unless it knows of others.

        A merge may go on meanwhile, a load not: it is a word about all of R.
        """
        self.runs = tuple(runs)
        if self.current is not None:
            if self.current.fits(runs):
                self.current.follow(runs)
            else:
                self.current = None

    def _is_current(self, file: Found) -> bool:
        return self.current is not None and file.inode == self.current.inode

    def _is_mapped(self, file: Found) -> bool:
        return self._is_current(file) or (self._ready is not None and file.inode == self._ready.inode)

    def _map(self, file: Found) -> bool:
        try:
            self._ready = Generation(file.path, self.layout, self.signature, self.runs)
        except FileNotFoundError:
            # Replaced while we looked: there will be another.
            return False
        except (OSError, GenerationError) as error:
            if not isinstance(error, OSError) or error.errno not in _NOT_THE_FILE:
                self._refused.add(file)
            self.note(f"using {file.path.name} in", error)
            return False
        self._off.worked()
        return True

    @contextmanager
    def _timed(self) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start

    # ------------------------------------------------------------------------------ when to build the next

    def saw(self, tuples: int, private: Cache | None = None, seen: Seen | None = None) -> None:
        """`tuples` more stream tuples passed through the private cache."""
        self._fresh_tuples += tuples
        if private is not None:
            self._window /= 2.0 ** min(private.halvings - self._halvings, 64)
            self._halvings = private.halvings
        self._window += tuples
        now = self.current
        if now is None or now.complete or private is None or seen is None or not seen.tuples:
            return
        if now.asked >= _LEAST_TUPLES and now.hit_rate:
            lately = seen.shared_hits / seen.tuples / now.hit_rate
            self._still_true = lately if lately < _DRIFT else 1.0
        if private.is_nearly_full:
            now.lose(self._gain(now, private, seen) * seen.tuples * seen.miss_seconds)

    def _gain(self, now: Generation, private: Cache, seen: Seen) -> float:
        """Tuples, per tuple, that are missed and would be hits with the next generation, less those it would lose.

        A key is a hit wherever it is cached, so a key that moves from the private cache into the generation brings the
        hits of the one that takes its place there, and costs those of the one that it drives out here.
        """
        keys = max(private.keys, 1)
        free = 0.0
        if not now.header.full:
            free = min((self.limit_bytes - now.file_bytes) / (_KEY_BYTES + self._row_bytes(private)), keys)
        lost = self._coldest_rate(now, int(keys - free))
        # What finds room without driving out another is also new to other processes.
        again = _AGAIN + (1.0 - _AGAIN) * free / keys
        # Where the stream has changed, the counts of the generation tell of keys that were hot.
        return again * seen.private_rate - self._still_true * lost

    def _coldest_rate(self, now: Generation, keys: int) -> float:
        """Requests per tuple for so many of the generation's least wanted keys.

        A count of c stands for a rate of c + 1: those which were counted least are those with the least luck, too.
        """
        if keys <= 0:
            return 0.0
        window = max(now.header.window + now.asked, 1.0)
        looked_for, looked_at, rate = self._coldest
        if window > _LOOK_AGAIN * looked_at or not 0.8 < looked_for / keys < _LOOK_AGAIN:
            looked_for, rate = keys, (now.cache.coldest(keys) + keys) / window
            self._coldest = (keys, window, rate)
        return rate * keys / looked_for

    def is_due(self, private: Cache) -> bool:
        """Whether the lacks of the current generation have cost as much as the next one would.

        As long as there is room, what was learnt since is also kept for processes that come: whenever the tuples have
        doubled.
        """
        if self._off.waiting or self._ready is not None:
            return False
        now = self.current
        if now is None or now.is_outgrown:
            return self._fresh_tuples > 0
        if now.complete or self._fresh_tuples < _LEAST_TUPLES:
            return False
        if not now.header.full and now.asked >= now.header.window and private.keys >= _NEW_KEYS * now.header.keys:
            return True
        grown = min(self.limit_bytes / now.file_bytes, 1.0 + private.bytes_held / now.file_bytes)
        return now.lost_seconds >= now.header.seconds * grown

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

    def merge(
        self, private: Cache, released: Callable[[], None] = lambda: None, check: Callable[[], None] = lambda: None
    ) -> None:
        """Publish the next generation: the best keys of the current one and of a process's own cache.

        `released` is called when the private cache is no longer read, `check` now and then: what it raises ends this.
        """
        row_bytes = self._row_bytes(private)
        old, runs = self.current, self.runs
        if old is not None:
            # What is taken over from a generation of later changes is of these.
            runs = max(runs, tuple(old.header.runs), key=len)
        window = self._window if old is None else old.header.window + old.asked
        sources = [_Source(private, window / max(self._window, 1.0), 0.0 if old is None else _DOUBT)]
        if old is not None:
            # Of a stream that is gone neither the counts are true nor the tuples that they were counted over.
            sources.append(_Source(old.cache, self._still_true**2, 0.0))
            window *= self._still_true
        histogram = np.zeros((2, kernel.CLASSES))
        for source in sources:
            source.weigh(row_bytes, histogram)
        lowest, chance, keys, full = _cut(histogram, self._room(row_bytes))
        rescale = 0.5 if full and window > _WINDOW_PER_KEY * keys else 1.0
        salt = (1 if old is None else old.number + 1) * _SALT & (2**63 - 1)
        with (
            self._softly("building a generation in"),
            self._timed(),
            self._scratch(keys, self._wanted(keys, private)) as scratch,
        ):
            for source in sources:
                source.copy(scratch.cache, row_bytes, (lowest, chance, salt), rescale, check)
                released()
            check()
            self._publish(scratch, window * rescale, runs, full=full, complete=False)

    def _row_bytes(self, private: Cache) -> float:
        """Bytes of a row in the next generation, from those in its sources."""
        if not self.layout.has_var:
            return float(self.layout.slot_bytes)
        rows, held = private.rows, float(private.rows * self.layout.slot_bytes)
        if private.rows and not private.shares_blocks:
            held += private.blocks.live * BLOCK_BYTES
        if self.current is not None:
            rows, held = rows + self.current.header.rows, held + self.current.header.arena
        return held / rows if rows else float(self.layout.slot_bytes)

    def load(self, keys: int, fill: Callable[[Cache], bool], room_bytes: int | None = None) -> bool:
        """Publish a generation that `fill` loads with all of R; False if that cannot be had, and `merge` may be.

        `fill` says whether there was room for all, in `room_bytes` if they are given: the disk then sets no more aside.
        """
        loaded = False
        with self._softly("loading all of R into"), self._timed(), self._scratch(keys, room_bytes) as scratch:
            if not fill(scratch.cache):
                raise GenerationError(f"R is larger than it seemed: {self.limit_bytes} bytes are too few")
            self._publish(scratch, 0.0, self.runs, full=True, complete=True)
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

    def _publish(self, scratch: Scratch, window: float, runs: Sequence[str], *, full: bool, complete: bool) -> None:
        found = generations_in(self.folder)
        numbers = [file.number for file in found]
        if self.current is not None:
            numbers.append(self.current.number)
        # Above all that there are, also those nobody can use: they are removed with the others.
        number = max(numbers, default=0) + 1
        path = path_of(self.folder, number)
        scratch.publish(path, number, self.signature, window, full=full, complete=complete, runs=runs)
        self.built += 1
        for file in found:
            with suppress(OSError):
                file.path.unlink()


@dataclass(frozen=True)
class _Source:
    """A cache whose keys may go into the next generation.

    `scale` is what one of its requests counts for, `doubt` how often a count's own spread is taken off it.
    """

    cache: Cache
    scale: float
    doubt: float

    def weigh(self, row_bytes: float, histogram: npt.NDArray[np.float64]) -> None:
        cache = self.cache
        kernel.weigh(cache.entries, cache.arena.state, self.doubt, self.scale, _KEY_BYTES, row_bytes, histogram)

    def copy(
        self,
        target: Cache,
        row_bytes: float,
        cut: tuple[int, int, int],
        rescale: float,
        check: Callable[[], None],
    ) -> None:
        """Copy all keys that are worth it, in groups; `cut` is the lowest class, its chance and a salt for that."""
        cache, layout = self.cache, self.cache.layout
        arena, extents, pool = target.pool.view
        into = (target.entries, target.state, arena, extents, pool, target.blocks.state, target.max_keys)
        cursor = np.zeros(2, dtype=np.int64)
        entries = cache.entries.size >> 1
        while cursor[0] < entries and not cursor[1]:
            check()
            kernel.copy_keys(
                cache.entries,
                cache.arena.state,
                cursor,
                min(int(cursor[0]) + _GROUP_ENTRIES, entries),
                self.doubt,
                self.scale,
                _KEY_BYTES,
                row_bytes,
                *cut,
                rescale * self.scale,
                into,
                layout.slot_bytes,
                layout.chain_at,
            )
        target.nulls_seen |= cache.nulls_seen


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
