"""The main loop of joins that finish a tuple with the chunk that brought it: no tuple waits.

    chunk -> cache answers what it can -> finder looks the others up in R -> those without a match come last

INLJ and SWEEPJOIN share this loop and differ in how they look tuples up (`Finder`), and in when: `gathered.py` has the
loop that looks up all misses of a batch together. `Sweep` is one ordered pass over exactly the pages that some tuples
need; neighbouring keys share a page:

    tuples -> sort by code -> distinct codes -> page ranges (index) -> groups of pages that fit
           -> find the rows of every code on them -> pairs

The second half of this file is a sweep as a formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.rows import RowLayout
from semistream.columns.validity import Validity
from semistream.engine.chunk import Chunk
from semistream.engine.division import Division
from semistream.engine.facts import MasterFacts
from semistream.engine.front import CacheFront
from semistream.engine.loop import Loop
from semistream.engine.output import Tuples
from semistream.engine.workplace import Workplace
from semistream.loops.pages import PageGroups, mapped_group
from semistream.master.base import ALIGNMENT, PageBlock
from semistream.parts.cache import Cache
from semistream.parts.runs import CodeRuns, RunPairs, TupleRuns, Versions
from semistream.predict.counts import Workload
from semistream.predict.keys import Floats
from semistream.predict.sharing import needed_pages, page_runs

Int64s = npt.NDArray[np.int64]
#: key codes of some tuples, and what names these
Part = tuple[Int64s, Int64s]
Runs = TypeVar("Runs", bound=CodeRuns)


class Finder(Protocol):
    """How tuples that the cache could not answer find their rows."""

    def join(self, chunk: Chunk, ids: Int64s) -> Iterator[pa.RecordBatch]:
        """Rows of the tuples `ids` of a chunk that have a match."""


class LookupLoop(Loop):
    """Every tuple is finished by the push that brought it."""

    def __init__(self, work: Workplace, finder: Finder, cache: Cache | None = None) -> None:
        self.work, self.finder = work, finder
        self.front = CacheFront(cache, work.output, work.scratch, work.stats)
        self.settle()

    @property
    def cache(self) -> Cache | None:
        return self.front.cache

    def consume(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        front = self.front
        yield from front.answer(chunk)
        # A copy: finders use the work arrays.
        yield from self.look_up(chunk, front.misses[: front.missed].copy())

    def look_up(self, chunk: Chunk, ids: Int64s) -> Iterator[pa.RecordBatch]:
        """Finish the tuples `ids` of a chunk, which the cache lacks."""
        yield from self.finder.join(chunk, ids)
        yield from self.work.finish(chunk, ids)

    @property
    def may_follow(self) -> bool:
        """What a cache that has all of R lacks is not looked for, so it would not be found in new pages either."""
        return not isinstance(self.finder, NothingLeft)

    def settle(self) -> None:
        if self.cache is not None:
            self.work.budget.hold("cache", self.cache.bytes_held)
            self.work.stats.evicted = self.cache.evictions


class NothingLeft:
    """The finder when all of R is in the cache: what it lacks has no match, and that is an answer too."""

    def __init__(self, work: Workplace) -> None:
        self._stats = work.stats

    def join(self, chunk: Chunk, ids: Int64s) -> Iterator[pa.RecordBatch]:
        self._stats.cache_hits += len(ids)
        self._stats.cache_misses -= len(ids)
        return iter(())


# ------------------------------------------------------------------------------------------------ the sweep


@dataclass(frozen=True)
class Group(Generic[Runs]):
    """Codes at .. stop - 1 with all their pages in a block, and where their rows are there.

    Not `whole`: one code with more pages than fit, and some of these.
    """

    runs: Runs
    at: int
    stop: int
    #: valid until the next one is loaded
    block: PageBlock
    whole: bool = True

    @property
    def codes(self) -> Int64s:
        return self.runs.codes[self.at : self.stop]

    @property
    def starts(self) -> Int64s:
        return self.runs.starts[self.at : self.stop]

    @property
    def ends(self) -> Int64s:
        return self.runs.ends[self.at : self.stop]


@dataclass(frozen=True)
class Needed(Generic[Runs]):
    """A group before its pages are read."""

    runs: Runs
    at: int
    stop: int
    whole: bool = True


class RunSearch:
    """Loads pages for runs, group after group, and finds their rows there."""

    def __init__(self, work: Workplace, pages: PageGroups) -> None:
        self._reader, self._ordered = work.reader, work.master.order == "key"
        self._pages = pages
        self._listed = np.empty(pages.capacity, dtype=np.int64)

    def groups(self, parts: Iterable[Runs], oversize: set[int] | None = None) -> Generator[Group[Runs], None, None]:
        """All codes of some runs, in groups that have all their pages in one block.

        A code with more pages than fit comes piece after piece; with `oversize` it is left out and noted there.
        """
        with closing(self._loaded(parts, oversize)) as loaded:
            for group in loaded:
                assert group is not None
                yield group

    def groups_and_pauses(
        self, parts: Iterable[Runs], has_work: Callable[[], bool]
    ) -> Generator[Group[Runs] | None, None, None]:
        """The same, with None where the next group is still being read and the caller has other work."""
        return self._loaded(parts, None, has_work)

    def _loaded(
        self, parts: Iterable[Runs], oversize: set[int] | None, has_work: Callable[[], bool] = lambda: False
    ) -> Generator[Group[Runs] | None, None, None]:
        needed = (each for runs in parts for each in self._needed(runs, oversize))
        with closing(self._pages.ahead(needed, has_work)) as loaded:
            for found in loaded:
                if found is None:
                    yield None
                    continue
                each, block = found
                each.runs.find(each.at, each.stop, block, self._reader.fences, self._ordered)
                yield Group(each.runs, each.at, each.stop, block, each.whole)

    def _needed(self, runs: Runs, oversize: set[int] | None) -> Iterator[tuple[Needed[Runs], Int64s]]:
        """Which codes come together, and their pages."""
        at = 0
        while at < len(runs):
            stop, pages = self._group(runs, at)
            if stop > at:
                yield Needed(runs, at, stop), pages
            elif oversize is not None:
                oversize.add(int(runs.codes[at]))
            else:
                yield from self._pieces(runs, at)
            at = max(stop, at + 1)

    def _group(self, runs: Runs, at: int) -> tuple[int, Int64s]:
        """The code behind those from `at` on that have all their pages in one block, and the pages."""
        count, stop = runs.pages_from(at, self._listed)
        listed = self._listed[:count]
        if stop > at and (fitting := self._pages.fitting(listed)) < count:
            stop = runs.within(at, stop, int(listed[fitting - 1]))
        if stop == at:
            return at, listed[:0]
        return stop, listed[: np.searchsorted(listed, runs.last[stop - 1], side="right")].copy()

    def _pieces(self, runs: Runs, at: int) -> Iterator[tuple[Needed[Runs], Int64s]]:
        """A code with more pages than fit at once."""
        page, last = max(int(runs.first[at]), 0), int(runs.last[at])
        while page <= last:
            pages = np.arange(page, min(page + self._pages.capacity, last + 1), dtype=np.int64)
            pages = pages[: self._pages.fitting(pages)]
            yield Needed(runs, at, at + 1, whole=False), pages
            page = int(pages[-1]) + 1


def by_page(first: Int64s) -> tuple[Int64s, Int64s]:
    """Codes without a page, and the others in the order of their (first) pages.

    In a store in order of frequency the rows of frequent keys come first, so page order is not code order.
    """
    order = np.argsort(first, kind="stable")
    absent = int(np.searchsorted(first[order], 0))
    return order[:absent], order[absent:]


class AskedRuns(CodeRuns):
    """The runs of codes that some tuples ask for."""

    def __init__(self, asking: TupleRuns, first: Int64s, last: Int64s) -> None:
        super().__init__(asking.codes, first, last)
        self.asking = asking


class Sweep:
    """One ordered pass for tuples: each part has codes, and refs that name their tuples among `tuples`.

    Parts must follow each other in the order of R's pages.
    """

    def __init__(self, work: Workplace, pages: PageGroups, tuples: Tuples, parts: Iterable[Part]) -> None:
        self._work, self._pages, self._tuples, self._parts = work, pages, tuples, parts

    def _runs(self, codes: Int64s, refs: Int64s) -> AskedRuns:
        reader = self._work.reader
        asking = TupleRuns.of(codes, refs)
        first, last = reader.locate(asking.codes)
        if self._work.master.order != "key" or not reader.n_pages:
            _, present = by_page(first)
            asking, first, last = asking.taken(present), first[present], last[present]
        return AskedRuns(asking, first, last)

    def groups(self) -> Generator[Group[AskedRuns], None, None]:
        """Groups of codes, each with the block that holds their rows."""
        with closing(self.groups_and_pauses(lambda: False)) as groups:
            for group in groups:
                assert group is not None
                yield group

    def groups_and_pauses(self, has_work: Callable[[], bool]) -> Generator[Group[AskedRuns] | None, None, None]:
        """The same, with None where the next group is still being read and the caller has other work."""
        search, stats = RunSearch(self._work, self._pages), self._work.stats
        runs = (self._runs(*part) for part in self._parts)
        with closing(search.groups_and_pauses(runs, has_work)) as groups:
            for group in groups:
                if group is not None and group.whole:
                    stats.iterations += 1
                    stats.master_rows_probed += group.stop - group.at
                yield group

    def pairs(self, group: Group[AskedRuns]) -> Iterator[pa.RecordBatch]:
        """Rows of a group's tuples that have a match in its block."""
        output, scratch = self._work.output, self._work.scratch
        rows = output.of_block(group.block)
        pairs = RunPairs(group.runs.asking, group.runs, group.at, group.stop, output.first_only)
        validity, form, joined = output.sides.validity, self._tuples.form, output.pairs
        if validity is not None and not isinstance(form, RowLayout):
            pairs.leave_out_invalid(validity, form, group.block)
            joined = output.matches
        while pairs.unfinished:
            count = pairs.step(scratch.left, scratch.right)
            yield from joined(self._tuples, rows, scratch.left, scratch.right, count)

    def versions(self, group: Group[AskedRuns], some: Int64s, validity: Validity) -> Versions | None:
        """Which rows the tuples of some of a group's codes ask for; None if that is not known."""
        form = self._tuples.form
        if isinstance(form, RowLayout) or not validity.has_one_unit:
            return None
        return Versions.of(group.runs.asking, group.runs, group.at + some, validity, form, group.block)

    def asked(self, group: Group[AskedRuns]) -> Int64s:
        """Tuples that asked for each code of a group."""
        return group.runs.asking.lengths(group.at, group.stop)


