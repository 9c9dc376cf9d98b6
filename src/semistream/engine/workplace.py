"""What a loop is given to work with. The join owns it; the loop adds the parts that are its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.rows import RowLayout
from semistream.engine.chunk import Chunk, JoinStats, Scratch
from semistream.engine.intake import Intake
from semistream.engine.output import Output
from semistream.errors import BudgetError
from semistream.master.base import Master, PageReader
from semistream.parts.arena import Arena, ArenaShape
from semistream.parts.budget import Budget
from semistream.parts.disk_buffer import DiskBuffer
from semistream.spec import JoinSpec

Int64s = npt.NDArray[np.int64]


@dataclass
class Workplace:
    """Both sides opened, the common parts made, and the ledgers. Only the master data is ever replaced (`follow`)."""

    name: str
    spec: JoinSpec
    master: Master
    reader: PageReader
    #: packed form of a master row in the cache
    row_layout: RowLayout
    intake: Intake
    output: Output
    budget: Budget
    stats: JoinStats
    scratch: Scratch
    disk: DiskBuffer
    direct: bool

    def beside(self, stats: JoinStats, scratch: Scratch) -> Workplace:
        """The same for a second thread: its own counts and work arrays."""
        return replace(self, stats=stats, scratch=scratch, output=self.output.beside(stats))

    def second_reader(self) -> PageReader:
        """R opened once more, for a thread of its own; its owner closes it."""
        return self.master.open(self.reader.physical.schema.names, self.direct, self.reader.page_rows)

    def arena(self, shape: ArenaShape) -> Arena:
        """The arena of a plan, its table entered in the ledger."""
        arena = Arena.shaped(shape)
        self.budget.hold("arena table", arena.table_bytes)
        return arena

    def copy_read_counts(self, *buffers: DiskBuffer) -> None:
        """Reads of these disk buffers, or of the one all have, into the counts."""
        used = buffers or (self.disk,)
        self.stats.reads = sum(each.reads for each in used)
        self.stats.pages_read = sum(each.pages_read for each in used)
        self.stats.bytes_read = sum(each.bytes_read for each in used)

    def finish(self, chunk: Chunk, ids: Int64s) -> Iterator[pa.RecordBatch]:
        """Tuples of a chunk are done: those without a match are output where wanted."""
        self.stats.finished += len(ids)
        if self.spec.how == "inner":
            return iter(())
        lost = ids[~chunk.matched[ids]]
        return self.output.unmatched(self.output.of_chunk(chunk), lost, len(lost))

    def finish_all(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """R is empty: no tuple has a match."""
        self.stats.finished += chunk.n_rows
        return self.output.unmatched(self.output.of_chunk(chunk), self.scratch.every, chunk.n_rows)

    def too_small(self) -> BudgetError:
        """The error when not a single tuple finds room."""
        return BudgetError(
            f"not even one waiting tuple fits the budget of {self.budget.total} bytes: give the join more memory"
        )
