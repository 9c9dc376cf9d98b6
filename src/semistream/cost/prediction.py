"""What a join will do and take: the counts that its algorithm predicts, priced with a profile."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from semistream.cost.clock import CostClock, VirtualTime, chunks_per_tuple, deep_counts, hit_share, no_prediction
from semistream.cost.profile import CostProfile
from semistream.engine.algorithm import Algorithm
from semistream.engine.plan import Plan
from semistream.predict.counts import Counts, Workload
from semistream.predict.sharing import fresh_pages

#: what a pass over R takes, whoever waits
_PASS = ("iterations", "r_cycles", "reads", "pages_read", "bytes_read", "master_rows_probed")
#: tuples per page after which hardly any page was not asked for
_VISITS_PER_PAGE = 4.0
#: with R empty nothing is in a cache, nothing waits and nothing comes out
_EMPTY = Counts({"cache_hits": 0.0, "cache_misses": 0.0, "rows_out": 0.0, "unmatched": 1.0}, memory={}, symbols={})


@dataclass(frozen=True)
class Prediction:
    """What is expected of an algorithm with a plan and a stream."""

    algorithm: str
    #: bytes by component, named as in `join.memory`
    memory: Mapping[str, int]
    #: the papers' symbols: d, h_R, h_S, k, w_N, w_S ...
    symbols: Mapping[str, float]
    #: operations per stream tuple, named as in `join.stats`, "chunks" and `deep_counts`
    counts: Mapping[str, float]
    #: stream tuples per turn of the main loop, and what the turn takes
    w: float
    c_loop: float
    #: seconds per turn by term; their sum is the papers' serial c_loop
    terms: Mapping[str, float]
    hit_rate: float
    #: stream tuples that come while a tuple waits: on average over all tuples, and at most
    delay_tuples: float
    longest_delay_tuples: float
    #: stream tuples that the operator has had when this holds (without an end: at rest), and those until it is at rest
    seen: float = math.inf
    rest_tuples: float = 0.0
    #: stream tuples until nearly every page of a mapped R was asked for, and so mapped and checked
    fresh_tuples: float = 0.0
    #: seconds before the first tuple, and after the last one beyond what tuples cost: reads for those that still wait
    start_s: float = 0.0
    leave_s: float = 0.0

    @property
    def service_rate_per_s(self) -> float:
        """mu = w / c_loop."""
        return self.w / self.c_loop if self.c_loop > 0 else math.inf

    @property
    def memory_bytes(self) -> int:
        return sum(self.memory.values())

    @property
    def reads_per_tuple(self) -> float:
        return self.counts.get("reads", 0.0)

    @property
    def delay_s(self) -> float:
        """Mean delay at full speed."""
        return self.delay_tuples / self.service_rate_per_s

    @property
    def longest_delay_s(self) -> float:
        return self.longest_delay_tuples / self.service_rate_per_s


def predict_join(algorithm: Algorithm, plan: Plan[Any], workload: Workload, profile: CostProfile) -> Prediction:
    """What the algorithm does with such a stream, priced."""
    if algorithm.predict is None or algorithm.pricing is None:
        raise no_prediction(algorithm)
    r, division = plan.r, plan.division
    found = _EMPTY if r.rows == 0 else algorithm.predict(plan, workload)
    counts = {
        "tuples_in": 1.0,
        "finished": 1.0,
        "rows_out": workload.rows_out,
        "unmatched": workload.keys.absent_share,
        "chunks": chunks_per_tuple(division.chunk_rows, workload.batch),
        **found.per_tuple,
    }
    maps = algorithm.pricing.mapped and r.has_index and not r.direct and counts.get("reads", 0.0) > 0
    if maps:
        is_young = math.isfinite(workload.seen)
        counts["fresh_bytes"] = fresh_pages(workload.keys, r.n_pages, workload.seen) * r.page_bytes if is_young else 0.0

    def priced(counts: Mapping[str, float], ahead: bool = False) -> VirtualTime:
        row_bytes = plan.s.width + r.width
        counts = {**counts, **deep_counts(algorithm, counts, plan.budget, r.bytes)}
        return CostClock(profile).price(
            algorithm, counts, direct=r.direct, parquet=not r.has_index, ahead=ahead, row_bytes=row_bytes
        )

    price = priced(counts, division.reads_ahead)
    leave = found.leave
    if algorithm.access == "scan" and not workload.drained:
        # Once more round R for those that wait.
        leave = {name: counts.get(name, 0.0) * found.longest_delay for name in _PASS}
    turns = counts.get("iterations", 0.0)
    w = 1.0 / turns if turns > 0 else float(workload.batch)
    parts = {"index": division.index, "scratch": division.scratch, "disk buffer": division.buffer, **found.memory}
    return Prediction(
        algorithm=algorithm.name,
        memory={name: int(size) for name, size in parts.items()},
        symbols={"M": plan.budget, "R_t": r.rows, "d": division.rows, **found.symbols},
        counts=counts,
        w=w,
        c_loop=w * price.seconds,
        terms={symbol: w * seconds for symbol, seconds in price.terms.items()},
        hit_rate=hit_share(counts),
        delay_tuples=found.delay,
        longest_delay_tuples=found.longest_delay,
        seen=workload.seen,
        rest_tuples=found.rest,
        fresh_tuples=_VISITS_PER_PAGE * r.n_pages if maps else 0.0,
        start_s=priced(found.start).seconds if found.start else 0.0,
        leave_s=priced(leave, division.reads_ahead).seconds if leave else 0.0,
    )
