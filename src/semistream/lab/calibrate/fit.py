"""Costs that are an operator's own, fitted to short real runs: c_C, c_T, c_O, c_P ... per chunk, turn, row, page.

What a run takes besides what the measured unit costs explain is shared out among these by least squares: once over the
runs of all operators, which gives the costs that a new one is taken to have, then for each (`c_T.<algorithm>`).
"""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from semistream.algorithms.registry import ALGORITHMS
from semistream.cost.clock import CostClock, counted, operations_of, pricing_of
from semistream.cost.profile import FAR, NEAR, OVERLAP, CostProfile, UnitCost
from semistream.engine.algorithm import Algorithm
from semistream.engine.chunk import JoinStats
from semistream.lab.calibrate import micro
from semistream.lab.calibrate.unit_costs import BOOTSTRAPS, SEED, Masters, interval
from semistream.lab.measure.yardstick import Yardstick
from semistream.lab.workloads.relation import SyntheticStream
from semistream.master.base import Master

#: tuples of a step; of a short run before it is timed; and timed turns, which go on until the operator's main loop has
#: turned twice: one that collects tuples before it works does nothing else for long. A step before each turn gives the
#: CPU's caches back to the operator, which the yardstick took
_STEP = 10_000
_WARM, _MOST_WARM = 6 * _STEP, 45 * _STEP
_TURNS, _LOOPS, _SHORTEST_TURN, _LONGEST_TURN = 3, 2, 2 * _STEP, 20 * _STEP
#: costs that are an operator's own: beginning and ending chunks and turns, output from where its rows stand,
#: and what it does for a key it looks up (in order or at random, which far memory tells apart), for a page it visits
#: and for a tuple it takes into its cache
#: (and how much each should be as usual: building a row is much the same everywhere, making room in a cache is not)
_OWN = {
    "c_C": 0.1,
    "c_T": 0.1,
    "c_O": 0.5,
    f"{NEAR}.c_O": 0.5,
    "c_L": 0.1,
    f"{FAR}.c_L": 0.1,
    "c_P": 0.05,
    "c_B": 0.2,
}


@dataclass(frozen=True)
class _Setting:
    """Of a round of short runs: which R, budget in bytes, exponent of the stream, tuples per push, each drained."""

    size: str
    budget: int
    exponent: float
    batch: int
    drained: bool = False


_ROUNDS = (
    _Setting("small", 500_000, 1.0, 10_000),
    _Setting("large", 4_000_000, 0.0, 10_000),
    _Setting("large", 6_000_000, 1.0, 10_000),
    _Setting("huge", 6_000_000, 0.0, 10_000),
    _Setting("small", 1_000_000, 0.0, 2_000, drained=True),
    _Setting("large", 4_000_000, 1.0, 2_000),
    _Setting("small", 500_000, 0.0, 10_000),
    _Setting("large", 60_000_000, 0.0, 10_000),
    _Setting("huge", 20_000_000, 1.0, 10_000, drained=True),
    _Setting("small", 2_000_000, 1.0, 2_000, drained=True),
    _Setting("large", 6_000_000, 0.0, 2_000),
    _Setting("large", 2_000_000, 1.0, 10_000),
    _Setting("small", 2_000_000, 1.5, 2_000, drained=True),
)


@dataclass(frozen=True)
class _Run:
    """A short run: seconds, how many of them the other unit costs explain, and the numbers of `_OWN`.

    `wall` is the same by the wall clock, which parallel phases make shorter; `counts` are all numbers.
    """

    seconds: float
    explained: float
    own: tuple[float, ...]
    wall: float = 0.0
    counts: Mapping[str, float] = field(default_factory=dict)


Runs = list[list[_Run]]


def short_rounds(
    masters: Mapping[str, Masters],
    base: CostProfile,
    yardstick: Yardstick,
    goes_on: Callable[[int], bool],
    say: Callable[[str], None],
) -> dict[str, Runs]:
    """Runs by algorithm. A round takes all algorithms through one setting, so that what else goes on touches all alike.

    On a huge R only those run that look rows up where they stand: the others copy pages, and see few of them at a time.

    `masters` are by order ("key", "frequency"); `goes_on` says whether a round of that number may begin.
    """
    plain = CostProfile(base.name, {**base.units, **{symbol: UnitCost.exactly(0.0) for symbol in _OWN}}, base.io)
    runs: dict[str, Runs] = {}
    for number, setting in enumerate(_ROUNDS, 1):
        if not goes_on(number):
            break
        for name, algorithm in ALGORITHMS.items():
            if algorithm.pricing is None or (setting.size == "huge" and not algorithm.pricing.mapped):
                continue
            say(f"operators, round {number} of {len(_ROUNDS)}: {name}")
            order = "frequency" if algorithm.wants_frequency_order else "key"
            turns = list(_short_runs(algorithm, masters[order], setting, plain, yardstick))
            runs.setdefault(name, []).append(turns)
    return runs


