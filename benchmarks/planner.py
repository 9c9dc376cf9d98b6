"""Does the planner pick well? Operators run in every setting; "auto" and the plan's pick are compared with the fastest.

Settings are drawn once, by a fixed seed: R of 1, 5, 20 and 50 million tuples, memory of 0.5 to 20 % of that, skews,
shares without a match, batches of 10 k to 2 M, finished batch by batch or not, R in the page cache or read past it, a
stream of five million tuples or one without an end. A few have a small R in Parquet, without an index. Two contestants
are judged: the operator that the first plan picks, made of R, the budget and one batch of the stream; and "auto" as a
whole, with all its planning, trials and changes.

A stream that ends: everyone joins all of it from the beginning, with nothing in its cache, and the time counts, from
opening to the last row. A stream that takes the pick longer than some seconds is cut to what it joins in that time,
and the plan is made for that many tuples: at least three batches, or what it joins in three times that time, where a
batch may be cut as well. Whoever takes longer than the best so far is stopped
at once, and so is who could reach its time only by joining the rest half as fast again as the best did (a tenth, if it
promised less than half of the pick's rate); "auto" is stopped at 2.5 times the best, and counts as that. The closest
ones, the pick and "auto" then run again in turns, as often as each other, and the shortest time of each counts: the
shorter a stream the more often, and once at least, for a disk changes its speed from one minute to the next.

A stream without an end: all operators run for a moment; the fastest few and the picks are opened again, warmed up
until their caches are at rest (or for some seconds), and measured in turns. Half of these turns say which is the
fastest, the other half how a pick compares with it, turn by turn, and the median counts: the fastest of several noisy
figures would otherwise be the luckiest of them. No tuple comes twice. "auto" is judged by what it has settled on after
its trial. Batches that would take the pick longer than some seconds are cut to these.

    python benchmarks/planner.py --data DIR --save DIR     40 settings, about 40 minutes, 10 GB of data
    python benchmarks/planner.py --settings 6              fewer, to see that it runs
    python benchmarks/planner.py --rows 1000000            only some sizes of R (also those not in the list)
    python benchmarks/planner.py --seed 3                  other settings

With `--save` every setting is kept as soon as it is done, and a run that was broken off goes on after the last one.
None of these settings is used for calibration: that has data, sizes and budgets of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from semistream.algorithms.registry import ALGORITHMS
from semistream.cost.profile import CostProfile
from semistream.engine.join import SemiStreamJoin
from semistream.errors import BudgetError
from semistream.lab.calibrate.calibrate import calibrate
from semistream.lab.measure.steady import warm
from semistream.lab.measure.turns import Performance, ratios, take_turns
from semistream.lab.planning import Case, Data, cases
from semistream.lab.workloads.relation import KEY, STREAM_SCHEMA
from semistream.master.base import Master
from semistream.master.reading import choose_reading
from semistream.planner.auto import AutoJoin
from semistream.planner.plan import Candidate, JoinPlan, make_plan
from semistream.planner.stream import StreamSample
from semistream.spec import JoinSpec

SEED = 2026
WITHIN, SHARE, WORST = 0.9, 0.9, 0.5
#: stopped at so many times the best time: who is judged, and everyone else
JUDGED_LIMIT, LIMIT = 2.5, 1.05
#: who promises less than this part of the pick's rate is not run at all
HOPELESS_PROMISE = 0.2
#: who is behind may hope to join the rest of the stream so many times as fast as the best did; less if it promised less
#: than this part of the pick's rate
CATCHES_UP, SLOW_PROMISE, SLOW_CATCHES_UP = 1.5, 0.5, 1.1
#: seconds between two looks at how far a contestant is
GLANCE_S = 0.02
#: who is so close to the best runs again, so many at most: for so many seconds, so often at most
CLOSE, MOST_CLOSE, AGAIN_S, MOST_AGAIN = 1.15, 3, 6.0, 4
#: a stream is cut to what the pick joins in so many seconds, and to so many batches at least, if these take no longer
#: than so many seconds
MOST_WHOLE_S, LEAST_BATCHES, MOST_BATCHES_S = 4.0, 3, 12.0
#: a batch of a stream without an end is cut to what the pick is said to join in as many seconds, and to this at least
LEAST_BATCH = 10_000
#: seconds: a first impression, before and while it is taken; most of a warm-up; a turn
FIRST_S, FIRST_WARM_S, MOST_WARM_S, TURN_S = 0.3, 0.3, 5.0, 0.4
TURNS, FINALISTS = 10, 4
#: a turn has a whole batch at least: where batches take long there are fewer turns, of about so many seconds in all
LEAST_TURNS, MOST_TURNS_S = 4, 40.0
#: how long "auto" may join until it settles
MOST_TRIAL_S = 45.0
#: who has less than this part of the fastest rate so far needs no further measurement
HOPELESS = 0.5
AUTO = "auto"
console = Console(width=170)


SPEC = JoinSpec.make(KEY, "left")


def planned(case: Case, master: Master, first: pa.RecordBatch, profile: CostProfile) -> JoinPlan:
    sample = StreamSample(master, SPEC, first.schema)
    sample.add(first)
    sample.probe(first, case.memory, direct=case.direct)
    return make_plan(
        master,
        SPEC,
        first.schema,
        case.memory,
        sample.statistics(),
        profile=profile,
        batch=case.batch,
        micro_batches=case.micro_batches,
        direct=case.direct,
        policy=case.policy,
    )


def opened_auto(case: Case, master: Master, profile: CostProfile) -> AutoJoin:
    reading = choose_reading(master, "direct" if case.direct else "mapped", case.memory)
    return AutoJoin(master, SPEC, case.memory, profile=profile, reading=reading, policy=case.policy)


def opened(case: Case, master: Master, algorithm: str, options: dict[str, Any]) -> SemiStreamJoin:
    join = SemiStreamJoin(ALGORITHMS[algorithm], master, SPEC, case.memory, options, direct=case.direct)
    try:
        join.start(STREAM_SCHEMA)
    except BaseException:
        join.close()
        raise
    return join


def workable(case: Case, master: Master, plan: JoinPlan) -> JoinPlan:
    """The plan from its first candidate on that the budget really allows, as "auto" takes it."""
    for place, each in enumerate(plan.candidates):
        with suppress(BudgetError):
            opened(case, master, each.algorithm, dict(each.options)).close()
            return replace(plan, candidates=plan.candidates[place:])
    return plan


def outputs(join: AutoJoin | SemiStreamJoin, batch: pa.RecordBatch, *, drains: bool) -> Iterator[pa.RecordBatch]:
    """Those of a batch, which may be finished by itself."""
    yield from join.push(batch)
    if drains:
        yield from join.drain()


# --------------------------------------------------------------------------------------- a stream that ends


class Race:
    """All contestants of a setting over the whole stream, each from the beginning."""

    def __init__(self, case: Case, data: Data, profile: CostProfile) -> None:
        self._case, self._data, self._stream, self._profile = case, data, data.stream(case), profile
        #: shortest time of each; who was stopped has the time it had when that happened
        self.times: dict[str, float] = {}
        self.stopped: set[str] = set()
        self.revisions: list[str] = []
        #: when the fastest had taken how many tuples
        self._leader: list[tuple[float, int]] = []

    @property
    def best(self) -> float:
        finished = [seconds for name, seconds in self.times.items() if name not in self.stopped]
        return min(finished, default=math.inf)

    def run(
        self, name: str, algorithm: str, options: dict[str, Any], limit: float, catches_up: float = math.inf
    ) -> None:
        """One contestant; longer than `limit` seconds interests nobody.

        Nor does who would have to be `catches_up` times as fast as the fastest was to stay within them.
        """
        with closing(self._data.again(self._case)) as master, suppress(BudgetError):
            self._run(master, name, algorithm, options, limit, catches_up)

    def _run(
        self, master: Master, name: str, algorithm: str, options: dict[str, Any], limit: float, catches_up: float
    ) -> None:
        started = time.perf_counter()
        join: AutoJoin | SemiStreamJoin
        if algorithm == AUTO:
            join = opened_auto(self._case, master, self._profile)
        else:
            join = opened(self._case, master, algorithm, options)
        with join:
            way = self._joined(join, started, limit, catches_up)
            seconds = time.perf_counter() - started
            if isinstance(join, AutoJoin):
                self.revisions = [str(join.algorithm), *join.explain().revisions]
        if way is not None:
            self.stopped.discard(name)
            if seconds < self.best:
                self._leader = way
        elif name not in self.times:
            self.stopped.add(name)
        if way is not None or name not in self.times:
            self.times[name] = min(seconds, self.times.get(name, math.inf))

    def _joined(
        self, join: AutoJoin | SemiStreamJoin, started: float, limit: float, catches_up: float
    ) -> list[tuple[float, int]] | None:
        """When how many tuples had been taken; nothing where that was stopped."""
        way: list[tuple[float, int]] = []
        for batch in (*self._stream, None):
            drains = self._case.micro_batches
            for _ in join.drain() if batch is None else outputs(join, batch, drains=drains):
                now = time.perf_counter() - started
                if now > limit:
                    return None
                if not way or now - way[-1][0] > GLANCE_S:
                    way.append((now, join.stats.tuples_in))
                    if self._is_beaten(*way[-1], limit, catches_up):
                        return None
        way.append((time.perf_counter() - started, join.stats.tuples_in))
        return way if way[-1][0] <= limit else None

    def _is_beaten(self, seconds: float, tuples: int, limit: float, catches_up: float) -> bool:
        """Whether what is left of `limit` is too little, by what the fastest took for the rest of the stream."""
        if math.isinf(catches_up) or not self._leader:
            return False
        times, taken = np.array(self._leader).T
        rest = float(times[-1] - np.interp(tuples, taken, times))
        return limit - seconds < rest / catches_up


def measure_whole(case: Case, master: Master, data: Data, profile: CostProfile, plan: JoinPlan) -> dict[str, Any]:
    """The time of the whole stream."""
    case, plan = cut(case, master, data, profile, plan)
    race = Race(case, data, profile)
    pick = _label(plan.choice, "*")
    contestants = {pick: plan.choice} | {each.algorithm: each for each in plan.candidates}
    race.run(pick, plan.choice.algorithm, dict(plan.choice.options), math.inf)
    race.run(AUTO, AUTO, {}, JUDGED_LIMIT * race.best)
    for name, each in contestants.items():
        promised = each.rate_per_s / plan.choice.rate_per_s
        if name != pick and promised >= HOPELESS_PROMISE:
            catches_up = CATCHES_UP if promised >= SLOW_PROMISE else SLOW_CATCHES_UP
            options = {} if name == each.algorithm else dict(each.options)
            race.run(name, each.algorithm, options, LIMIT * race.best, catches_up)
    for name in _turns(race, pick):
        algorithm = AUTO if name == AUTO else contestants[name].algorithm
        options = dict(contestants[name].options) if name == pick else {}
        race.run(name, algorithm, options, LIMIT * race.times[name])
    named = {name: seconds for name, seconds in race.times.items() if name not in race.stopped and name != AUTO}
    fastest = min(named, key=named.__getitem__)
    least = named[fastest]
    return {
        "pick": f"{AUTO}: {race.revisions[0]}",
        "plan": pick,
        "fastest": fastest,
        "ratio": least / max(race.times[AUTO], 1e-9),
        "plan_ratio": least / race.times[pick],
        "revisions": race.revisions[1:],
        "rates": {name: sum(map(len, data.stream(case))) / seconds for name, seconds in race.times.items()},
        "stopped": sorted(race.stopped),
        "tuples": case.horizon,
    }


def _turns(race: Race, pick: str) -> list[str]:
    """Who runs again, in which order."""
    times = {name: seconds for name, seconds in race.times.items() if name not in race.stopped}
    others = [name for name in times if name not in (AUTO, pick) and times[name] <= CLOSE * race.best]
    close = [name for name in (AUTO, pick) if name in times] + sorted(others, key=times.__getitem__)[:MOST_CLOSE]
    return close * max(min(round(AGAIN_S / race.best), MOST_AGAIN), 1)


def cut(case: Case, master: Master, data: Data, profile: CostProfile, plan: JoinPlan) -> tuple[Case, JoinPlan]:
    """The setting with a stream that the plan's pick joins in some seconds, and the plan for it."""
    with opened(case, master, plan.choice.algorithm, dict(plan.choice.options)) as join:
        done = _joined_in_time(case, join, data.stream(case))
    if done is None:
        return case, plan
    case = replace(case, horizon=done, batch=min(case.batch, done))
    return case, workable(case, master, planned(case, master, data.stream(case)[0], profile))


