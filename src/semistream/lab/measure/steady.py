"""One real run of an operator: warmed up until it is steady, then measured in turns.

How long to warm up is decided by counts, never by a clock, so that a run with the same seed has the same counts
everywhere: rounds of blocks of the stream are pushed until neither the share of cache hits nor the number of waiting
tuples nor that of turns of the main loop per tuple changes any more, or a limit is reached, and then the run says so. A
block is an R-cycle for operators that scan; for the others it is one and a half fillings of H_S, since in a full table
a tuple waits while two fillings come and go. A cache that begins anew, with other sizes, is not at rest, nor is one
that may be about to: turns in which it does are thrown away, and the warm-up goes on.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa

from semistream.algorithms.registry import resolve
from semistream.cost.clock import CostClock, counted, row_bytes
from semistream.cost.profile import CostProfile, machine_info
from semistream.engine.join import SemiStreamJoin
from semistream.lab.figure import Way
from semistream.lab.measure.pace import Pace, taken_of
from semistream.lab.measure.runs import Estimate
from semistream.lab.measure.together import Together
from semistream.lab.workloads.relation import WAITING_BYTES

#: Grows when a run comes to rest by other rules or records something else: runs by older rules are made again.
RULES = 5
#: At rest: from two rounds to the next two, hits change by no more than this share of the stream, and waiting tuples
#: and turns per tuple by no more than this part of themselves, or than chance changes a count of so few turns. Two
#: rounds each, since a cache that learns ever more slowly changes little from one round to the next. In all
#: four no cache begins anew, nor do the hits say that it has to.
_HITS_CHANGE, _OTHER_CHANGE = 0.01, 0.05
_WINDOW = 2
_CHANCE = 3.0
#: warm-ups, each with turns after it, until no cache begins anew in any of these
_MOST_TRIES = 4
_FILLINGS = 1.5
_LOADS_PER_TURN = 20
_MOST_TUPLES_PER_TURN = 1_000_000
_LEAST_BATCH, _MOST_BATCH = 500, 65_536


@dataclass(frozen=True)
class WarmUp:
    """How many blocks make a round, the fewest and most rounds of warm-up, and how long turns are, in blocks."""

    round_blocks: int
    least_rounds: int
    most_rounds: int
    turns: int = 5
    turn_blocks: float = 0.25


#: A scan may change its cache once per R-cycle, or move keys over three of them: then three cycles are alike, and turns
#: are some cycles together. SSBJ's cache is at rest after about 24 cycles; the limit is 48.
_SCANS = WarmUp(3, 4, 16, 4, 0.5)
#: A scan without a cache is steady when H_S has been filled once.
_FILLS = WarmUp(1, 1, 1)
#: A cache that fills when its keys leave a large H_S takes a dozen fillings and more, and one that earns too little
#: gives bytes back after six.
_LOOKS_UP = WarmUp(1, 6, 40)


def warm_up_of(join: SemiStreamJoin) -> WarmUp:
    """How an algorithm becomes steady: by how it reads R, and whether it keeps hot keys."""
    if join.algorithm.access != "scan":
        return _LOOKS_UP
    return _FILLS if join.loop.cache is None else _SCANS


def batch_rows(memory: int) -> int:
    """Stream tuples per push: a twentieth of what could wait in the memory."""
    return max(_LEAST_BATCH, min(memory // WAITING_BYTES // 20, _MOST_BATCH))


def run_steady(
    join: SemiStreamJoin,
    stream: Iterator[pa.RecordBatch],
    batch: int,
    turns: int | None = None,
    together: Together | None = None,
    pace: Pace | None = None,
) -> dict[str, Any]:
    """Warm up, measure, and say what the operator looked like, as JSON values.

    Other processes may warm up `together` with this one; turns are measured alone, and the machine's `pace` with them.
    """
    rule, others, machine = warm_up_of(join), together or Together(), pace or Pace()
    for _ in range(_MOST_TRIES):
        warmed = warm(join, partial(push_next, join, stream, others))
        # Few loads would say little: a turn has enough of them, unless they serve very many tuples each.
        enough = min(_LOADS_PER_TURN * warmed.loop_tuples, max(join.reader.n_rows / 2, _MOST_TUPLES_PER_TURN))
        turn_batches = max(round(max(warmed.block_tuples * rule.turn_blocks, enough) / batch), 2)
        begun = restarts(join)
        with others.alone():
            watch, measured = machine.watch(join), []
            for _ in range(turns or rule.turns):
                measured.append(turn(join, stream, batch, turn_batches))
                watch.look()
        kept = restarts(join) == begun
        if kept:
            break
    division = join.plan.division
    symbols: dict[str, float] = {
        "d": float(division.rows),
        "h_R": float(cached_rows(join)),
        "h_S": float(join.waiting),
        "chunk_rows": float(division.chunk_rows),
        "k": float(getattr(join.plan, "k", 0)),
    }
    return {
        "turns": measured,
        "symbols": symbols,
        "row_bytes": row_bytes(join),
        "n_pages": join.reader.n_pages,
        "peak_bytes": join.memory.peak_bytes,
        "warm_hits": warmed.hits,
        "steady": warmed.steady and kept,
        "most_rounds": rule.most_rounds,
        "cpus": machine_info()["cpus"],
        "taken": watch.taken(),
    }


@dataclass(frozen=True)
class Warmed:
    """After the warm-up: tuples of the last block and of a turn of the main loop, and hits in each round."""

    block_tuples: int
    loop_tuples: float
    hits: list[float]
    #: whether the rounds became steady within their limit
    steady: bool


def warm(join: SemiStreamJoin, step: Callable[[], object], most_seconds: float = math.inf) -> Warmed:
    """Go on until rounds of blocks are steady; a step pushes a batch. Only who times nothing but rates sets a limit."""
    rule, until = warm_up_of(join), time.monotonic() + most_seconds
    hits: list[float] = []
    rounds: list[Round] = []
    tuples, steady = 0, rule.most_rounds == 1
    for _ in range(rule.most_rounds):
        before, begun = copy.copy(join.stats), restarts(join)
        waiting: list[int] = []
        for _ in range(rule.round_blocks):
            tuples = _block(join, step, hits[-1] if hits else 0.0, until, waiting)
        stats = join.stats
        seen = max(stats.tuples_in - before.tuples_in, 1)
        hits.append((stats.cache_hits - before.cache_hits) / seen)
        waited, turns = sum(waiting) // max(len(waiting), 1), stats.iterations - before.iterations
        rounds.append(Round(hits[-1], waited, turns, seen, restarts(join) - begun))
        if len(rounds) >= max(rule.least_rounds, 2 * _WINDOW):
            steady = at_rest(rounds[-2 * _WINDOW : -_WINDOW], rounds[-_WINDOW:]) and stays(join, hits[-1])
            if steady:
                break
        if time.monotonic() > until:
            break
    return Warmed(tuples, rounds[-1].tuples / max(rounds[-1].turns, 1e-9), hits, steady)


@dataclass(frozen=True)
class Round:
    """What a round showed: hits per tuple, tuples that wait on average, turns of the main loop, tuples.

    On average, since an operator may gather tuples and then serve them all: how many wait in the end is a matter of
    chance there.
    """

    hits: float
    waiting: int
    turns: int
    tuples: int
    #: how often the cache began anew
    restarts: int = 0


def at_rest(before: Sequence[Round], after: Sequence[Round]) -> bool:
    """Whether some rounds are like those before them."""
    then, now = (_together(rounds) for rounds in (before, after))
    if then.restarts or now.restarts or abs(now.hits - then.hits) > _HITS_CHANGE:
        return False
    chance = _CHANCE / math.sqrt(max(min(now.turns, then.turns), 1))
    pairs = ((now.waiting, then.waiting), (now.turns / now.tuples, then.turns / then.tuples))
    return all(abs(a - b) <= max(_OTHER_CHANGE, chance) * max(a, b) for a, b in pairs)


def _together(rounds: Sequence[Round]) -> Round:
    tuples = sum(each.tuples for each in rounds)
    hits = math.fsum(each.hits * each.tuples for each in rounds) / tuples
    waiting = sum(each.waiting for each in rounds) // len(rounds)
    return Round(hits, waiting, sum(each.turns for each in rounds), tuples, sum(each.restarts for each in rounds))


def _block(join: SemiStreamJoin, step: Callable[[], object], hits: float, until: float, waiting: list[int]) -> int:
    """Push one block, this share of which the cache is likely to answer; notes who waits after each step -> tuples."""
    stats, pages, rows = join.stats, join.reader.n_pages, join.reader.n_rows
    first, read = stats.tuples_in, stats.pages_read
    filling = _FILLINGS * join.waiting / max(1 - hits, 0.1)
    wanted = max(min(max(filling, 10 * cached_rows(join)), rows), rows // 32)
    scans = join.algorithm.access == "scan"
    while time.monotonic() <= until:
        step()
        waiting.append(join.waiting)
        # An operator that came to hold all of R ends its cycles: then tuples decide.
        if stats.tuples_in - first >= (4 * rows if scans else wanted) or (scans and stats.pages_read - read >= pages):
            break
    return stats.tuples_in - first


def turn(join: SemiStreamJoin, stream: Iterator[pa.RecordBatch], batch: int, count: int) -> dict[str, Any]:
    """One measured turn of `count` batches; they are made before the clock starts."""
    batches = list(islice(stream, count))
    before = copy.copy(join.stats)
    start, cpu = time.perf_counter(), time.process_time()
    for part in batches:
        push(join, part)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "counts": counted(join, before, batch=batch)}


def push(join: SemiStreamJoin, batch: pa.RecordBatch) -> None:
    """Join a batch and let go of the output."""
    for _ in join.push(batch):
        pass


def push_next(join: SemiStreamJoin, stream: Iterator[pa.RecordBatch], others: Together) -> None:
    """A step of a warm-up, at which others may be let measure."""
    others.pause()
    push(join, next(stream))


def cached_rows(join: SemiStreamJoin) -> int:
    """h_R: tuples in the cache."""
    cache = join.loop.cache
    return 0 if cache is None else int(cache.rows)


def restarts(join: SemiStreamJoin) -> int:
    """How often the cache began anew, because the border between it and H_S was moved."""
    cache = join.loop.cache
    return 0 if cache is None else cache.restarts


def stays(join: SemiStreamJoin, hits: float) -> bool:
    """Whether the border between cache and H_S stays where it is while the cache answers this part of the stream."""
    share = getattr(getattr(join.loop, "front", None), "share", None)
    return share is None or share.stays(hits)


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
        clock, algorithm = CostClock(self.profiles[way]), resolve(self.algorithm)
        direct, width = bool(self.settings["direct"]), float(self.result["row_bytes"])
        return [
            clock.price(algorithm, turn["counts"], direct=direct, row_bytes=width).seconds for turn in self._turns(way)
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

    def per_cycle(self) -> Estimate:
        """Stream tuples per R-cycle, whoever reads: per as many pages as R has. No clock has a part in it."""
        pages = [number / self.result["n_pages"] for number in self.counted("pages_read")]
        return Estimate.ratio(self.counted("tuples_in"), pages)

    @property
    def steady(self) -> bool:
        """Whether what was counted, and what was timed, was at rest."""
        return bool(self.result["steady"]) and bool(self.timed["steady"])

    @property
    def taken(self) -> dict[str, Any] | None:
        """When the wall clock was read, and how fast the machine was then; None if nobody noted it."""
        return taken_of(self.timed)

    @property
    def cpu_share(self) -> float | None:
        """CPU seconds of all threads per second of the wall clock; more than 1 is work side by side."""
        turns = self.timed["turns"]
        if any("cpu_seconds" not in turn for turn in turns):
            return None
        return math.fsum(turn["cpu_seconds"] for turn in turns) / math.fsum(turn["seconds"] for turn in turns)

    @property
    def side_by_side(self) -> float | None:
        """For operators with threads: the wall clock's rate over that of the same run with its phases in turn."""
        if self.timed is self.result:
            return None
        rates = [
            math.fsum(turn["counts"]["tuples_in"] for turn in found["turns"])
            / math.fsum(turn["seconds"] for turn in found["turns"])
            for found in (self.timed, self.result)
        ]
        return rates[0] / rates[1]

    def _turns(self, way: Way) -> list[Mapping[str, Any]]:
        return list((self.timed if way == "wall" else self.result)["turns"])