def fitted(runs: Mapping[str, Runs], base: CostProfile) -> dict[str, UnitCost]:
    """The measured unit costs with those that the runs tell besides."""
    every_run = [turns for part in runs.values() for turns in part]
    units = {**base.units, **own_costs(every_run, {s: cost for s, cost in base.units.items() if s in _OWN})}
    own = {
        f"{symbol}.{name}": cost
        for name, part in runs.items()
        for symbol, cost in own_costs(part, units).items()
        if symbol.rpartition(".")[2] in pricing_of(ALGORITHMS[name]).operations
    }
    priced = CostProfile(base.name, {**units, **own}, base.io)
    side_by_side = {
        f"{OVERLAP}.{name}": overlap(ALGORITHMS[name], part, priced)
        for name, part in runs.items()
        if pricing_of(ALGORITHMS[name]).threads > 1
    }
    return {**units, **own, **side_by_side}


def overlap(algorithm: Algorithm, runs: Runs, profile: CostProfile) -> UnitCost:
    """How much of what could run side by side did, from 0 (nothing) to 1 (the slowest phase hides all others)."""
    parts = []
    for run in (run for turns in runs for run in turns):
        price = CostClock(profile).price(algorithm, run.counts)
        longest, serial = max(price.phases), price.serial_seconds
        if serial > longest:
            parts.append(float(np.clip((serial - run.wall) / (serial - longest), 0.0, 1.0)))
    return interval(np.array(parts)) if parts else UnitCost.exactly(1.0)


def own_costs(runs: Runs, usual: dict[str, UnitCost]) -> dict[str, UnitCost]:
    """What runs take beyond what the unit costs explain: per chunk, per turn, per output row.

    So few short runs tell so many costs apart only roughly; where they do not, an operator's cost is the usual one,
    where that is known.
    """
    prior = [usual[symbol].seconds if symbol in usual else 0.0 for symbol in _OWN]
    fits = [_fit([sorted(turns, key=_seconds_per_tuple)[len(turns) // 2] for turns in runs], prior)]
    random = np.random.default_rng(SEED)
    fits += [
        _fit([turns[int(random.integers(0, len(turns)))] for turns in runs], prior) for _ in range(BOOTSTRAPS // 4)
    ]
    table = np.array(fits)
    costs = {}
    for column, symbol in enumerate(_OWN):
        best = float(table[0, column])
        low, high = np.percentile(table[:, column], [2.5, 97.5])
        costs[symbol] = UnitCost(best, min(float(low), best), max(float(high), best))
    return costs


def _seconds_per_tuple(run: _Run) -> float:
    return run.seconds / max(run.counts.get("tuples_in", 1.0), 1.0)


def _is_filling(stats: JoinStats) -> bool:
    """H_S, or a cache: until that is full no key has to make room."""
    return not stats.has_turned_over or (stats.switched > 0 and stats.evicted == 0)


def _short_runs(
    algorithm: Algorithm, masters: Masters, which: _Setting, base: CostProfile, yardstick: Yardstick
) -> Iterator[_Run]:
    master: Master = getattr(masters, which.size)
    stream = SyntheticStream(master.n_rows, which.exponent, micro.SEED)
    tuples = stream.rows(0, _MOST_WARM + _TURNS * (_STEP + _LONGEST_TURN))
    clock, pricing = CostClock(base), pricing_of(algorithm)
    with micro.open_on(algorithm.name, master, which.budget) as join:
        done = 0

        def step() -> None:
            nonlocal done
            micro.flow(join, tuples.slice(done, _STEP), which.batch, which.drained)
            done += _STEP

        while done < _WARM or (_is_filling(join.stats) and done < _MOST_WARM):
            step()
        for _ in range(_TURNS):
            pace, pace_wall = yardstick.pace(time.process_time), yardstick.pace(time.perf_counter)
            step()
            before, begun = copy.copy(join.stats), done
            start, start_wall = time.process_time(), time.perf_counter()
            while done - begun < _SHORTEST_TURN or (
                join.stats.iterations - before.iterations < _LOOPS and done - begun < _LONGEST_TURN
            ):
                step()
            seconds = (time.process_time() - start) / pace
            wall = (time.perf_counter() - start_wall) / pace_wall
            counts = counted(join, before, batch=which.batch)
            explained = clock.price(algorithm, counts).serial_seconds
            own = tuple(operations_of(pricing, symbol, counts) for symbol in _OWN)
            yield _Run(seconds, explained, own, wall, counts)


def _fit(runs: list[_Run], prior: list[float]) -> tuple[float, ...]:
    """Least squares of the relative residuals over the own costs, none below 0: the best of all subsets of them."""
    if not runs:
        return tuple(prior)
    weight = np.array([1.0 / run.seconds for run in runs])
    rest = np.array([run.seconds - run.explained for run in runs]) * weight
    columns = np.array([run.own for run in runs]) * weight[:, None]
    # A cost that is off its usual value by all of that value counts as a residual of this size.
    known = np.flatnonzero(np.array(prior) > 0)
    held = np.array(list(_OWN.values()))
    columns = np.vstack((columns, np.diag(held / np.maximum(np.array(prior), 1e-12))[known]))
    rest = np.concatenate((rest, held[known]))
    best, best_error = (0.0,) * len(_OWN), float((rest**2).sum())
    for size in range(1, len(_OWN) + 1):
        for used in itertools.combinations(range(len(_OWN)), size):
            part = columns[:, used]
            found = np.linalg.lstsq(part, rest, rcond=None)[0]
            error = float(((rest - part @ found) ** 2).sum())
            if (found >= 0).all() and error < best_error:
                values = dict(zip(used, found.tolist(), strict=True))
                best, best_error = tuple(values.get(place, 0.0) for place in range(len(_OWN))), error
    return best
