"""One number of bytes for everything an operator holds.

Parts say how many bytes they hold now; the budget remembers the peak and refuses what would exceed the total. It is
the ledger behind `join.memory`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from semistream.columns.rows import INT32_MAX
from semistream.errors import BudgetError


@dataclass(frozen=True)
class MemoryReport:
    """Bytes by component: now, and each component's own peak; `peak_bytes` is the peak of their sum.

    `largest_piece_bytes` is the largest batch that left the join. Batches on their way out stand beside the total:
    they are the caller's.
    """

    budget_bytes: int
    bytes_now: int
    peak_bytes: int
    now: dict[str, int] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)
    largest_piece_bytes: int = 0


class Budget:
    """Ledger of the bytes an operator holds, by component."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._now: dict[str, int] = {}
        self._peak: dict[str, int] = {}
        self._peak_sum = 0
        self._largest_piece = 0

    @property
    def piece_bytes(self) -> int:
        """Bytes that one side of a piece of rows may take; a single row may take more."""
        return min(self.total // 8, INT32_MAX)

    @property
    def used(self) -> int:
        return sum(self._now.values())

    @property
    def spare(self) -> int:
        return self.total - self.used

    def hold(self, component: str, size: int) -> None:
        """Component now holds `size` bytes in all."""
        before = self._now.get(component, 0)
        if size - before > self.spare:
            raise BudgetError(
                f"{component} needs {size} bytes, but only {self.spare + before} of the budget of {self.total} are "
                "left: give the join more memory",
                minimum_bytes=self.used - before + size,
            )
        self._now[component] = size
        self._peak[component] = max(self._peak.get(component, 0), size)
        self._peak_sum = max(self._peak_sum, self.used)

    def note_piece(self, size: int) -> None:
        """A batch of `size` bytes leaves."""
        self._largest_piece = max(self._largest_piece, size)

    def report(self) -> MemoryReport:
        return MemoryReport(
            self.total, self.used, self._peak_sum, dict(self._now), dict(self._peak), self._largest_piece
        )
