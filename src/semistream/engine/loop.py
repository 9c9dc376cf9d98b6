"""What a join asks of its algorithm while it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from semistream.engine.chunk import Chunk
from semistream.engine.snapshot import Snapshot
from semistream.engine.workplace import Workplace
from semistream.parts.cache import Cache
from semistream.parts.disk_buffer import DiskBuffer


class Loop(ABC):
    """The running half of an algorithm. It owns its tables; `consume` is called with one chunk after another.

    What is not abstract is right for a loop in which no tuple waits from one batch to the next.
    """

    work: Workplace

    def begin_batch(self) -> None:  # noqa: B027
        """A batch begins: its chunks come next."""

    @abstractmethod
    def consume(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Take all tuples of a chunk; those that cannot be answered yet wait."""

    def end_batch(self) -> Iterator[pa.RecordBatch]:
        """All chunks of a batch were consumed: come to rest."""
        return iter(())

    def give_up(self) -> None:  # noqa: B027
        """A batch ended in an error, or nobody wants its rest."""

    @property
    def waiting(self) -> int:
        """Tuples that wait."""
        return 0

    @property
    def cache(self) -> Cache | None:
        """The hot keys, where the algorithm keeps them in a cache of rows."""
        return None

    def hand_over(self, shared: Cache) -> None:
        """A cache that is asked before the loop's own is another one: keys that it has need no place here.

        What else the loop has learnt stays; only while the join is idle.
        """
        if self.cache is not None:
            self.cache.drop_known(shared)

    @property
    def may_follow(self) -> bool:
        """Whether the loop can go on when R has more pages behind those that it had, and nobody waits."""
        return False

    def advance(self) -> Iterator[pa.RecordBatch]:
        """One turn of the main loop for tuples that wait; at least the oldest comes nearer to its end."""
        return iter(())

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Finish all tuples that wait."""
        return iter(())

    def settle(self) -> None:  # noqa: B027
        """Write the current bytes of the moving parts into the ledger."""

    def state(self) -> dict[str, Any]:
        """Positions and counters that a restart needs, as JSON values."""
        return {}

    def tuples(self) -> pa.Table:
        """Waiting tuples, oldest first, in the stream's schema (flags may follow in a column of their own)."""
        return self.work.intake.schema.empty_table()

    def restore(self, snapshot: Snapshot) -> None:  # noqa: B027
        """Put waiting tuples back into a fresh loop."""

    def borrow_disk(self) -> DiskBuffer:
        """The disk buffer, for loads that are not the algorithm's own; only while the join is idle."""
        return self.work.disk

    def close(self) -> None:  # noqa: B027
        """Give back what the loop has opened itself."""