def _joined_in_time(case: Case, join: SemiStreamJoin, stream: list[pa.RecordBatch]) -> int | None:
    """How many tuples are joined in the time that a stream may take; None where that is all of it."""
    began, done = time.perf_counter(), 0
    for number, batch in enumerate(stream, 1):
        for _ in outputs(join, batch, drains=case.micro_batches):
            if time.perf_counter() - began > MOST_BATCHES_S:
                return max(join.stats.finished, done, 1)
        done += batch.num_rows
        if number >= LEAST_BATCHES and time.perf_counter() - began > MOST_WHOLE_S:
            return done
    return None


def _label(candidate: Candidate, mark: str) -> str:
    """Sizes other than the usual ones have a mark: those of the first plan one star, those after the trial two."""
    return candidate.algorithm + (mark if candidate.options else "")


# ---------------------------------------------------------------------------------- a stream without an end


def settled(case: Case, master: Master, data: Data, profile: CostProfile) -> tuple[Any, list[str]]:
    """What "auto" has chosen when its trial is over, and what it says about it."""
    with opened_auto(case, master, profile) as join:
        for batch in data.endless(case):
            for _ in outputs(join, batch, drains=case.micro_batches):
                pass
            if not join.on_trial or join.seconds > MOST_TRIAL_S:
                break
        explanation = join.explain()
        return explanation.chosen, list(explanation.revisions)


