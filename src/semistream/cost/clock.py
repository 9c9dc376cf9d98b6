"""The cost clock: operation counts times a profile is a time that no noise touches.

Two runs with the same counts take the same virtual time on any machine, busy or not. So with the papers' profile their
figures can be computed anywhere and asserted in tests; with the measured profile the clock says what a run should
have taken. The same table prices a formula's predicted counts, so a prediction and a run differ only in their counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from semistream.cost.profile import AHEAD, FAR, NEAR, REFERENCE_ROW_BYTES, CostProfile
from semistream.engine.algorithm import Algorithm, Pricing
from semistream.engine.chunk import JoinStats
from semistream.engine.join import SemiStreamJoin
from semistream.errors import ConfigError

#: about what a core's own cache holds
_NEAR_BYTES = 1 << 20
#: operations that go to a place which cannot be foreseen, in H_S or H_R or on R's pages: the more there is, the longer
#: they take
SCATTERED = ("c_H", "c_H_S", "c_A", "c_E", "c_L")
_DEEP = "deep "
_TO_TABLES = ("cache_hits", "cache_misses", "appended", "expired")
_TO_MASTER = ("master_rows_probed", "tuples_in")


@dataclass(frozen=True)
class VirtualTime:
    """Seconds by the cost clock: in all, of each thread, and by term ("c_I/O" and the symbols of the profile)."""

    seconds: float
    phases: tuple[float, ...]
    terms: Mapping[str, float]

    @property
    def serial_seconds(self) -> float:
        """The same with nothing side by side: what the papers' sums give."""
        return sum(self.terms.values())


class CostClock:
    """Prices counts with a profile."""

    def __init__(self, profile: CostProfile) -> None:
        self.profile = profile

    def price(
        self,
        algorithm: Algorithm,
        counts: Mapping[str, float],
        *,
        direct: bool = False,
        parquet: bool = False,
        ahead: bool = False,
        row_bytes: float = REFERENCE_ROW_BYTES,
    ) -> VirtualTime:
        """Virtual time of these counts (names of `JoinStats`, "chunks", `deep_counts`), output rows having `row_bytes`.

        R is a page store, read past the page cache if `direct`, or Parquet in place. Direct reads may be made `ahead`
        (`Division.reads_ahead`), by threads that are part of the reading: of that and the join the longer one hides a
        part of the other.
        """
        pricing, name = pricing_of(algorithm), algorithm.name
        read = AHEAD if ahead else "direct"
        mode = "parquet" if parquet else read if direct else "mapped" if pricing.mapped else "buffered"
        terms = {"c_I/O": self._io(pricing, counts, mode)}
        for symbol in pricing.operations:
            terms[symbol] = operations_of(pricing, symbol, counts) * self.profile.unit(symbol, name)
            if symbol in SCATTERED:
                deep = operations_of(pricing, f"{FAR}.{symbol}", counts)
                terms[symbol] += deep * self.profile.far(symbol, name)
        near = operations_of(pricing, f"{NEAR}.c_O", counts) * self.profile.near("c_O", name)
        terms["c_O"] = (terms["c_O"] + near) * row_bytes / REFERENCE_ROW_BYTES
        phases, overlap = self._phases(pricing, counts, terms), self.profile.overlap(name)
        if mode == AHEAD:
            phases = sum(terms.values()) - terms["c_I/O"], terms["c_I/O"]
            overlap = pricing.hidden_ahead if self.profile.knows_ahead else 0.0
        threads, serial = phases, sum(terms.values())
        if mode == "direct" and pricing.threads > 2:
            # A thread that waits for the disk leaves the CPU to the others.
            threads, serial = (*phases[:2], phases[3]), serial - terms["c_I/O"]
        seconds = max(threads) + (1.0 - overlap) * (serial - max(threads))
        return VirtualTime(max(seconds, *phases), phases, terms)

    def _io(self, pricing: Pricing, counts: Mapping[str, float], mode: str) -> float:
        reads = counts.get("reads", 0.0)
        seeks = reads if pricing.seeks is None else min(counts.get(pricing.seeks, 0.0), reads)
        first = counts.get("fresh_bytes", 0.0) * self.profile.first_visit
        cost = self.profile.reads_ahead if mode == AHEAD else self.profile.io[mode]
        return cost.seconds(seeks, reads - seeks, counts.get("bytes_read", 0.0)) + first

    @staticmethod
    def _phases(pricing: Pricing, counts: Mapping[str, float], terms: Mapping[str, float]) -> tuple[float, ...]:
        """Seconds of each thread; the slowest sets the pace. Output of hits belongs to the stream phase.

        What begins and ends chunks and turns is the interpreter, and that does one thing at a time.
        """
        if pricing.threads == 1:
            return (sum(terms.values()),)
        hits = hit_share(counts)
        # In the order of the terms, for a set has none, and a sum depends on it in its last digit.
        stream = sum(term for symbol, term in terms.items() if symbol in pricing.stream_phase) + hits * terms["c_O"]
        disk = sum(terms.values()) - stream - terms["c_I/O"]
        interpreter = terms["c_C"] + terms["c_T"]
        if pricing.threads == 2:
            return stream, disk + terms["c_I/O"], interpreter
        return stream, disk, terms["c_I/O"], interpreter

    def since(self, join: SemiStreamJoin, before: JoinStats | None = None, *, batch: int | None = None) -> VirtualTime:
        """Virtual time of what a join has done, since `before` (a copy of its stats) if given."""
        counts = counted(join, before, batch=batch)
        return self.price_of(join, counts)

    def price_of(self, join: SemiStreamJoin, counts: Mapping[str, float]) -> VirtualTime:
        """Virtual time of these counts for a join as it was opened."""
        parquet = not join.master.has_index
        ahead, width = join.plan.division.reads_ahead, row_bytes(join)
        return self.price(join.algorithm, counts, direct=join.direct, parquet=parquet, ahead=ahead, row_bytes=width)


