"""The stream-probing phase: what a cache answers is finished at once, the other tuples are listed.

front.answer(chunk) -> rows of the hits; then front.misses[: front.missed] are the tuples to go on with
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.engine.chunk import Chunk, JoinStats, Scratch
from semistream.engine.output import Output
from semistream.engine.share import MovingShare
from semistream.parts.cache import Cache

Int64s = npt.NDArray[np.int64]


class CacheFront:
    """Asks a cache for every tuple of a chunk. Without a cache every tuple is missed."""

    #: moves bytes between the cache and H_S, where the algorithm lets it
    share: MovingShare | None = None

    def __init__(self, cache: Cache | None, output: Output, scratch: Scratch, stats: JoinStats) -> None:
        self.cache = cache
        self.missed = 0
        self.misses = scratch.misses
        self._output, self._scratch, self._stats = output, scratch, stats

    def answer(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Rows of the tuples that the cache answers; the others are then in `misses`."""
        scratch, stats, cache = self._scratch, self._stats, self.cache
        if cache is None:
            self.misses[: chunk.n_rows] = scratch.every[: chunk.n_rows]
            stats.cache_misses += chunk.n_rows
            self.missed = chunk.n_rows
            return
        output, tuples = self._output, self._output.of_chunk(chunk)
        as_of = output.as_of(tuples, scratch.every, chunk.n_rows)
        probe = cache.probing(chunk.codes, chunk.n_rows, scratch, output.first_only, as_of)
        while probe.unfinished:
            count = probe.step()
            yield from output.matches(tuples, cache, scratch.left, scratch.right, count)
        self.missed = probe.missed
        hits = chunk.n_rows - probe.missed
        stats.cache_hits += hits
        stats.cache_misses += probe.missed
        stats.finished += hits
        if hits and len(chunk.matched):
            lost = np.flatnonzero(scratch.found[: chunk.n_rows] & ~chunk.matched)
            yield from output.unmatched(tuples, lost, len(lost))

    def finish_missed(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """The cache holds all of R: what it lacks has no match, and that is an answer too."""
        yield from self.finish(chunk, self.misses, self.missed)
        self.missed = 0

    def finish(self, chunk: Chunk, ids: Int64s, count: int) -> Iterator[pa.RecordBatch]:
        """Missed tuples whose keys R lacks are answered without a row of R."""
        stats = self._stats
        stats.cache_hits += count
        stats.cache_misses -= count
        stats.finished += count
        yield from self._output.unmatched(self._output.of_chunk(chunk), ids, count)
