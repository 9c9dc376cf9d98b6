"""The stream-probing phase: what a cache answers is finished at once, the other tuples are listed.

front.answer(chunk) -> rows of the hits; then front.misses[: front.missed] are the tuples to go on with
front.find(chunk, references), and later front.follow(chunk, references) -> the same, where rows of hits can wait
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.validity import AsOf
from semistream.engine.chunk import Chunk, JoinStats, Scratch
from semistream.engine.output import Output
from semistream.engine.share import MovingShare
from semistream.parts.cache import Cache, FoundRows, References, ValidRows

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


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
        scratch, stats = self._scratch, self._stats
        if self.cache is None:
            self.misses[: chunk.n_rows] = scratch.every[: chunk.n_rows]
            stats.cache_misses += chunk.n_rows
            self.missed = chunk.n_rows
            return
        as_of = self._output.as_of(self._output.of_chunk(chunk), scratch.every, chunk.n_rows)
        if as_of is not None:
            yield from self._answer_valid(chunk, as_of)
            return
        references = scratch.references[: chunk.n_rows]
        self.find(chunk, references)
        yield from self.follow(chunk, references)

    def find(self, chunk: Chunk, references: References) -> None:
        """Look the tuples of a chunk up; those that the cache lacks are then in `misses`. The rest is for `follow`."""
        assert self.cache is not None
        self.missed = self.cache.find(chunk.codes, references, self.misses)
        self._stats.cache_hits += chunk.n_rows - self.missed
        self._stats.cache_misses += self.missed

    def follow(self, chunk: Chunk, references: References) -> Iterator[pa.RecordBatch]:
        """Rows of the tuples that were found; until they are made no key may leave the cache."""
        cache = self.cache
        assert cache is not None
        rows = cache.following(references, self._scratch, self._output.first_only)
        yield from self._finished(chunk, cache, rows, cache.found(references))

    def _answer_valid(self, chunk: Chunk, as_of: AsOf) -> Iterator[pa.RecordBatch]:
        """The same for rows that were valid at the tuple's time."""
        cache = self.cache
        assert cache is not None
        rows = cache.valid(chunk.codes, self._scratch, as_of)
        yield from self._finished(chunk, cache, rows, self._scratch.found[: chunk.n_rows])
        self.missed = rows.missed
        self._stats.cache_hits += chunk.n_rows - self.missed
        self._stats.cache_misses += self.missed

    def _finished(
        self, chunk: Chunk, cache: Cache, rows: FoundRows | ValidRows, found: Bools
    ) -> Iterator[pa.RecordBatch]:
        """Output of the tuples that are found, with those of them that match nothing."""
        output, scratch, tuples = self._output, self._scratch, self._output.of_chunk(chunk)
        while rows.unfinished:
            count = rows.step()
            yield from output.matches(tuples, cache, scratch.left, scratch.right, count)
        self._stats.finished += int(np.count_nonzero(found))
        if len(chunk.matched):
            lost = np.flatnonzero(found & ~chunk.matched)
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
