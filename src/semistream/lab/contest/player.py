"""Contestants with a stream of their own, who keep their state between turns; wrong output spoils their figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from semistream.errors import SemiStreamError
from semistream.lab.contest.contestants import Contestant, Ours
from semistream.lab.measure.turns import Performance
from semistream.lab.workloads.relation import SyntheticStream
from semistream.lab.workloads.workload import Reading
from semistream.lab.workloads.zipf import zipf_keys

_PIECE = 1 << 20


class Player(Performance):
    """A contestant with its own endless stream, of which it never reads the same tuples twice."""

    def __init__(
        self, name: str, contestant: Contestant, rows: int, batch_rows: int, *, exponent: float = 1.0, seed: int = 1
    ) -> None:
        self.name = name
        self.contestant = contestant
        self.rows = rows
        self.exponent, self.seed = exponent, seed
        self.stream = Reading(SyntheticStream(rows, exponent, seed))
        super().__init__(contestant.join, self.stream.batches(batch_rows))

    def change_batches(self, batch_rows: int) -> None:
        """Go on with batches of another size; the turns so far are of the old one and forgotten."""
        self.batches = self.stream.batches(batch_rows)
        self.rates = []

    def close(self, tuples: np.ndarray | None = None) -> None:
        """Finish, and refuse figures got with wrong output; `tuples` counts the master tuples of each key."""
        out = self.rows_out + sum(output.num_rows for output in self.contestant.finish())
        expected = self.tuples_in if tuples is None else self._matches(tuples)
        if out != expected:
            raise SemiStreamError(
                f"{self.name} gave {out:,} rows instead of {expected:,}: its figures are worth nothing"
            )
        self.contestant.close()

    def _matches(self, tuples: np.ndarray) -> int:
        """Rows of the inner join of all tuples that were read of the stream."""
        total = 0
        for start in range(0, self.tuples_in, _PIECE):
            count = min(_PIECE, self.tuples_in - start)
            total += int(tuples[zipf_keys(self.rows, self.exponent, self.seed, start, count)].sum())
        return total


class Operator(Player):
    """A semistream operator, kept open; what is read for a batch is counted."""

    def __init__(
        self,
        algorithm: str,
        store: Path,
        rows: int,
        batch_rows: int,
        memory: int,
        *,
        name: str | None = None,
        **options: Any,
    ) -> None:
        self.algorithm = algorithm
        ours = Ours(store, memory, algorithm=algorithm, **options)
        self.join = ours.operator
        #: bytes of R that were read for each batch
        self.bytes_read: list[int] = []
        super().__init__(name or f"{algorithm} {memory / 1e6:,.1f} MB", ours, rows, batch_rows)

    def batch(self) -> float:
        before = self.join.stats.bytes_read
        seconds = super().batch()
        self.bytes_read.append(self.join.stats.bytes_read - before)
        return seconds
