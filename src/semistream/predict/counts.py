"""What a prediction is asked and what it answers: a workload in, counts per stream tuple out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from semistream.predict.keys import KeyClasses


@dataclass(frozen=True)
class Workload:
    """Who is in the stream, and how it comes."""

    keys: KeyClasses
    #: stream tuples per `push`
    batch: int = 100_000
    #: every batch is followed by `drain`, as in a micro-batch: what waits is finished with the batch
    drained: bool = False
    #: inner, left, semi or anti
    how: str = "inner"
    #: stream tuples that the operator has had when the counts hold; without an end it is at rest
    seen: float = math.inf

    @property
    def rows_out(self) -> float:
        """Output rows per stream tuple."""
        absent = self.keys.absent_share
        if self.how == "semi":
            return 1.0 - absent
        if self.how == "anti":
            return absent
        return self.keys.rows_per_tuple + (absent if self.how == "left" else 0.0)


@dataclass(frozen=True)
class Counts:
    """What an algorithm does with a stream tuple, on average, in the state that was asked for."""

    #: operations per stream tuple, named as in `join.stats`
    per_tuple: Mapping[str, float]
    #: bytes of the tables by component, named as in `join.memory`
    memory: Mapping[str, float]
    #: the papers' symbols: h_R, h_S, k, w_N, w_S ...
    symbols: Mapping[str, float]
    #: stream tuples that come while a tuple waits: on average over all tuples, and at most
    delay: float = 0.0
    longest_delay: float = 0.0
    #: stream tuples until the operator is at rest: 0 for one that has nothing to learn
    rest: float = 0.0
    #: operations before the first tuple, named as in `join.stats`: R that is loaded once; and after the last
    #: one, beyond what tuples cost: reads for those that still wait
    start: Mapping[str, float] = field(default_factory=dict)
    leave: Mapping[str, float] = field(default_factory=dict)


def chunks_per_tuple(chunk_rows: int, batch: int | None) -> float:
    """A push is cut into chunks; the last one of it may be short."""
    if not batch:
        return 1.0 / chunk_rows
    return -(-batch // chunk_rows) / batch
