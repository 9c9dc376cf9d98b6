"""Real runs of the operators in a steady state, made once and shared by the tests of formulas and claims.

What the tests look at are counts, which are the same on any machine; only the operators with threads vary a little.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from semistream import build_pages, open_join
from semistream.algorithms.registry import ALGORITHMS
from semistream.cost.clock import counted
from semistream.cost.situation import Situation
from semistream.engine.join import SemiStreamJoin
from semistream.lab.workloads.relation import KEY, STREAM_SCHEMA, master_table, stream_batches
from semistream.lab.workloads.zipf import key_probabilities
from semistream.master.base import Master
from semistream.master.open import open_master
from semistream.parts.budget import MemoryReport
from semistream.predict.keys import zipf
from semistream.spec import JoinSpec

ROWS = 30_000
PAGE_ROWS = 64
SEED = 5
BATCH = 20_000
BUDGET = 600_000
#: the second index of a store in order of frequency takes a quarter of a megabyte
FREQUENCY_BUDGET = 700_000
WARM, MEASURED = 80_000, 40_000
#: with skew, caches that change once an R-cycle need some cycles; without, caches must see that they earn nothing;
#: INLJ has nothing to warm up
WARM_WITH_SKEW = {"ssj": 320_000, "ssbj": 640_000}
WARM_WITHOUT = {"ssj": 320_000, "cachejoin": 320_000, "pcachejoin": 320_000, "opcachejoin": 320_000}


@dataclass(frozen=True)
class Steady:
    """What an operator did per stream tuple once it was steady."""

    situation: Situation
    counts: dict[str, float]
    hit_rate: float
    memory: MemoryReport


class Runs:
    """Runs by operator, skew and budget; stores by order ("repeated": in key order, keys drawn with repetition)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.steady = cache(self._steady)
        self.master = cache(self._master)

    def _master(self, order: str, skew: float) -> Master:
        path = self._folder / f"{order}-{skew}"
        table = master_table(ROWS, 1, repeat=order == "repeated")
        if order == "frequency":
            wanted = (np.arange(ROWS, dtype=np.int64), key_probabilities(ROWS, skew, SEED))
            build_pages(table, path, on=KEY, page_rows=PAGE_ROWS, order=order, frequency=wanted)
        else:
            build_pages(table, path, on=KEY, page_rows=PAGE_ROWS)
        return open_master(path, (KEY,))

    def _steady(
        self,
        algorithm: str,
        skew: float,
        budget: int | None = None,
        order: str | None = None,
        warm: int | None = None,
        batch: int = BATCH,
        drained: bool = False,
        direct: bool = False,
        literal: bool = False,
    ) -> Steady:
        if order is None:
            order = "frequency" if ALGORITHMS[algorithm].wants_frequency_order else "key"
        master = self.master(order, skew if order == "frequency" else 0.0)
        memory = (FREQUENCY_BUDGET if order == "frequency" else BUDGET) if budget is None else budget
        situation = situation_of(master, memory, skew, direct).with_workload(batch=batch, drained=drained)
        if order == "repeated":
            situation = situation.with_workload(keys=zipf(ROWS, skew, repeated=True))
        if warm is None:
            warm = BATCH if algorithm == "inlj" else (WARM_WITH_SKEW if skew else WARM_WITHOUT).get(algorithm, WARM)
        reads, options = "direct" if direct else "mapped", {"literal": True} if literal else {}
        with open_join(
            algorithm,
            master=master,
            on=KEY,
            how="inner",
            memory=memory,
            stream_schema=STREAM_SCHEMA,
            reads=reads,
            **options,
        ) as join:
            _push(join, 0, warm, skew, batch, drained)
            before = copy.copy(join.stats)
            _push(join, warm, MEASURED, skew, batch, drained)
            counts = counted(join, before, batch=batch)
            report = join.memory
        per_tuple = {name: number / counts["tuples_in"] for name, number in counts.items()}
        asked = per_tuple["cache_hits"] + per_tuple["cache_misses"]
        return Steady(situation, per_tuple, per_tuple["cache_hits"] / asked if asked else 0.0, report)


def situation_of(master: Master, budget: int, skew: float, direct: bool = False) -> Situation:
    return Situation.of(
        master, JoinSpec.make(KEY, "inner"), STREAM_SCHEMA, budget, zipf(ROWS, skew), batch=BATCH, direct=direct
    )


def _push(join: SemiStreamJoin, start: int, tuples: int, skew: float, batch_rows: int, drained: bool) -> None:
    for batch in stream_batches(tuples, ROWS, skew, seed=SEED, start=start, batch_rows=batch_rows):
        for _ in join.push(batch):
            pass
        if drained:
            for _ in join.drain():
                pass
