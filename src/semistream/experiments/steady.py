"""One real run of an operator: warmed up until it is steady, then measured in turns.

How long to warm up is decided by counts, never by a clock, so that a run with the same seed has the same counts
everywhere: blocks of the stream are pushed until neither the share of cache hits nor the number of waiting tuples nor
that of turns of the main loop a tuple changes any more. A block is an R-cycle for operators that scan; for the others
it is one and a half fillings of H_S, since in a full table a tuple waits while two fillings come and go.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from semistream.cost.clock import CostClock, counted, row_bytes
from semistream.cost.profile import CostProfile
from semistream.experiments.figure import Way
from semistream.experiments.runs import Estimate
from semistream.operators.base import SemiStreamJoin

#: Steady: hits change by no more than this share of the stream from one round of blocks to the next, and waiting tuples
#: and turns per tuple by no more than this part of themselves.
_HITS_CHANGE, _OTHER_CHANGE = 0.01, 0.05
_FILLINGS = 1.5
_LOADS_PER_TURN = 20
_MOST_TUPLES_PER_TURN = 1_000_000
#: the papers' bytes of a waiting tuple: 20 and a queue node
_V_S = 24
_LEAST_BATCH, _MOST_BATCH = 500, 65_536


@dataclass(frozen=True)
class WarmUp:
    """How many blocks make a round, the fewest and most rounds of warm-up, and how long turns are, in blocks."""

    round_blocks: int
    least_rounds: int
    most_rounds: int
    turns: int = 5
    turn_blocks: float = 0.25


#: SSBJ moves keys over three R-cycles, so its turns are three cycles together. The scans without a cache are steady
#: when H_S has been filled once. SSJ changes its cache once per cycle, and its threshold stays for some of them.
_SSBJ = WarmUp(3, 3, 3, 4, 0.5)
_SCANS = WarmUp(1, 1, 1)
_SSJ = WarmUp(1, 8, 16)
_FILLS = WarmUp(1, 3, 6)
_LEARNS = WarmUp(1, 4, 10)
WARM_UPS = {
    "ssbj": _SSBJ,
    "meshjoin": _SCANS,
    "rmeshjoin": _SCANS,
    "ssj": _SSJ,
    "hybridjoin": _FILLS,
    "inlj": _FILLS,
}


def batch_rows(memory: int) -> int:
    """Stream tuples per push: a twentieth of what could wait in the memory."""
    return max(_LEAST_BATCH, min(memory // _V_S // 20, _MOST_BATCH))


def run_steady(
    join: SemiStreamJoin, stream: Iterator[pa.RecordBatch], batch: int, turns: int | None = None
) -> dict[str, Any]:
    """Warm up, measure, and say what the operator looked like, as JSON values."""
    rule = WARM_UPS.get(join.name, _LEARNS)
    warmed = warm(join, stream, batch)
    # Few loads would say little: a turn has enough of them, unless they serve very many tuples each.
    enough = min(_LOADS_PER_TURN * warmed.loop_tuples, max(join.reader.n_rows / 2, _MOST_TUPLES_PER_TURN))
    turn_batches = max(round(max(warmed.block_tuples * rule.turn_blocks, enough) / batch), 2)
    measured = [_turn(join, stream, batch, turn_batches) for _ in range(turns or rule.turns)]
    cache = getattr(join, "cache", None)
    symbols: dict[str, float] = {
        "d": float(join.buffer_pages * join.reader.page_rows),
        "h_R": float(getattr(cache, "rows", 0) or 0),
        "h_S": float(waiting_tuples(join)),
        "chunk_rows": float(join.chunk_rows),
        "k": float(getattr(join, "k", 0) or 0),
    }
    return {
        "turns": measured,
        "symbols": symbols,
        "row_bytes": row_bytes(join),
        "peak_bytes": join.memory.peak_bytes,
        "warm_hits": warmed.hits,
        "steady": warmed.steady,
    }


@dataclass(frozen=True)
class Warmed:
    """After the warm-up: tuples of the last block and of a turn of the main loop, and hits in each round."""

    block_tuples: int
    loop_tuples: float
    hits: list[float]
    #: whether the rounds became steady within their limit
    steady: bool


def warm(join: SemiStreamJoin, stream: Iterator[pa.RecordBatch], batch: int) -> Warmed:
    """Push rounds of blocks until they are steady."""
    rule = WARM_UPS.get(join.name, _LEARNS)
    hits: list[float] = []
    others: list[tuple[float, float]] = []
    tuples, steady = batch, rule.most_rounds == 1
    for _ in range(rule.most_rounds):
        before = copy.copy(join.stats)
        for _ in range(rule.round_blocks):
            tuples = _block(join, stream, hits[-1] if hits else 0.0)
        stats = join.stats
        seen = max(stats.tuples_in - before.tuples_in, 1)
        hits.append((stats.cache_hits - before.cache_hits) / seen)
        others.append((waiting_tuples(join), (stats.iterations - before.iterations) / seen))
        if len(hits) >= max(rule.least_rounds, 2) and abs(hits[-1] - hits[-2]) <= _HITS_CHANGE:
            pairs = zip(others[-1], others[-2], strict=True)
            steady = all(abs(now - then) <= _OTHER_CHANGE * max(now, then) for now, then in pairs)
            if steady:
                break
    return Warmed(tuples, 1 / max(others[-1][1], 1e-9), hits, steady)


def _block(join: SemiStreamJoin, stream: Iterator[pa.RecordBatch], hits: float) -> int:
    """Push one block, this share of which the cache is likely to answer; its tuples."""
    stats, pages, rows = join.stats, join.reader.n_pages, join.reader.n_rows
    first, read = stats.tuples_in, stats.pages_read
    if join.access == "scan":
        # An operator that came to hold all of R ends its cycles: then tuples decide.
        while stats.pages_read - read < pages and stats.tuples_in - first < 4 * rows:
            push(join, next(stream))
    else:
        cached = int(getattr(getattr(join, "cache", None), "rows", 0) or 0)
        filling = _FILLINGS * waiting_tuples(join) / max(1 - hits, 0.1)
        wanted = max(min(max(filling, 10 * cached), rows), rows // 32)
        while stats.tuples_in - first < wanted:
            push(join, next(stream))
    return stats.tuples_in - first


def _turn(join: SemiStreamJoin, stream: Iterator[pa.RecordBatch], batch: int, count: int) -> dict[str, Any]:
    """One measured turn of `count` batches; they are made before the clock starts."""
    batches = list(islice(stream, count))
    before = copy.copy(join.stats)
    start = time.perf_counter()
    for part in batches:
        push(join, part)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "counts": counted(join, before, batch=batch)}


def push(join: SemiStreamJoin, batch: pa.RecordBatch) -> None:
    """Join a batch and let go of the output."""
    for _ in join.push(batch):
        pass


def waiting_tuples(join: SemiStreamJoin) -> int:
    """Tuples in H_S."""
    pending = getattr(join, "pending", None)
    return 0 if pending is None else len(pending)


@dataclass(frozen=True)
class Run:
    """A finished run: what `run_steady` found, and how to price it.

    `timed` is the same run but for operators with threads, whose phases went in step while `result` was counted.
    """

    algorithm: str
    settings: Mapping[str, Any]
    result: Mapping[str, Any]
    timed: Mapping[str, Any]
    profiles: Mapping[str, CostProfile]

    @property
    def symbols(self) -> dict[str, float]:
        """d, h_R, h_S, k as the operator had them."""
        return dict(self.result["symbols"])

    @property
    def counts(self) -> dict[str, float]:
        """Counts of all measured turns together."""
        total: dict[str, float] = {}
        for turn in self.result["turns"]:
            for name, number in turn["counts"].items():
                total[name] = total.get(name, 0.0) + number
        return total

    def seconds(self, way: Way) -> list[float]:
        """Seconds of each turn, by one of the three clocks."""
        if way == "wall":
            return [float(turn["seconds"]) for turn in self._turns(way)]
        clock = CostClock(self.profiles[way])
        direct, width = bool(self.settings["direct"]), float(self.result["row_bytes"])
        return [
            clock.price(self.algorithm, turn["counts"], direct=direct, row_bytes=width).seconds
            for turn in self._turns(way)
        ]

    def counted(self, *counters: str, way: Way = "counts") -> list[float]:
        """How often these things were counted, turn by turn."""
        return [sum(turn["counts"][name] for name in counters) for turn in self._turns(way)]

    def rate(self, way: Way) -> Estimate:
        """Stream tuples per second."""
        return Estimate.ratio(self.counted("tuples_in", way=way), self.seconds(way))

    def loop_cost(self, way: Way) -> Estimate:
        """c_loop: seconds of one turn of the operator's main loop."""
        return Estimate.ratio(self.seconds(way), self.counted("iterations", way=way))

    def per_loop(self, *counters: str) -> Estimate:
        """How often something was counted in one turn of the main loop."""
        return Estimate.ratio(self.counted(*counters), self.counted("iterations"))

    def hit_share(self) -> Estimate:
        """Share of the stream that the cache answered."""
        return Estimate.ratio(self.counted("cache_hits"), self.counted("cache_hits", "cache_misses"))

    def _turns(self, way: Way) -> list[Mapping[str, Any]]:
        return list((self.timed if way == "wall" else self.result)["turns"])