# -------------------------------------------------------------------------------------- a sweep as a formula


@dataclass(frozen=True)
class SweepCosts:
    """One sweep: pages needed, reads, bytes, and groups of pages that were worked off one after another."""

    pages: float
    reads: float
    bytes: float
    groups: float


def sweep_costs(
    r: MasterFacts, division: Division, gap_bytes: int, shares: Floats, tuples: float, parts: float = 1.0
) -> SweepCosts:
    """A sweep for that many tuples, which ask for pages with these shares; groups end with each of its parts.

    Mapped pages cost no read call; what is counted is runs of neighbours. Direct reads go through the disk buffer, over
    gaps that are cheaper to read than to jump, as far as the buffer reaches: a gap takes room there as a page does. A
    direct read begins and ends on whole blocks.
    """
    n_pages = max(r.n_pages, 1)
    pages = max(needed_pages(shares, tuples), min(tuples, 1e-9))
    if not r.direct:
        groups = parts * _groups(pages / parts, mapped_group(r, division.buffer), n_pages)
        return SweepCosts(pages, page_runs(pages, n_pages, 0.0), pages * r.page_rows * r.row_bytes, groups)
    widest = math.floor(gap_bytes / r.page_bytes)
    gaps = np.arange(min(widest, max(division.pages - 2, 0)) + 1)
    density = min(pages / n_pages, 1.0)
    # The way to the next needed page is geometric, and the buffer may have no room left for a wide gap.
    merged = density * (1.0 - density) ** gaps * (1.0 - gaps / max(division.pages - 1, 1))
    over = float((gaps * merged).sum())
    groups = max(pages * (1.0 + over) / division.pages + (parts - 1.0) / 2, min(pages, parts))
    # A group may also end in the middle of a run.
    joined = float(merged.sum())
    runs = pages * (1.0 - joined) + groups * joined / 2
    reads = min(max(runs, groups, min(pages, 1.0)), pages)
    return SweepCosts(pages, reads, pages * (1.0 + over) * r.page_bytes + reads * ALIGNMENT, groups)


def _groups(pages: float, group: float, n_pages: int) -> float:
    """Groups of that many pages on average: whole ones, of needed pages whose number varies from sweep to sweep."""
    empty = max(1.0 - pages / n_pages, 1e-12)
    spread = math.sqrt(max(n_pages * (empty - (1.0 - math.log(empty)) * empty**2), 1e-12))
    more = (math.erfc((full * group + 0.5 - pages) / (spread * math.sqrt(2.0))) / 2 for full in range(1, 64))
    return min(pages, 1.0) + (sum(more) if pages < 32 * group else pages / group - 0.5)


def chunk_tuples(workload: Workload, division: Division) -> float:
    """Tuples per chunk on average: a batch is cut into chunks, the last one short."""
    return workload.batch / -(-workload.batch // division.chunk_rows)
