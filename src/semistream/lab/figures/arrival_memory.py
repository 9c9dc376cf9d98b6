"""Does memory follow the arrival rate? ssbj2019, section 3: a join takes what the rate needs, and a cache lowers that.

The budget here is an upper limit that is never reached. A turn takes what arrived during the last one, so H_S holds
what arrives in an R-cycle, and by the cache inequality the cache keeps the keys that would take more bytes in H_S at
this rate. The rate goes up in steps, and down at last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from semistream.engine.join import SemiStreamJoin
from semistream.lab.figure import Axis, Figure, Point, Verdict, Way
from semistream.lab.figures.family import SSBJ
from semistream.lab.laboratory import WAYS, Lab
from semistream.lab.measure.arriving import Arriving, Even, at_rest
from semistream.lab.measure.delays import clock_of
from semistream.lab.measure.runs import Estimate
from semistream.lab.sources import Synthetic
from semistream.lab.verdicts import AHEAD, Check, Curves, factor, judge
from semistream.lab.workloads.relation import SyntheticStream

AT_REST, OVER_TIME = "ssbj-arrival-memory", "ssbj-arrival-steps"
#: R of 20 million tuples and the largest memory of figure 4a: MESHJOIN's best rate there is what rates are shares of
_SIZE, _MEMORY = 0.2, 0.4
#: shares of that rate; the last one comes back to the second
LOADS = (0.1, 0.2, 0.4, 0.8, 0.2)
#: R-cycles at each rate. A cache needs some: keys move over three, and leave it every tenth.
_CYCLES = {"ssbj": 24, "meshjoin": 4}
_MB = 1e6
#: bytes that fell back are those from before within this part
_BACK = 1.15


def _steps(
    join: SemiStreamJoin, source: Synthetic, way: Way, rate: float, lab: Lab, cycles: int
) -> list[dict[str, Any]]:
    """Seconds and bytes at the end of each R-cycle, for each of the rates."""
    arriving, steps, began = Arriving(join, SyntheticStream(source.rows, source.skew, source.seed)), [], 0.0
    for load in LOADS:
        clock, before = clock_of(way, join, lab.profiles), join.stats.r_cycles
        seconds, held, fixed, seen = [], [], 0, before
        for sample in arriving.turns(Even(load * rate), clock):
            if sample.r_cycles > seen:
                seen = sample.r_cycles
                seconds.append(began + sample.seconds)
                held.append(sample.bytes)
                fixed = sample.all_bytes - sample.bytes
            if seen - before >= cycles:
                break
        began = seconds[-1]
        steps.append({"load": load, "seconds": seconds, "bytes": held, "fixed": fixed})
    return steps


def _measured(lab: Lab, algorithm: str, source: Synthetic, memory: int, rates: Mapping[Way, float]) -> dict[str, Any]:
    settings = {
        "run": "arrival steps",
        "algorithm": algorithm,
        "source": source.describe(),
        "memory": memory,
        "loads": list(LOADS),
        "cycles": _CYCLES[algorithm],
        "rates": {way: round(rate) for way, rate in rates.items()},
        "direct": lab.direct,
    }

    def make() -> dict[str, Any]:
        found: dict[str, Any] = {}
        for way in WAYS:
            lab.say(f"{algorithm}, arrival rates, R = {source.rows:,}, {way}")
            with lab.open(algorithm, source, memory) as join:
                found[way] = _steps(join, source, way, rates[way], lab, _CYCLES[algorithm])
        return found

    return lab.log.once(settings, make)


def _every_step(lab: Lab) -> Iterator[tuple[str, Way, float, dict[str, Any]]]:
    """Algorithm, clock, arrival rate and what was held at it."""
    source = SSBJ.source(lab, _SIZE)
    memory = lab.memory(source, _MEMORY)
    best = lab.measure("meshjoin", source, memory)
    if best is None:
        return
    rates: dict[Way, float] = {way: best.rate(way).mean for way in WAYS}
    for algorithm in SSBJ.algorithms:
        found = _measured(lab, algorithm, source, memory, rates)
        for way in WAYS:
            for step in found[way]:
                yield algorithm, way, step["load"] * rates[way], step


def _run_at_rest(lab: Lab) -> Iterator[Point]:
    seen = set()
    for algorithm, way, rate, step in _every_step(lab):
        if (algorithm, way, step["load"]) in seen:
            continue
        seen.add((algorithm, way, step["load"]))
        held, steady = at_rest(step["bytes"])
        size = Estimate(held / _MB, held / _MB, held / _MB, 1)
        settings = {"load": step["load"], "fixed_bytes": step["fixed"], "steady": steady}
        yield lab.point(AT_REST, way, algorithm, rate, size, algorithm=algorithm, **settings)


def _run_over_time(lab: Lab) -> Iterator[Point]:
    for algorithm, way, rate, step in _every_step(lab):
        for seconds, held in zip(step["seconds"], step["bytes"], strict=True):
            size = Estimate(held / _MB, held / _MB, held / _MB, 1)
            settings = {"load": step["load"], "rate_per_s": rate}
            yield lab.point(OVER_TIME, way, algorithm, seconds, size, algorithm=algorithm, **settings)


def judge_at_rest(points: Sequence[Point]) -> Verdict:
    def checks(curves: Curves) -> list[Check]:
        found = []
        for name in SSBJ.algorithms:
            sizes = list(curves.series.get(name, {}).values())
            text = f"{name} {', '.join(f'{size:.1f}' for size in sizes)} MB"
            found.append(Check(f"{name} takes more memory for every higher rate", sizes == sorted(set(sizes)), text))
        ratios = curves.ratio("meshjoin", "ssbj")
        less = bool(ratios) and all(ratio >= AHEAD for ratio in ratios.values())
        found.append(Check("SSBJ takes less memory than MESHJOIN at every rate", less, ""))
        lowest = min(ratios, key=lambda x: ratios[x]) if ratios else None
        highest = max(ratios, key=lambda x: ratios[x]) if ratios else None
        return found + [factor(curves, "meshjoin", "ssbj", x, 7.0) for x in (lowest, highest)]

    return judge(
        points,
        checks,
        "A key is worth caching from a few tuples per R-cycle on, so at a low rate nearly all keys belong in H_S and "
        "SSBJ is a MESHJOIN, with a directory of the cache that takes a fiftieth of the budget's tables from the "
        "beginning; the factor grows with the rate, and W* bounds it (docs/arguments/w-star.md).",
    )


def judge_over_time(points: Sequence[Point]) -> Verdict:
    """The memory of each step, from the last third of its R-cycles; the last step has the rate of the second."""

    def checks(curves: Curves) -> list[Check]:
        found = []
        for name in SSBJ.algorithms:
            steps: list[tuple[float, list[float]]] = []
            for point in sorted((p for p in curves.points if p.series == name), key=lambda point: point.x):
                if not steps or steps[-1][0] != point.settings["load"]:
                    steps.append((float(point.settings["load"]), []))
                steps[-1][1].append(point.y)
            held = [at_rest(values)[0] for _, values in steps]
            if len(held) < len(LOADS):
                continue
            top, before, after = max(held), held[1], held[-1]
            text = f"{name} {', '.join(f'{size:.1f}' for size in held)} MB"
            found.append(Check(f"{name} grows with the rate", held[:-1] == sorted(held[:-1]), text))
            fell = after < top and after <= _BACK * before
            found.append(Check(f"{name} gives memory back when the rate falls", fell, text))
        return found

    return judge(
        points,
        checks,
        "Tables keep what they have once grown to: a directory is made smaller at the beginning of an R-cycle, and "
        "keys leave the cache every tenth.",
    )


_HELD = Axis("memory of waiting tuples and cache", "MB")
FIGURES = (
    Figure(
        AT_REST,
        "Memory that an arrival rate takes when the join follows it: SSBJ and MESHJOIN",
        Axis("arrival rate", "tuples/s"),
        _HELD,
        "Both adapt their memory to the arrival rate, each chunk being what has arrived when it is made, and MESHJOIN "
        "takes about 7 times the memory of SSBJ at every rate (section 3 and figure 4a; R of 20 million tuples, skew "
        "1).",
        _run_at_rest,
        judge_at_rest,
    ),
    Figure(
        OVER_TIME,
        "Memory over time while the arrival rate goes up and down: SSBJ and MESHJOIN",
        Axis("time", "s"),
        _HELD,
        "The joins configure themselves for the memory that the arrival rate takes (section 3; no figure there). We "
        "hold memory to grow when the rate does, here from 10 over 20 and 40 to 80 % of what MESHJOIN can serve, and "
        "to fall back with it, to 20 %.",
        _run_over_time,
        judge_over_time,
    ),
)
