"""Rows of hits that are made while R is read.

    chunk -> found in the cache -> references are kept, misses go on
    the disk is waited for, room is needed, or a key is to leave the cache -> rows of the oldest chunk

Past the page cache a sweep mostly waits for the disk, so that the rows of hits cost no time if they are made then. What
was found stays valid until a key leaves the cache: whoever evicts asks for the rest of the rows first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from semistream.engine.chunk import Chunk
from semistream.engine.front import CacheFront
from semistream.parts.cache import References

_NO_CODES = np.empty(0, dtype=np.int64)
#: of a chunk: the objects around its columns
_CHUNK_BYTES = 2048


class LateHits:
    """Tuples that the cache answers, in chunks whose columns the caller keeps."""

    def __init__(self, front: CacheFront) -> None:
        self._front = front
        self._found: deque[tuple[Chunk, References]] = deque()
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._found)

    @property
    def bytes_held(self) -> int:
        """Bytes for what was found."""
        return self._bytes

    def find(self, chunk: Chunk) -> None:
        """Look a chunk up; what the cache lacks is then in the front's `misses`."""
        references = np.empty(chunk.n_rows, dtype=np.uint32)
        self._front.find(chunk, references)
        if self._front.missed < chunk.n_rows:
            self._found.append((replace(chunk, codes=_NO_CODES), references))
            self._bytes += _size(chunk)

    def some(self) -> Iterator[pa.RecordBatch]:
        """Rows of the oldest chunk."""
        chunk, references = self._found.popleft()
        self._bytes -= _size(chunk)
        return self._front.follow(chunk, references)

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Rows of all of them."""
        while self:
            yield from self.some()

    def clear(self) -> None:
        """Nobody wants their rows any more."""
        self._found.clear()
        self._bytes = 0


def _size(chunk: Chunk) -> int:
    return 4 * chunk.n_rows + len(chunk.matched) + _CHUNK_BYTES