def pricing_of(algorithm: Algorithm) -> Pricing:
    """Which counters are which operations; an algorithm that does not say so cannot be priced."""
    if algorithm.pricing is None:
        raise no_prediction(algorithm)
    return algorithm.pricing


def no_prediction(algorithm: Algorithm) -> ConfigError:
    """The error for an algorithm that runs, and says nothing of what that costs."""
    return ConfigError(
        f"{algorithm.name} has no prediction: it runs, but nothing can be said of it before; give its record "
        "`predict` and `pricing`, or choose another algorithm"
    )


def counted(join: SemiStreamJoin, before: JoinStats | None = None, *, batch: int | None = None) -> dict[str, float]:
    """Counts of a join, since `before` if given, with the chunks its tuples came in (pushes of `batch` tuples)."""
    since = join.stats if before is None else join.stats - before
    counts = {each.name: float(getattr(since, each.name)) for each in fields(JoinStats)}
    counts["chunks"] = counts["tuples_in"] * chunks_per_tuple(join.plan.division.chunk_rows, batch)
    r_bytes = join.master.n_rows * join.master.row_bytes
    return {**counts, **deep_counts(join.algorithm, counts, join.budget.total, r_bytes)}


def deep_counts(algorithm: Algorithm, counts: Mapping[str, float], M: float, r_bytes: float) -> dict[str, float]:
    """Accesses times the doublings, beyond what the CPU keeps near, of what they go to: the tables, or R if mapped."""
    tables = table_depth(M)
    master = table_depth(r_bytes) if pricing_of(algorithm).mapped else tables
    depths = {**dict.fromkeys(_TO_TABLES, tables), **dict.fromkeys(_TO_MASTER, master)}
    return {_DEEP + name: depth * counts.get(name, 0.0) for name, depth in depths.items()}


def operations_of(pricing: Pricing, symbol: str, counts: Mapping[str, float]) -> float:
    """How many operations of a symbol these counts are.

    "far.c_L" and the like count the doublings they go; "near.c_O" is output for tuples that the cache answered, c_O
    that for the others.
    """
    where, _, symbol = symbol.rpartition(".")
    counters = pricing.operations.get(symbol, ())
    number = sum(counts.get(_DEEP + name if where == FAR else name, 0.0) for name in counters)
    if symbol != "c_O":
        return number
    hits = hit_share(counts)
    return number * (hits if where == NEAR else 1.0 - hits)


def table_depth(M: float) -> float:
    """Doublings of M bytes beyond what the CPU keeps near."""
    return math.log2(1.0 + M / _NEAR_BYTES)


def hit_share(counts: Mapping[str, float]) -> float:
    """Part of the tuples that asked the cache and were answered by it."""
    asked = counts.get("cache_hits", 0.0) + counts.get("cache_misses", 0.0)
    return counts.get("cache_hits", 0.0) / asked if asked else 0.0


def chunks_per_tuple(chunk_rows: int, batch: int | None) -> float:
    """A push is cut into chunks; the last one of it may be short."""
    if not batch:
        return 1.0 / chunk_rows
    return -(-batch // chunk_rows) / batch


def row_bytes(join: SemiStreamJoin) -> float:
    """Width of a join's output rows, long values at 16 bytes."""
    if join.output_schema is None:
        return REFERENCE_ROW_BYTES
    width = 0.0
    for column in join.output_schema:
        try:
            width += column.type.bit_width / 8
        except ValueError:
            width += 16
    return width
