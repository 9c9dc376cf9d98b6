"""Does the planner pick well? Every operator runs in every setting; the pick is compared with the fastest.

Settings are drawn once, by a fixed seed, from sizes of R, budgets, skews, shares without a match, batch sizes, finished
batch by batch or not, with an index (page store) or without (Parquet). The pick is what `algorithm="auto"` has settled
on after its trial; the first plan, made of R, the budget and one batch of the stream, is judged beside it. Rates are
wall-clock tuples per second. All operators run for a moment; the fastest few and the picks are opened again, warmed up
until their caches are at rest (or for some seconds), and measured in turns. Half of these turns say which is the
fastest, the other half how a pick compares with it, turn by turn, and the median counts: the fastest of several noisy
figures would otherwise be the luckiest of them.

    python benchmarks/planner.py                     44 settings, about forty minutes
    python benchmarks/planner.py --settings 6        fewer, to see that it runs
    python benchmarks/planner.py --seed 3            other settings
    python benchmarks/planner.py --save DIR          and keep the table as JSON

None of these settings is used for calibration: that has data, sizes and budgets of its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from semistream.algorithms.registry import ALGORITHMS
from semistream.cost.profile import CostProfile
from semistream.engine.join import SemiStreamJoin
from semistream.errors import BudgetError
from semistream.lab.calibrate.calibrate import calibrate
from semistream.lab.forms import path_of
from semistream.lab.measure.steady import warm
from semistream.lab.measure.turns import Performance, ratios, take_turns
from semistream.lab.sources import Synthetic
from semistream.lab.workloads.relation import KEY, MASTER_ROW_BYTES, stream_batches
from semistream.master.base import Master
from semistream.master.open import open_master
from semistream.planner.auto import AutoJoin
from semistream.planner.plan import JoinPlan, make_plan
from semistream.planner.stream import StreamSample
from semistream.spec import JoinSpec

SEED = 2026
#: of a stream, which then begins again: more than any cache remembers
TUPLES = 4_000_000
WITHIN, SHARE, WORST = 0.9, 0.9, 0.5
#: seconds: a first impression, before and while it is taken; most of a warm-up; a turn
FIRST_S, FIRST_WARM_S, MOST_WARM_S, TURN_S = 0.3, 0.3, 5.0, 0.25
TURNS, FINALISTS = 10, 4
#: how long "auto" may take to settle
MOST_TRIAL_S = 30.0
#: who has less than this part of the fastest rate so far needs no further measurement
HOPELESS = 0.5
console = Console(width=150)


@dataclass(frozen=True)
class Case:
    """One setting."""

    rows: int
    memory: int
    skew: float
    unmatched: float
    index: bool
    batch: int
    micro_batches: bool


def cases(count: int, seed: int) -> list[Case]:
    """Drawn from all combinations, a fifth of them without an index (which there are 32 of)."""
    indexed = [
        Case(rows, int(rows * MASTER_ROW_BYTES * share), skew, unmatched, True, batch, micro)
        for rows, share, skew, unmatched, batch, micro in itertools.product(
            (50_000, 200_000, 500_000),
            (0.03, 0.1, 0.3, 1.5),
            (0.0, 0.5, 1.0, 1.3),
            (0.0, 0.3, 0.9),
            (2_000, 20_000),
            (False, True),
        )
    ]
    plain = [
        Case(rows, memory, skew, unmatched, False, batch, micro)
        for rows, memory, skew, unmatched, batch, micro in itertools.product(
            (200_000, 500_000), (12_000_000, 30_000_000), (0.0, 1.0), (0.0, 0.3), (20_000,), (False, True)
        )
    ]
    dice = random.Random(seed)
    few = count // 5
    return dice.sample(indexed, count - few) + dice.sample(plain, few)


class Data:
    """R as page stores and Parquet, and streams, made when first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._streams: dict[tuple[int, float, float, int], list[pa.RecordBatch]] = {}

    def master(self, case: Case) -> Master:
        source = Synthetic(case.rows, page_rows=64)
        if case.index:
            return open_master(path_of(source, "pages", self._folder), (KEY,))
        path = self._folder / f"narrow-{case.rows}.parquet"
        if not path.exists():
            pq.write_table(source.master.table().select([KEY, "m01", "m02", "m03"]), path, row_group_size=50_000)
        return open_master(path, (KEY,))

    def stream(self, case: Case) -> list[pa.RecordBatch]:
        """Batches; the share without a match has keys behind R's last one, as many of them as R would have."""
        key = (case.rows, case.skew, case.unmatched, case.batch)
        if key not in self._streams:
            self._streams.clear()
            self._streams[key] = [
                _missing(batch, case)
                for batch in stream_batches(TUPLES, case.rows, case.skew, 2, batch_rows=case.batch)
            ]
        return self._streams[key]


