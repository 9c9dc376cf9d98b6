"""A cache in a file that several processes map: each finds the hot keys that the others met.

    generation-000007:  header (JSON) | tallies | directory | rows

A generation is never changed but for its counts, which all processes raise as they hit (an increment lost to a race
costs a little accuracy, nothing else). The next one is built aside from the best keys of this one and of the builder's
own cache, and takes force by a rename; whoever still maps the old file keeps it until the next look. All of it is soft
state: without it a join is slower, never wrong.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from semistream.columns.rows import BatchColumns, RowLayout
from semistream.kernels import generation as kernel
from semistream.kernels.arena import A_SHIFT
from semistream.kernels.cache import EMPTY, ENTRY_BYTES
from semistream.kernels.rows import BLOCK_BYTES
from semistream.parts.arena import Arena
from semistream.parts.cache import MAX_LOAD, Cache

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_FORMAT = "semistream-generation-1"
_NAME = "generation-"
_LOCK = "build.lock"
_HEADER_BYTES = 8192
_TALLIES_AT, _ASKED, _HITS = 4096, 0, 1
_GROUP_ROWS = 8192
_KEY_BYTES = ENTRY_BYTES / MAX_LOAD
#: one request says little about a key that was met for the first time
_DISCOUNT = 0.5
_GROWTH = 0.5
_WINDOW_PER_KEY = 40
_LEAST_TUPLES = 10_000
_DRIFT = 0.9


@dataclass(frozen=True)
class Header:
    """What a generation says of itself; `window` is the number of tuples that its counts stand for."""

    number: int
    signature: str
    keys: int
    rows: int
    directory: int
    arena: int
    shift: int
    #: which columns hold nulls, a bit each, as hexadecimal digits
    nulls_seen: str
    complete: bool
    full: bool
    window: float
    hit_rate: float
    format: str = _FORMAT


def _map(handle: int, length: int) -> Bytes:
    return np.frombuffer(mmap.mmap(handle, length, flags=mmap.MAP_SHARED), dtype=np.uint8)


def _number(path: Path) -> int:
    return int(path.name.removeprefix(_NAME)) if path.name[len(_NAME) :].isdigit() else 0


def _newest(folder: Path) -> Path | None:
    found = [path for path in folder.glob(f"{_NAME}*") if _number(path)]
    return max(found, key=_number, default=None)


class Generation:
    """A mapped generation, for probing."""

    def __init__(self, path: Path, layout: RowLayout) -> None:
        handle = os.open(path, os.O_RDWR)
        try:
            self._bytes = _map(handle, os.fstat(handle).st_size)
        finally:
            os.close(handle)
        self.header = Header(**json.loads(self._bytes[:_TALLIES_AT].tobytes().rstrip(b"\0")))
        self._tallies = self._bytes[_TALLIES_AT:_HEADER_BYTES].view(np.int64)
        directory_end = _HEADER_BYTES + self.header.directory
        arena = Arena(self.header.arena, layout.slot_bytes, self._bytes[directory_end:])
        arena.state[A_SHIFT] = self.header.shift
        entries = self._bytes[_HEADER_BYTES:directory_end].view(np.int64)
        self.cache = Cache(arena, layout, self._bytes.nbytes, self.header.keys, entries=entries)
        bits = np.frombuffer(bytes.fromhex(self.header.nulls_seen), dtype=np.uint8)
        self.cache.nulls_seen[:] = np.unpackbits(bits, count=len(self.cache.nulls_seen)).astype(np.bool_)
        self.cache.counting = not self.header.complete

    @property
    def number(self) -> int:
        return self.header.number

    @property
    def complete(self) -> bool:
        """Whether all of R is here: a key that is not, does not exist."""
        return self.header.complete

    @property
    def file_bytes(self) -> int:
        return int(self._bytes.nbytes)

    @property
    def asked(self) -> int:
        """Stream tuples looked up here so far, by all processes."""
        return int(self._tallies[_ASKED])

    @property
    def hit_rate(self) -> float:
        return float(self._tallies[_HITS]) / max(self.asked, 1)

    def tally(self, asked: int, hits: int) -> None:
        self._tallies[_ASKED] += asked
        self._tallies[_HITS] += hits


class Generations:
    """The generations of one folder: the newest one, and how the next is made.

    `signature` stands for everything a cached row depends on (version of R, columns); a file with another one is not
    used. `limit_bytes` bounds a generation's file.
    """

    def __init__(self, folder: Path, signature: str, limit_bytes: int, layout: RowLayout) -> None:
        self.folder = folder
        self.signature = signature
        self.limit_bytes = limit_bytes
        self.layout = layout
        self.current: Generation | None = None
        self._fresh_tuples = 0
        folder.mkdir(parents=True, exist_ok=True)

    @staticmethod
    def least_bytes(layout: RowLayout) -> int:
        """The smallest limit that is worth a generation."""
        return _HEADER_BYTES + 64 * (layout.slot_bytes + BLOCK_BYTES) + (1 << 16)

    def refresh(self) -> bool:
        """Map the newest generation; True if it is another one than before."""
        path = _newest(self.folder)
        if path is None or (self.current is not None and _number(path) <= self.current.number):
            return False
        try:
            found = Generation(path, self.layout)
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            # Replaced while we looked, or no generation of ours: there will be another.
            return False
        if found.header.signature != self.signature or found.header.format != _FORMAT:
            return False
        self.current = found
        self._fresh_tuples = 0
        return True

    def saw(self, tuples: int) -> None:
        """So many stream tuples passed through the private cache since the last generation."""
        self._fresh_tuples += tuples

    def is_due(self, private: Cache) -> bool:
        """Whether a new generation promises enough to be worth building."""
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
        """The right to build; False when another process has it or has just used it."""
        # Whoever went on to a newer version of R has removed the folder.
        self.folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
                return
            path = _newest(self.folder)
            yield path is None or (self.current is not None and _number(path) == self.current.number)
        finally:
            os.close(handle)

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
        with self._fresh_cache(keys) as cache:
            # The old keys first: they are what the new generation must not lose if rows come out larger than expected.
            for source in reversed(sources):
                source.copy(cache, row_bytes, lowest, chance, rescale)
            hit_rate = 0.0 if old is None else old.hit_rate
            self._publish(cache, window * rescale, hit_rate, full=full, complete=False)

    def load(self, keys: int, fill: Callable[[Cache], None]) -> None:
        """Publish a generation that `fill` has loaded with all of R."""
        with self._fresh_cache(keys) as cache:
            fill(cache)
            self._publish(cache, 0.0, 1.0, full=True, complete=True)

    def _room(self, row_bytes: float) -> float:
        """Bytes for keys and rows, less what the last, partly used extents take."""
        return 0.98 * (self.limit_bytes - _HEADER_BYTES) - 4 * max(4096.0, 16 * row_bytes)

    @contextmanager
    def _fresh_cache(self, keys: int) -> Iterator[Cache]:
        """An empty cache in a file of the largest size allowed; the file is removed unless it was renamed."""
        directory = -(-Cache.directory_bytes(keys) // 4096) * 4096
        handle = os.open(self._scratch, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.ftruncate(handle, self.limit_bytes)
            self._memory = _map(handle, self.limit_bytes)
            entries = self._memory[_HEADER_BYTES : _HEADER_BYTES + directory].view(np.int64)
            entries.fill(EMPTY)
            rows = self._memory[_HEADER_BYTES + directory :]
            arena = Arena(len(rows), self.layout.slot_bytes, rows)
            yield Cache(arena, self.layout, self.limit_bytes, keys, entries=entries)
        finally:
            os.close(handle)
            del self._memory
            self._scratch.unlink(missing_ok=True)

    @property
    def _scratch(self) -> Path:
        return self.folder / f".{_NAME}{os.getpid()}"

    def _publish(self, cache: Cache, window: float, hit_rate: float, *, full: bool, complete: bool) -> None:
        number = 1 if self.current is None else self.current.number + 1
        used = (cache.arena.extents_total - cache.arena.free_extents) * cache.arena.extent_bytes
        header = Header(
            number=number,
            signature=self.signature,
            keys=cache.keys,
            rows=cache.rows,
            directory=cache.entries.nbytes,
            arena=used,
            shift=cache.arena.shift,
            nulls_seen=np.packbits(cache.nulls_seen).tobytes().hex(),
            complete=complete,
            full=full,
            window=window,
            hit_rate=hit_rate,
        )
        text = json.dumps(asdict(header)).encode()
        assert len(text) <= _TALLIES_AT, "a row has more columns than any system we read from allows"
        self._memory[: len(text)] = np.frombuffer(text, dtype=np.uint8)
        os.truncate(self._scratch, _HEADER_BYTES + header.directory + max(used, cache.arena.extent_bytes))
        os.rename(self._scratch, self.folder / f"{_NAME}{number:06d}")
        for path in self.folder.glob(f"{_NAME}*"):
            if 0 < _number(path) < number:
                path.unlink(missing_ok=True)


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
                if arrays is None:
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