class Runner(Performance):
    """One operator in one setting, kept open so that it can be measured in turns with others."""

    def __init__(self, name: str, master: Master, case: Case, data: Data, options: Any) -> None:
        self.join = opened(case, master, name, options)
        self._drains = case.micro_batches
        super().__init__(self._joined, data.endless(case))

    def _joined(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        return outputs(self.join, batch, drains=self._drains)


def turns_for(runners: list[Runner]) -> int:
    """How many turns everyone has; an even number, for half of them say who is the fastest."""
    round_s = sum(runner.turn(TURN_S)[1] for runner in runners)
    return min(max(2 * round(MOST_TURNS_S / round_s / 2), LEAST_TURNS), TURNS)


def measure_at_rest(case: Case, master: Master, data: Data, profile: CostProfile, plan: JoinPlan) -> dict[str, Any]:
    """The rate when everyone has learnt what it will, or had its time for it."""
    most = int(MOST_WHOLE_S * plan.choice.rate_per_s)
    if case.batch > max(most, LEAST_BATCH):
        case = replace(case, batch=max(most, LEAST_BATCH))
        plan = workable(case, master, planned(case, master, data.stream(case)[0], profile))
    chosen, revisions = settled(case, master, data, profile)
    contestants: dict[str, tuple[str, dict[str, Any]]] = {
        each.algorithm: (each.algorithm, {})
        for each in plan.candidates
        if each.rate_per_s >= HOPELESS_PROMISE * plan.choice.rate_per_s
    }
    labels = {}
    for what, mark, pick in (("plan", "*", plan.choice), ("pick", "**", chosen)):
        labels[what] = _label(pick, mark)
        contestants[labels[what]] = (pick.algorithm, dict(pick.options))
    first: dict[str, float] = {}
    for name, (algorithm, options) in contestants.items():
        try:
            runner = Runner(algorithm, master, case, data, options)
        except BudgetError:
            continue
        with runner.join:
            first[name] = runner.rate(FIRST_WARM_S)
            if first[name] > HOPELESS / 2 * max(first.values()):
                first[name] = runner.rate(FIRST_S)
    best = max(first.values())
    finalists = sorted((name for name in first if first[name] > HOPELESS * best), key=lambda name: -first[name])
    finalists = finalists[:FINALISTS]
    finalists += [label for label in dict.fromkeys(labels.values()) if label not in finalists]
    runners = {name: Runner(contestants[name][0], master, case, data, contestants[name][1]) for name in finalists}
    for runner in runners.values():
        warm(runner.join, runner.batch, MOST_WARM_S)
    take_turns(list(runners.values()), turns_for(list(runners.values())), TURN_S)
    rates = {name: runner.rates for name, runner in runners.items()}
    for runner in runners.values():
        runner.join.close()
    final = {name: statistics.median(values) for name, values in rates.items()}
    fastest = max(rates, key=lambda name: statistics.median(rates[name][0::2]))

    def beside(label: str) -> float:
        return statistics.median(ratios(rates[label][1::2], rates[fastest][1::2]))

    return {
        "pick": labels["pick"],
        "plan": labels["plan"],
        "options": dict(chosen.options),
        "fastest": fastest,
        "ratio": beside(labels["pick"]),
        "plan_ratio": beside(labels["plan"]),
        "revisions": revisions,
        "rates": final,
        "turns": rates,
        "first": first,
    }


def measure(case: Case, data: Data, profile: CostProfile) -> dict[str, Any]:
    with closing(data.master(case)) as master:
        first = data.stream(case)[0]
        # What is compiled or imported at the first call is nobody's time.
        planned(case, master, first, profile)
        started = time.perf_counter()
        plan = planned(case, master, first, profile)
        planning = time.perf_counter() - started
        plan = workable(case, master, plan)
        way = measure_at_rest if case.horizon is None else measure_whole
        found = way(case, master, data, profile, plan)
    predicted = {each.algorithm: each.rate_per_s for each in plan.candidates}
    return {
        "case": asdict(case),
        **found,
        "predicted": predicted,
        "planning_s": planning,
        "exponent": plan.stream.exponent,
        "absent": plan.stream.absent,
    }


def line(number: int, result: dict[str, Any]) -> str:
    case = result["case"]
    ways = [
        "drained" if case["micro_batches"] else "flowing",
        "direct" if case["direct"] else "page cache" if case["index"] else "Parquet",
        "at rest" if case["horizon"] is None else f"{result.get('tuples', case['horizon']) / 1e6:g} M tuples",
    ]
    return (
        f"{number}: R {case['rows']:,}, {case['memory'] / 1e6:.3g} MB, skew {case['skew']:g}, absent "
        f"{case['unmatched']:g}, batches of {case['batch']:,}, {', '.join(ways)}: "
        f"{result['pick']} {result['ratio']:.2f} of {result['fastest']} "
        f"({result['rates'][result['fastest']] / 1e6:.2f} M/s), planned {result['plan']} "
        f"{result['plan_ratio']:.2f}; {result['revisions']}"
    )


def show(results: list[dict[str, Any]]) -> None:
    table = Table(title="the planner's pick and the fastest operator, M tuples/s")
    setting = ("R", "M", "skew", "absent", "batch", "drained", "reads", "horizon")
    for column in (*setting, "pick", "fastest", "rate", "ratio", "plan", "ratio"):
        table.add_column(column, justify="right")
    for result in results:
        case = result["case"]
        table.add_row(
            f"{case['rows']:,}",
            f"{case['memory'] / 1e6:.3g} MB",
            f"{case['skew']:g}",
            f"{case['unmatched']:g}",
            f"{case['batch']:,}",
            "yes" if case["micro_batches"] else "no",
            "direct" if case["direct"] else "cached" if case["index"] else "Parquet",
            "at rest" if case["horizon"] is None else f"{result.get('tuples', case['horizon']) / 1e6:g} M",
            result["pick"],
            result["fastest"],
            f"{result['rates'][result['fastest']] / 1e6:.2f}",
            f"{result['ratio']:.2f}",
            result["plan"],
            f"{result['plan_ratio']:.2f}",
        )
    console.print(table)
    planning = statistics.median(result["planning_s"] for result in results)
    large = sum(result["case"]["rows"] >= 5_000_000 for result in results)
    console.print(
        f"{len(results)} settings, {large} with R of 5 M or more; planning took {planning:.2f} s in the median"
    )
    for name, who in (("ratio", '"auto" as a whole'), ("plan_ratio", "the first plan's pick")):
        good = sum(result[name] >= WITHIN for result in results) / len(results)
        worst = min(result[name] for result in results)
        console.print(
            f"{who} is within 10 % of the fastest in {good:.0%} (bar {SHARE:.0%}), worst {worst:.2f} of it "
            f"(bar {WORST:g})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", type=int, default=40)
    parser.add_argument("--seed", type=int, default=SEED, help="of the draw of settings")
    parser.add_argument("--rows", type=int, nargs="*", help="sizes of R to draw from")
    parser.add_argument("--profile", type=Path, help="a stored profile; without it the machine is calibrated first")
    parser.add_argument("--data", type=Path, help="keep generated data there")
    parser.add_argument("--save", type=Path, help="a folder for the table as JSON; settings in it are not run again")
    options = parser.parse_args()
    profile = CostProfile.load(options.profile) if options.profile else calibrate()
    kept = None if options.save is None else options.save / "planner.json"
    results: list[dict[str, Any]] = json.loads(kept.read_text()) if kept is not None and kept.exists() else []
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="semistream-bench-") as scratch:
        folder = options.data or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        data = Data(folder, console.print)
        for case in cases(options.settings, options.seed, options.rows):
            if any(result["case"] == asdict(case) for result in results):
                continue
            results.append(measure(case, data, profile))
            console.print(line(len(results), results[-1]))
            if kept is not None:
                kept.write_text(json.dumps(results, indent=1))
    show(results)


if __name__ == "__main__":
    main()