def _missing(batch: pa.RecordBatch, case: Case) -> pa.RecordBatch:
    if not case.unmatched:
        return batch
    keys = batch.column(0)
    # Whether a key is missing depends on the key alone: spread over all ranks.
    spread = pc.bit_wise_and(pc.multiply(keys, 2_654_435_761), (1 << 20) - 1)
    gone = pc.less(spread, int(case.unmatched * (1 << 20)))
    moved = pc.if_else(gone, pc.add(pc.multiply(keys, 2), 2 * case.rows), keys)
    return pa.RecordBatch.from_arrays([moved.cast(keys.type), *batch.columns[1:]], schema=batch.schema)


def planned(case: Case, master: Master, first: pa.RecordBatch, profile: CostProfile) -> JoinPlan:
    spec = JoinSpec.make(KEY, "left")
    sample = StreamSample(master, spec, first.schema)
    sample.add(first)
    sample.probe(first, case.memory)
    return make_plan(
        master,
        spec,
        first.schema,
        case.memory,
        sample.statistics(),
        profile=profile,
        batch=case.batch,
        micro_batches=case.micro_batches,
    )


def settled(case: Case, master: Master, stream: list[pa.RecordBatch], profile: CostProfile) -> tuple[Any, list[str]]:
    """What "auto" has chosen when its trial is over, and what it says about it."""
    with AutoJoin(master, JoinSpec.make(KEY, "left"), case.memory, profile=profile) as join:
        until = time.perf_counter() + MOST_TRIAL_S
        for batch in itertools.cycle(stream):
            _spend(join.push(batch))
            if case.micro_batches:
                _spend(join.drain())
            if not join.on_trial or time.perf_counter() > until:
                break
        explanation = join.explain()
        return explanation.chosen, list(explanation.revisions)


