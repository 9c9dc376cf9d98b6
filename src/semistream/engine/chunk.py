"""What passes between a join and its algorithm: counts, chunks of the stream, and work arrays."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields

import numpy as np
import numpy.typing as npt

from semistream.columns.rows import Paged

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

SCRATCH_BYTES_PER_ROW = 64


@dataclass
class JoinStats:
    """Counts of every operation the cost models price, and what the join did with its tuples."""

    tuples_in: int = 0
    rows_out: int = 0
    batches_out: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    #: of the cache hits, those in a cache shared with other joins
    shared_hits: int = 0
    unmatched: int = 0
    #: of the unmatched, those without a key, or without a time where that is asked for
    null_keys: int = 0
    appended: int = 0
    expired: int = 0
    master_rows_probed: int = 0
    frequency_checks: int = 0
    switched: int = 0
    evicted: int = 0
    intermediate_appends: int = 0
    handovers: int = 0
    reads: int = 0
    pages_read: int = 0
    bytes_read: int = 0
    iterations: int = 0
    r_cycles: int = 0
    finished: int = 0

    def __add__(self, other: JoinStats) -> JoinStats:
        return JoinStats(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(JoinStats)))

    def __sub__(self, other: JoinStats) -> JoinStats:
        return JoinStats(*(getattr(self, each.name) - getattr(other, each.name) for each in fields(JoinStats)))

    @property
    def hit_rate(self) -> float:
        """Share of the stream tuples that the cache answered."""
        asked = self.cache_hits + self.cache_misses
        return self.cache_hits / asked if asked else 0.0

    @property
    def has_turned_over(self) -> bool:
        """Whether H_S has been filled twice: before that no tuple leaves it, then all do. True without one."""
        return self.expired * 2 >= self.appended

    def as_dict(self) -> dict[str, float]:
        """All counts by name, and the hit rate."""
        return {**asdict(self), "hit_rate": self.hit_rate}


@dataclass
class Chunk:
    """Consecutive stream tuples with usable keys, on their way through the join."""

    n_rows: int
    codes: Int64s
    columns: Paged
    #: which have matched; empty where nobody asks for that (inner joins)
    matched: Bools = field(repr=False)
    #: which have a null key; empty if none has, or they were let through before
    null: Bools = field(repr=False)
    #: whether its columns are those of the caller's batch, who keeps them until all rows are made
    kept: bool = False


class Scratch:
    """Work arrays of one thread: pair buffers and lists of a chunk's length."""

    def __init__(self, rows: int) -> None:
        self.size = rows
        self.left = np.empty(rows, dtype=np.int64)
        self.right = np.empty(rows, dtype=np.int64)
        self.misses = np.empty(rows, dtype=np.int64)
        self.slots = np.empty(rows, dtype=np.int64)
        self.done = np.empty(rows, dtype=np.int64)
        self.every = np.arange(rows, dtype=np.int64)
        self.references = np.empty(rows, dtype=np.uint32)
        self.found = np.empty(rows, dtype=np.bool_)
        self.first = np.empty(rows, dtype=np.bool_)

    @staticmethod
    def bytes_for(rows: int) -> int:
        return SCRATCH_BYTES_PER_ROW * rows
