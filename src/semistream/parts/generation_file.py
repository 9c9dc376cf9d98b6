"""The file of a generation: how it is made, and how it is checked before a byte of it is used.

    header (JSON and its checksum) | tallies | directory | rows

Nothing here may end in a signal. Space is allocated before it is mapped, because a page of a sparse file that finds no
room on the disk is a SIGBUS. A file is read through `pread` before it is mapped: an unreadable block is then an error,
and every byte goes through a checksum but for the counts and tallies, which processes raise in place and which change
no row. Whatever is wrong with a file is an OSError or a GenerationError.

What stays: a block that turns unreadable later, after its page was verified and reclaimed, and a file system that
copies on write and finds no room for the copy, are signals still. Without the mapping each process would hold a copy.
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import re
import stat
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from semistream.columns.rows import RowLayout
from semistream.errors import SemiStreamError
from semistream.kernels import generation as kernel
from semistream.kernels.arena import A_SHIFT
from semistream.kernels.cache import EMPTY
from semistream.kernels.hashing import xxhash64_bytes
from semistream.parts.arena import Arena
from semistream.parts.cache import Cache

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_FORMAT = "semistream-generation-4"
_NAME = re.compile(r"generation-([0-9]+)")
_SCRATCH = ".generation-"
HEADER_BYTES = 8192
_TALLIES_AT, _ASKED, _HITS, _LOST_NS = 4096, 0, 1, 2
_SEAL_AT = _TALLIES_AT - 8
_ALIGN = 4096
#: no stream is that long: a larger tally is damage
_MOST_TUPLES = 1 << 48
_CHUNK_BYTES = 1 << 18
_CANNOT_ALLOCATE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class GenerationError(SemiStreamError):
    """A file that is no generation, or not of this join, or damaged. Nobody sees it: the join goes on without."""


@dataclass(frozen=True)
class Header:
    """What a generation says of itself; `window` is the number of tuples that its counts stand for."""

    number: int
    signature: str
    #: the runs of changes that R had when its rows were read, oldest first
    runs: list[str]
    #: how its rows are packed
    layout: str
    keys: int
    rows: int
    directory: int
    arena: int
    file_bytes: int
    shift: int
    #: which columns hold nulls, a bit each, as hexadecimal digits
    nulls_seen: str
    complete: bool
    full: bool
    window: float
    #: what it took to build
    seconds: float
    #: of directory and rows, without the counts
    checksum: int = 0
    format: str = _FORMAT


@dataclass(frozen=True)
class Found:
    """A file that is called a generation."""

    path: Path
    number: int
    inode: int
    size: int


def generations_in(folder: Path) -> list[Found]:
    """The files called generations, the newest first."""
    found = []
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            named = _NAME.fullmatch(entry.name)
            if named is None:
                continue
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                found.append(Found(Path(entry.path), int(named[1]), status.st_ino, status.st_size))
    return sorted(found, key=lambda one: one.number, reverse=True)


def path_of(folder: Path, number: int) -> Path:
    return folder / f"generation-{number:06d}"


def remove_scratch(folder: Path) -> None:
    """Remove what builders that were killed left behind; only for the one who holds the right to build."""
    for path in folder.glob(f"{_SCRATCH}*"):
        with suppress(OSError):
            path.unlink()


def layout_name(layout: RowLayout) -> str:
    """Stands for the way rows are packed: bytes of another layout would be read as other values."""
    places = (layout.kinds, layout.widths, layout.cells, layout.null_bits)
    text = repr((layout.header, layout.slot_bytes, layout.head, layout.nulls_at, [each.tolist() for each in places]))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _map(handle: int, length: int) -> Bytes:
    try:
        return np.frombuffer(mmap.mmap(handle, length, flags=mmap.MAP_SHARED), dtype=np.uint8)
    except ValueError as error:
        raise GenerationError(f"it is shorter than a moment ago: {error}") from error


def _allocate(handle: int, length: int) -> None:
    """Have the disk set all the bytes of a file aside, or fail with an OSError."""
    try:
        os.posix_fallocate(handle, 0, length)
    except OSError as error:
        if error.errno not in _CANNOT_ALLOCATE:
            raise
        zeros = bytes(_CHUNK_BYTES)
        at = 0
        while at < length:
            at += os.pwrite(handle, zeros[: length - at], at)


def _chunks(handle: int, start: int, end: int) -> Iterator[Bytes]:
    """The bytes of a part of a file, in one buffer that each chunk overwrites."""
    buffer = np.empty(_CHUNK_BYTES, dtype=np.uint8)
    while start < end:
        part = buffer[: min(_CHUNK_BYTES, end - start)]
        filled = 0
        while filled < len(part):
            read = os.preadv(handle, [part.data[filled:]], start + filled)
            if read == 0:
                raise GenerationError(f"it ends at byte {start + filled}")
            filled += read
        yield part
        start += len(part)


def _hash(data: Bytes, seed: int) -> int:
    return int(xxhash64_bytes(data.ctypes.data, data.nbytes, np.uint64(seed)))


def _checksum(handle: int, header: Header, slot_bytes: int) -> int:
    """One pass over directory and rows; refuses a directory that points out of the rows."""
    total = 0
    seen = np.zeros(2, dtype=np.int64)
    directory_end = HEADER_BYTES + header.directory
    for part in _chunks(handle, HEADER_BYTES, directory_end):
        kernel.mask_counts(part.view(np.int64), header.shift, header.arena - slot_bytes, seen)
        total = _hash(part, total)
    if seen[0] != header.keys or seen[1]:
        raise GenerationError(
            f"its directory has {seen[0]} keys instead of {header.keys}, {seen[1]} of them impossible"
        )
    for part in _chunks(handle, directory_end, header.file_bytes):
        total = _hash(part, total)
    return total


def _read_header(handle: int) -> Header:
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_size < HEADER_BYTES:
        raise GenerationError(f"it is no file of at least {HEADER_BYTES} bytes")
    (first,) = _chunks(handle, 0, _TALLIES_AT)
    if _hash(first[:_SEAL_AT], 0) != int(first[_SEAL_AT:].view(np.uint64)[0]):
        raise GenerationError("its header is damaged, or of another format")
    try:
        header = Header(**json.loads(first[:_SEAL_AT].tobytes().rstrip(b"\0")))
    except (ValueError, TypeError) as error:
        raise GenerationError(f"its header is of another format: {error}") from error
    if header.format != _FORMAT:
        raise GenerationError(f"its format is {header.format} instead of {_FORMAT}")
    if not status.st_size == header.file_bytes == HEADER_BYTES + header.directory + header.arena:
        raise GenerationError(f"it has {status.st_size} bytes instead of {header.file_bytes}")
    return header


class Generation:
    """A generation for probing: verified, then mapped.

    A changed key has a new code (decision 0032), so rows that were read when R had fewer changes or more are as good
    as those of the version with `runs`: nobody asks for a row under a code that his version does not have.
    """

    def __init__(self, path: Path, layout: RowLayout, signature: str, runs: Sequence[str] = ()) -> None:
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            self.header = header = _read_header(handle)
            if header.signature != signature or header.layout != layout_name(layout):
                raise GenerationError("it belongs to another join")
            if not self.fits(runs):
                raise GenerationError("R has been changed in another way since")
            if _checksum(handle, header, layout.slot_bytes) != header.checksum:
                raise GenerationError("its checksum differs")
            self._bytes = _map(handle, header.file_bytes)
            #: no other file has it while this one is mapped
            self.inode = os.fstat(handle).st_ino
        finally:
            os.close(handle)
        self._tallies = self._bytes[_TALLIES_AT:HEADER_BYTES].view(np.int64)
        counted = self._tallies[[_ASKED, _HITS, _LOST_NS]]
        if (counted < 0).any() or (counted > _MOST_TUPLES).any():
            self._tallies[:] = 0
        directory_end = HEADER_BYTES + header.directory
        arena = Arena(header.arena, layout.slot_bytes, self._bytes[directory_end:])
        arena.state[A_SHIFT] = header.shift
        entries = self._bytes[HEADER_BYTES:directory_end].view(np.int64)
        self.cache = Cache(arena, layout, self._bytes.nbytes, header.keys, entries=entries)
        bits = np.frombuffer(bytes.fromhex(header.nulls_seen), dtype=np.uint8)
        self.cache.nulls_seen[:] = np.unpackbits(bits, count=len(self.cache.nulls_seen)).astype(np.bool_)
        self.follow(runs)

    @property
    def number(self) -> int:
        return self.header.number

    def fits(self, runs: Sequence[str]) -> bool:
        """Whether its rows were read from the same lineage of changes; two that fork give one code to several keys."""
        return all(known == asked for known, asked in zip(self.header.runs, runs, strict=False))

    def follow(self, runs: Sequence[str]) -> None:
        """R has these changes: what was all of it may lack the last ones."""
        #: whether all of R is here: a key that is not, does not exist
        self.complete = self.header.complete and len(self.header.runs) >= len(runs)
        self.cache.complete = self.complete
        self.cache.counting = not self.complete

    @property
    def is_outgrown(self) -> bool:
        """Whether it was all of R, and R has changed since."""
        return self.header.complete and not self.complete

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

    @property
    def lost_seconds(self) -> float:
        """What its lacks have cost so far, in all processes."""
        return float(self._tallies[_LOST_NS]) / 1e9

    def tally(self, asked: int, hits: int) -> None:
        self._tallies[_ASKED] += asked
        self._tallies[_HITS] += hits

    def lose(self, seconds: float) -> None:
        """Tuples took so much longer than they would with the generation that could be built now, or less long.

        The sum is never below nothing: a generation that was good for long is replaced as soon as any other.
        """
        self._tallies[_LOST_NS] = max(int(self._tallies[_LOST_NS]) + int(seconds * 1e9), 0)


class Scratch:
    """A file in which a generation is built; removed at the end of the block unless it was published.

    Its name is its own: a builder that was killed, or one in another container with the same process id, has another.
    """

    def __init__(self, folder: Path, layout: RowLayout, keys: int, length: int) -> None:
        self._layout = layout
        self._since = time.perf_counter()
        directory = -(-Cache.directory_bytes(keys) // _ALIGN) * _ALIGN
        if length < HEADER_BYTES + directory + _ALIGN:
            raise GenerationError(f"{length} bytes are too few for {keys} keys")
        self._path = folder / f"{_SCRATCH}{uuid.uuid4().hex}"
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            _allocate(self._handle, length)
            memory = _map(self._handle, length)
            entries = memory[HEADER_BYTES : HEADER_BYTES + directory].view(np.int64)
            entries.fill(EMPTY)
            rows = memory[HEADER_BYTES + directory :]
            self.cache = Cache(Arena(len(rows), layout.slot_bytes, rows), layout, length, keys, entries=entries)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._handle)
        with suppress(OSError):
            self._path.unlink()

    def publish(
        self,
        path: Path,
        number: int,
        signature: str,
        window: float,
        *,
        full: bool,
        complete: bool,
        runs: Sequence[str] = (),
    ) -> None:
        """Give the file its header and its name. It is not synced: a power cut costs a cache that starts empty."""
        cache, arena = self.cache, self.cache.arena
        used = (arena.extents_total - arena.free_extents) * arena.extent_bytes
        header = Header(
            number=number,
            signature=signature,
            runs=list(runs),
            layout=layout_name(self._layout),
            keys=cache.keys,
            rows=cache.rows,
            directory=cache.entries.nbytes,
            arena=used,
            file_bytes=HEADER_BYTES + cache.entries.nbytes + used,
            shift=arena.shift,
            nulls_seen=np.packbits(cache.nulls_seen).tobytes().hex(),
            complete=complete,
            full=full,
            window=window,
            seconds=0.0,
        )
        os.ftruncate(self._handle, header.file_bytes)
        checksum = _checksum(self._handle, header, self._layout.slot_bytes)
        seconds = time.perf_counter() - self._since
        text = json.dumps({**asdict(header), "checksum": checksum, "seconds": seconds}).encode()
        if len(text) > _SEAL_AT:
            raise GenerationError(f"a header of {len(text)} bytes is too long; allowed are {_SEAL_AT}")
        first = np.zeros(_TALLIES_AT, dtype=np.uint8)
        first[: len(text)] = np.frombuffer(text, dtype=np.uint8)
        first[_SEAL_AT:].view(np.uint64)[0] = _hash(first[:_SEAL_AT], 0)
        if os.pwrite(self._handle, first.tobytes(), 0) != len(first):
            raise GenerationError("its header could not be written")
        os.rename(self._path, path)