class Runner(Performance):
    """One operator in one setting, kept open so that it can be measured in turns with others."""

    def __init__(self, name: str, master: Master, case: Case, stream: list[pa.RecordBatch], options: Any) -> None:
        self.join = SemiStreamJoin(ALGORITHMS[name], master, JoinSpec.make(KEY, "left"), case.memory, options)
        self.join.start(stream[0].schema)
        self._drains = case.micro_batches
        super().__init__(self._joined, itertools.cycle(stream))

    def _joined(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield from self.join.push(batch)
        if self._drains:
            yield from self.join.drain()


def _spend(outputs: Iterator[pa.RecordBatch]) -> None:
    for _ in outputs:
        pass


def measure(case: Case, data: Data, profile: CostProfile) -> dict[str, Any]:
    master, stream = data.master(case), data.stream(case)
    started = time.perf_counter()
    plan = planned(case, master, stream[0], profile)
    planning = time.perf_counter() - started
    chosen, revisions = settled(case, master, stream, profile)
    contestants: dict[str, tuple[str, dict[str, Any]]] = {
        each.algorithm: (each.algorithm, {}) for each in plan.candidates
    }
    labels = {}
    # Sizes other than the usual ones have a mark: those of the first plan one star, those after the trial two.
    for what, mark, pick in (("plan", "*", plan.choice), ("pick", "**", chosen)):
        labels[what] = pick.algorithm + (mark if pick.options else "")
        contestants[labels[what]] = (pick.algorithm, dict(pick.options))
    first: dict[str, float] = {}
    for name, (algorithm, options) in contestants.items():
        try:
            runner = Runner(algorithm, master, case, stream, options)
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
    runners = {name: Runner(contestants[name][0], master, case, stream, contestants[name][1]) for name in finalists}
    for runner in runners.values():
        warm(runner.join, runner.batch, MOST_WARM_S)
    take_turns(list(runners.values()), TURNS, TURN_S)
    rates = {name: runner.rates for name, runner in runners.items()}
    for runner in runners.values():
        runner.join.close()
    master.close()
    final = {name: statistics.median(values) for name, values in rates.items()}
    fastest = max(rates, key=lambda name: statistics.median(rates[name][0::2]))

    def beside(label: str) -> float:
        return statistics.median(ratios(rates[label][1::2], rates[fastest][1::2]))

    predicted = {each.algorithm: each.rate_per_s for each in plan.candidates}
    return {
        "case": asdict(case),
        "pick": labels["pick"],
        "plan": labels["plan"],
        "options": chosen.options,
        "fastest": fastest,
        "ratio": beside(labels["pick"]),
        "plan_ratio": beside(labels["plan"]),
        "revisions": revisions,
        "rates": final,
        "turns": rates,
        "first": first,
        "predicted": predicted,
        "planning_s": planning,
        "exponent": plan.stream.exponent,
        "absent": plan.stream.absent,
    }


def show(results: list[dict[str, Any]]) -> None:
    table = Table(title="the planner's pick and the fastest operator, M tuples/s")
    setting = ("R", "M", "skew", "absent", "index", "batch", "micro")
    for column in (*setting, "pick", "rate", "fastest", "rate", "ratio", "plan"):
        table.add_column(column, justify="right")
    for result in results:
        case = result["case"]
        table.add_row(
            f"{case['rows']:,}",
            f"{case['memory'] / 1e6:.3g} MB",
            f"{case['skew']:g}",
            f"{case['unmatched']:g}",
            "yes" if case["index"] else "no",
            f"{case['batch']:,}",
            "yes" if case["micro_batches"] else "no",
            result["pick"],
            f"{result['rates'][result['pick']] / 1e6:.2f}",
            result["fastest"],
            f"{result['rates'][result['fastest']] / 1e6:.2f}",
            f"{result['ratio']:.2f}",
            f"{result['plan_ratio']:.2f}",
        )
    console.print(table)
    planning = statistics.median(result["planning_s"] for result in results)
    console.print(f"{len(results)} settings; planning took {planning:.2f} s in the median")
    for name, who in (("ratio", "the pick"), ("plan_ratio", "the first plan, before any trial,")):
        good = sum(result[name] >= WITHIN for result in results) / len(results)
        worst = min(result[name] for result in results)
        console.print(
            f"{who} is within 10 % of the fastest in {good:.0%} (bar {SHARE:.0%}), worst {worst:.2f} of it "
            f"(bar {WORST:g})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", type=int, default=44)
    parser.add_argument("--seed", type=int, default=SEED, help="of the draw of settings")
    parser.add_argument("--profile", type=Path, help="a stored profile; without it the machine is calibrated first")
    parser.add_argument("--data", type=Path, help="keep generated data there")
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    profile = CostProfile.load(options.profile) if options.profile else calibrate()
    results = []
    with tempfile.TemporaryDirectory(prefix="semistream-bench-") as scratch:
        folder = options.data or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        data = Data(folder)
        for case in cases(options.settings, options.seed):
            results.append(measure(case, data, profile))
            last = results[-1]
            console.print(
                f"{len(results)}: {case}: {last['pick']} {last['ratio']:.2f} of {last['fastest']}, "
                f"planned {last['plan']} {last['plan_ratio']:.2f}; {last['revisions']}"
            )
    show(results)
    if options.save:
        options.save.mkdir(parents=True, exist_ok=True)
        (options.save / "planner.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
