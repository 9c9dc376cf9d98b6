"""What every join can be asked, whether its algorithm was named or is chosen while it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

import pyarrow as pa

from semistream.columns.arrow_in import ArrowData
from semistream.engine.chunk import JoinStats
from semistream.engine.snapshot import Snapshot
from semistream.parts.budget import MemoryReport


@runtime_checkable
class Join(Protocol):
    """A join of a stream with master data inside a memory budget; `open_join` gives one.

    `push`, `advance`, `drain` and `run` do their work while what they give is iterated, and that must have come to its
    end before the next call.
    """

    @property
    def name(self) -> str:
        """The algorithm, or "auto"."""

    @property
    def output_schema(self) -> pa.Schema | None:
        """The schema of the joined rows; None until the stream's is known."""

    @property
    def stats(self) -> JoinStats:
        """Counts of what the join did."""

    @property
    def memory(self) -> MemoryReport:
        """Bytes by component, now and at their peak."""

    @property
    def seconds(self) -> float:
        """Time spent in `push`, `advance` and `drain`."""

    @property
    def waiting(self) -> int:
        """Tuples that wait for the disk."""

    def push(self, batch: ArrowData) -> Iterator[pa.RecordBatch]:
        """Join a batch; tuples that must wait for the disk come out of a later call."""

    def advance(self) -> Iterator[pa.RecordBatch]:
        """Work on what waits when no tuple arrives."""

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Finish every waiting tuple."""

    def run(self, stream: ArrowData | Iterable[ArrowData]) -> Iterator[pa.RecordBatch]:
        """Join a whole stream: push every batch of it, then drain."""

    def resume(self) -> Iterator[pa.RecordBatch]:
        """What the last call has still to give; nothing if it was finished."""

    def snapshot(self) -> Snapshot:
        """What a restart needs: the tuples that wait, and where they are on their way."""

    def restore(self, snapshot: Snapshot) -> None:
        """Go on where a snapshot was taken; before the first push."""

    def explain(self) -> Any:
        """The plan in words and numbers; after a run, predicted beside measured."""

    def close(self) -> None:
        """Give back files and memory; tuples that wait are lost."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
