"""INLJ: the index nested loop join, against which all sharing of reads is measured.

INLJ looks every stream tuple up through the index when it comes, and reads its page for it alone.

Nothing is kept, sorted or shared: a page that a hundred tuples need is read a hundred times. So the disk
sets the service rate, whatever the memory and however skewed the stream. With reads="mapped" the operating
system's page cache answers most of these reads, which hides the cost but not the count.

Needs of R: an index. Every tuple is finished by the push that brought it.

Memory: M = v_P, one page; more lets a call read for several tuples, one read each all the same.
Cost:   c_loop = w_S·(c_I/O(v_P) + c_L + c_S + c_O), one read per tuple.

>>> import pyarrow as pa
>>> from semistream import open_join
>>> with open_join("inlj", master=pa.table({"k": [1, 2], "v": [10, 20]}), on="k", memory="1MB") as join:
...     rows = list(join.push(pa.record_batch({"k": [2, 7, 2]})))
>>> pa.Table.from_batches(rows).to_pydict()
{'k': [2, 2, 7], 'v': [20, 20, None]}
>>> join.stats.reads
3

Paper: dbms2000 (R. Ramakrishnan, J. Gehrke, "Database Management Systems", 2000); described in
opcachejoin2020, related work.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.engine.algorithm import Algorithm, Pricing
from semistream.engine.chunk import Chunk
from semistream.engine.division import Needs, divide
from semistream.engine.facts import MasterFacts, StreamFacts
from semistream.engine.options import CommonOptions
from semistream.engine.output import Tuples
from semistream.engine.plan import Plan
from semistream.engine.workplace import Workplace
from semistream.loops.lookup import LookupLoop, chunk_tuples
from semistream.loops.pages import PageGroups, mapped_group
from semistream.loops.prices import LOOKUP, OUTPUT, STREAM
from semistream.master.base import ALIGNMENT, PageBlock
from semistream.master.page_reader import PageStoreReader
from semistream.parts.units import Asked, UnitList, UnitPairs
from semistream.predict.counts import Counts, Workload

Int64s = npt.NDArray[np.int64]


def plan(r: MasterFacts, s: StreamFacts, budget: int, options: CommonOptions) -> Plan[CommonOptions]:
    """The disk buffer gets half; nothing else is kept."""
    return Plan(r, s, budget, options, divide(r, budget, options, Needs(buffer_share=0.5)))


class PagePerTuple:
    """Reads the pages of every tuple for it alone, in arrival order."""

    def __init__(self, work: Workplace, direct: bool) -> None:
        self._work, self._ordered = work, work.master.order == "key"
        pages, size = PageGroups(work, direct), work.scratch.size
        # Reads stop by themselves when the buffer is full; a mapped block must not have too many pages.
        self._room = min(pages.capacity, size) if pages.mapped else size
        # A table in memory has no pages to read.
        self._disk = work.reader if direct and isinstance(work.reader, PageStoreReader) else None

    def join(self, chunk: Chunk, ids: Int64s) -> Iterator[pa.RecordBatch]:
        work, tuples = self._work, self._work.output.of_chunk(chunk)
        unit_tuples, unit_pages = work.scratch.misses, work.scratch.done
        codes = chunk.codes[ids]
        # One look-up per tuple: not even the index is shared.
        first, last = work.reader.locate(codes)
        asked = Asked(ids, codes, first, last, len(ids))
        units = UnitList(asked)
        while units.unfinished:
            count, start = units.step(self._room, unit_tuples, unit_pages), 0
            while start < count:
                block, ordinals = self._load(unit_tuples[start:count], unit_pages[start:count])
                yield from self._pairs(asked, unit_tuples[start:], ordinals, block, tuples)
                start += len(ordinals)
                work.stats.iterations += 1

    def _pairs(
        self, asked: Asked, units: Int64s, ordinals: Int64s, block: PageBlock, tuples: Tuples
    ) -> Iterator[pa.RecordBatch]:
        output, scratch = self._work.output, self._work.scratch
        rows = output.of_block(block)
        pairs = UnitPairs(asked, units, ordinals, block, ordered=self._ordered, first_only=output.first_only)
        while pairs.unfinished:
            count = pairs.step(scratch.left, scratch.right)
            yield from output.pairs(tuples, rows, scratch.left, scratch.right, count)

    def _load(self, tuples: Int64s, pages: Int64s) -> tuple[PageBlock, Int64s]:
        """A block, and for as many of the units as it serves where on it their pages are."""
        reader, stats = self._work.reader, self._work.stats
        if self._disk is not None:
            # Pages in any order, and as often as they are asked for, into the disk buffer.
            run = self._disk.read_each(tuples, pages, self._work.disk.buffer)
            stats.pages_read += run.pages
            stats.reads += run.reads
            stats.bytes_read += run.bytes
            return run.block, np.arange(run.pages, dtype=np.int64)
        # Mapped pages are one place in memory however often they are asked for; every asking is counted.
        distinct, ordinals = np.unique(pages, return_inverse=True)
        block = reader.map(distinct)
        stats.pages_read += len(pages)
        stats.reads += 1 + int(np.count_nonzero(np.diff(tuples)))
        stats.bytes_read += int(len(pages) * reader.page_rows * self._work.master.row_bytes)
        return block, ordinals.astype(np.int64, copy=False)


def run(plan: Plan[CommonOptions], work: Workplace) -> LookupLoop:
    """Look-ups without a cache before them."""
    return LookupLoop(work, PagePerTuple(work, plan.r.direct))


def predict(plan: Plan[CommonOptions], workload: Workload) -> Counts:
    """M = v_P, one page, and one read per tuple; the papers give no equation for it."""
    r, division = plan.r, plan.division
    if r.direct:
        # A read begins and ends on whole blocks.
        page = r.page_bytes + ALIGNMENT
        room = max(int(division.pages * r.page_bytes / page), 1)
    else:
        page = r.page_rows * r.row_bytes
        room = mapped_group(r, division.buffer)
    turn = min(room, chunk_tuples(workload, division))
    return Counts(
        {
            "cache_hits": 0.0,
            "cache_misses": 1.0,
            "iterations": 1.0 / turn,
            "reads": 1.0,
            "pages_read": 1.0,
            "bytes_read": page,
        },
        memory={},
        symbols={"w_S": turn, "w_N": 0.0},
    )


ALGORITHM = Algorithm(
    name="inlj",
    about=__doc__,
    plan=plan,
    run=run,
    predict=predict,
    pricing=Pricing({**STREAM, **OUTPUT, **LOOKUP, "c_L": ("tuples_in",)}, mapped=True),
    aliases=("indexnestedloopjoin",),
    paper="dbms2000, opcachejoin2020",
    needs_index=True,
    follows=True,
)
