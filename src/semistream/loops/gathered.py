"""Looking up all misses of a batch together: they are kept until its end, or until their memory is full.

    chunk -> cache answers what it can -> misses are kept, as copies where the caller may let their columns go
    end of the batch, or no room for more -> sort once -> one sweep over the pages they need -> unmatched

A sweep per chunk would read a page for every chunk that needs it; past the page cache that is the disk's time. Kept
tuples leave with the push that brought them. Where R is read ahead, rows of hits are made during the sweep (`late.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.rows import BatchColumns, StackedColumns
from semistream.engine.chunk import Chunk
from semistream.engine.division import Division
from semistream.engine.facts import MasterFacts, StreamFacts
from semistream.engine.output import Tuples
from semistream.engine.workplace import Workplace
from semistream.loops.late import LateHits
from semistream.loops.lookup import Finder, LookupLoop, Part
from semistream.parts.cache import Cache

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

#: of a kept tuple, besides its columns: its code, its name, and its place in the order of codes
_TUPLE_BYTES = 8 + 4 + 8
#: names are numbers of four bytes
_MOST_PLACES = 2**31 - 1
#: of the tuples kept of one chunk: the objects around their columns
_PIECE_BYTES = 2048
#: of a tuple in a part of a sweep: code and name, sorted and not, pages and rows of its code
_PART_BYTES = 72
#: the same where R is not in the order of codes, so that all of a sweep is one part, which is sorted twice
_WHOLE_BYTES = _PART_BYTES + 40
#: part of all bytes that the parts of a sweep may take: few where another sweep is what costs; and part of a part that
#: is filled before it ends with a page
_PARTS_DIRECT, _PARTS_MAPPED, _FILLED = 1 / 4, 1 / 2, 0.75
#: tuples per part that pay for reading less; a sweep over pages that are at hand pays for no less than half a chunk
_LEAST_PART = 256


@dataclass(frozen=True)
class Gathering:
    """How `size` bytes keep tuples: some for the parts into which a sweep is cut, the others for the tuples."""

    size: int
    #: tuples per part, if R is in the order of codes
    part: int
    #: bytes for kept tuples, and what each takes besides its columns
    room: int
    extra: int

    @staticmethod
    def of(size: int, r: MasterFacts, division: Division) -> Gathering:
        """Each disk buffer may be read for another part, and one more is made while one is joined."""
        if r.order != "key":
            return Gathering(size, 0, size, _TUPLE_BYTES + _WHOLE_BYTES)
        per_tuple = (division.buffers + 1) * _PART_BYTES
        share = _PARTS_DIRECT if r.direct else _PARTS_MAPPED
        part = max(min(division.chunk_rows // 2, int(share * size / per_tuple)), 1)
        return Gathering(size, part, size - part * per_tuple, _TUPLE_BYTES)

    @staticmethod
    def within(r: MasterFacts, s: StreamFacts, division: Division, share: float) -> Gathering | None:
        """This share of the bytes for tables; None where that is too little for parts, or for half a chunk."""
        half = division.chunk_rows // 2
        made = Gathering.of(int(share * division.tables), r, division)
        is_worth_it = made.part >= (min(_LEAST_PART, half) if r.direct else half) or r.order != "key"
        return made if is_worth_it and made.bytes_of(half, s) <= made.room else None

    @staticmethod
    def tuple_bytes(s: StreamFacts) -> float:
        """What a tuple takes where R is in the order of codes, with its part of what the parts of a sweep take."""
        return (s.width + s.var_columns * 4 + _TUPLE_BYTES) / (1 - _PARTS_DIRECT)

    def bytes_of(self, tuples: float, s: StreamFacts) -> float:
        """What that many tuples of a chunk take."""
        return tuples * (s.width + s.var_columns * 4 + self.extra) + _PIECE_BYTES

    def sweeps(self, s: StreamFacts, chunks: int, missed: float) -> int:
        """Sweeps that a batch of `chunks` chunks takes, if `missed` tuples of each are missed."""
        together = max(int(self.room / self.bytes_of(missed, s)), 1)
        return -(-chunks // together)

    def parts(self, tuples: float) -> float:
        """Parts of a sweep for that many tuples."""
        return max(tuples / ((1 + _FILLED) / 2 * self.part), 1.0) if self.part else 1.0


class GatheredTuples:
    """Tuples from several chunks, in the bytes of a gathering: where they are if the caller keeps them, else copies."""

    def __init__(self, work: Workplace, gathering: Gathering) -> None:
        self._work, self._gathering = work, gathering
        self._marks = work.spec.how != "inner"
        self.clear()
        work.budget.hold("gathered misses", gathering.size)

    def clear(self) -> None:
        """Let all of them go."""
        self._codes: list[Int64s] = []
        self._columns: list[BatchColumns] = []
        #: of each piece, which of its rows
        self._rows: list[Int32s] = []
        self._used = self._longest = self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, chunk: Chunk, ids: Int64s, beside: int = 0) -> bool:
        """Keep the tuples `ids` of a chunk; False, and nothing is kept, if they do not fit with `beside` other bytes.

        A chunk whose columns the caller keeps is not copied.
        """
        if not len(ids):
            return True
        longest = max(self._longest, chunk.n_rows if chunk.kept else len(ids))
        places = longest * (len(self._columns) + 1)
        marks = places if self._marks else 0
        used = self._used + len(ids) * self._gathering.extra + _PIECE_BYTES
        room = self._gathering.room - used - marks - beside
        if room <= 0 or places > _MOST_PLACES:
            return False
        if chunk.kept:
            assert isinstance(chunk.columns, BatchColumns)
            columns, rows = chunk.columns, ids.astype(np.int32)
        else:
            arrays = self._work.output.of_chunk(chunk).take(ids, 0, len(ids), room)
            if isinstance(arrays, int):
                return False
            taken = sum(buffer.size for array in arrays for buffer in array.buffers() if buffer is not None)
            if taken > room:
                return False
            used += taken
            columns = BatchColumns(self._work.intake.physical, arrays, len(ids))
            rows = np.arange(len(ids), dtype=np.int32)
        self._columns.append(columns)
        self._rows.append(rows)
        self._codes.append(chunk.codes[ids])
        self._used, self._longest, self._count = used, longest, self._count + len(ids)
        return True

    def leaves_room(self, beside: int) -> bool:
        """Whether there is room for so many other bytes."""
        marks = self._longest * len(self._columns) if self._marks else 0
        return self._used + marks + beside <= self._gathering.room

    def as_chunk(self) -> Chunk:
        """All of them as a chunk, whose tuples are named by `pieces` and `parts`."""
        columns = StackedColumns(self._columns)
        matched = np.zeros(len(self._columns) * columns.page_rows if self._marks else 0, dtype=np.bool_)
        none = np.empty(0, dtype=np.int64)
        return Chunk(self._count, none, columns, matched, np.empty(0, dtype=np.bool_))

    def pieces(self) -> Iterator[Int64s]:
        """Names of the tuples that `parts` has given, as they came."""
        for names in self._rows:
            yield names.astype(np.int64)

    def parts(self) -> Iterator[Part]:
        """Codes and names in the order of codes, in parts that end with a page of R where they can."""
        names = np.concatenate(self._rows)
        at = 0
        for i, rows in enumerate(self._rows):
            names[at : at + len(rows)] += np.int32(i * self._longest)
            # The same bytes once more would be too many.
            self._rows[i] = names[at : at + len(rows)]
            at += len(rows)
        codes = np.concatenate(self._codes)
        # They are not needed twice: what is sorted takes their place.
        self._codes = []
        order = np.argsort(codes)
        at = 0
        while at < len(order):
            stop = self._part_end(codes, order, at)
            part = order[at:stop]
            yield codes[part], names[part].astype(np.int64)
            at = stop

    def _part_end(self, codes: Int64s, order: npt.NDArray[np.intp], at: int) -> int:
        """Where a part ends: a page that two parts need is read twice."""
        reader, most = self._work.reader, self._gathering.part or len(order)
        filled = at + max(int(_FILLED * most), 1)
        if at + most >= len(order):
            return len(order)
        _, last = reader.locate(codes[order[filled - 1 : filled]])
        rest = range(filled, at + most)
        if last[0] + 1 >= reader.n_pages:
            return rest.stop
        return filled + bisect_left(rest, reader.fences[last[0] + 1], key=lambda place: codes[order[place]])


class PartFinder(Finder, Protocol):
    """A finder that also takes tuples of many chunks at once."""

    @property
    def hurries(self) -> bool:
        """Whether a chunk is better looked up by itself: what it brings into the cache answers the next one."""

    @property
    def reads_ahead(self) -> bool:
        """Whether reads go on beside the join, so that there is time for other work."""

    def asked(self, count: int) -> None:
        """So many tuples came, with those that the cache answered."""

    def join_parts(self, tuples: Tuples, parts: Iterable[Part], late: LateHits) -> Iterator[pa.RecordBatch]:
        """Rows of tuples that have a match; parts come in the order of R's pages.

        There is time for the rows of `late` while R is read; no key leaves the cache before they are made.
        """


class GatheringLoop(LookupLoop):
    """Every tuple is finished by the push that brought it, those that the cache lacks at its end."""

    finder: PartFinder

    def __init__(self, work: Workplace, finder: PartFinder, cache: Cache, gathered: GatheredTuples) -> None:
        super().__init__(work, finder, cache)
        self._gathered = gathered
        #: hits, where there will be time for them
        self._late = LateHits(self.front)
        #: whether another cache has answered what comes here: then a key is rarely missed twice in a batch
        self._is_behind = False

    @property
    def waiting(self) -> int:
        return len(self._gathered)

    def hand_over(self, shared: Cache) -> None:
        super().hand_over(shared)
        self._is_behind = True

    def consume(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        if not (chunk.kept and self.finder.reads_ahead and self.work.spec.as_of is None):
            yield from super().consume(chunk)
            return
        late = self._late
        late.find(chunk)
        yield from self.look_up(chunk, self.front.misses[: self.front.missed].copy())
        while late and not self._gathered.leaves_room(late.bytes_held):
            yield from late.some()

    def look_up(self, chunk: Chunk, ids: Int64s) -> Iterator[pa.RecordBatch]:
        if self.finder.hurries and not self._is_behind:
            yield from super().look_up(chunk, ids)
            return
        gathered, late = self._gathered, self._late
        while not gathered.add(chunk, ids, late.bytes_held):
            if late:
                yield from late.some()
            elif len(gathered):
                yield from self.end_batch()
            else:
                # Long values: where they are they need no room.
                yield from super().look_up(chunk, ids)
                return
        self.finder.asked(chunk.n_rows)

    def end_batch(self) -> Iterator[pa.RecordBatch]:
        gathered = self._gathered
        if len(gathered):
            chunk = gathered.as_chunk()
            yield from self.finder.join_parts(self.work.output.of_chunk(chunk), gathered.parts(), self._late)
            for ids in gathered.pieces():
                yield from self.work.finish(chunk, ids)
            gathered.clear()
            self.settle()
        yield from self._late.rest()

    def give_up(self) -> None:
        self._gathered.clear()
        self._late.clear()
