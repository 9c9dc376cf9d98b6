"""Which algorithms a paper compares on which data, and the sweeps over memory, R and skew that all papers make.

Sizes follow the papers in proportion: what was 20 of 100 million tuples is a fifth of this scale's R. Every contestant
runs tuned for the clock that times it, with its defaults beside it (`Lab.contest`); what a paper held fixed stays so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from semistream.cost.situation import Options
from semistream.lab.figure import Axis, Point
from semistream.lab.figures.ticks import MEMORY, SIZES, SKEWS, Ticks, percent
from semistream.lab.laboratory import Lab
from semistream.lab.sources import Synthetic
from semistream.lab.workloads.optimum import optimal_tuples_per_cycle
from semistream.lab.workloads.relation import MASTER_ROW_BYTES, WAITING_BYTES
from semistream.predict.keys import KeyClasses

RATE = Axis("service rate", "tuples/s")
PER_CYCLE = Axis("stream tuples per R-cycle", "tuples")
MEMORY_AXIS = Axis("memory", "% of R")
SIZE_AXIS = Axis("size of R", "tuples")
SKEW_AXIS = Axis("skew (Zipf exponent)")

W_STAR = (
    "The best any cache can do is W*, where every key is kept in whichever form takes fewer bytes: with 120 "
    "and 24 bytes per tuple it allows {ratio} times MESHJOIN's tuples in an R-cycle{place} (docs/arguments/w-star.md)."
)


@dataclass(frozen=True)
class Family:
    """The algorithms of a paper and its data; `largest` is its largest R in tuples.

    `fixed` options of an algorithm hold also where it is tuned; None is its default. Pages of `page_rows` tuples make a
    disk buffer of a page as large as the paper's. An intermediate buffer takes `intermediate` of the largest R.
    """

    algorithms: tuple[str, ...]
    repeated: bool = False
    order: str = "key"
    largest: int = 100_000_000
    page_rows: int | None = None
    fixed: Mapping[str, Options] = field(default_factory=dict)
    intermediate: float | None = None

    def rows(self, lab: Lab) -> int:
        """This scale's stand-in for the paper's largest R; the paper's own size where that is smaller."""
        return min(lab.rows, self.largest)

    def source(self, lab: Lab, share: float = 1.0, skew: float = 1.0) -> Synthetic:
        """R of a share of the largest."""
        rows = max(int(self.rows(lab) * share), 1)
        return lab.synthetic(rows, skew, repeated=self.repeated, order=self.order, page_rows=self.page_rows)

    def held(self, lab: Lab, algorithm: str) -> Options:
        """What the paper held fixed of an algorithm."""
        fixed = dict(self.fixed.get(algorithm, {}))
        if self.intermediate is not None and algorithm in _WITH_INTERMEDIATE:
            fixed["intermediate_bytes"] = lab.memory(self.source(lab), self.intermediate)
        return fixed


SSBJ = Family(("ssbj", "meshjoin"), repeated=True)
SSJ = Family(("ssj", "meshjoin"))
SSCJ = Family(("cachejoin", "hybridjoin", "rmeshjoin", "meshjoin"))
#: the two parts of X-HYBRIDJOIN's disk buffer are equal
OX = Family(
    ("oxhybridjoin", "xhybridjoin", "hybridjoin", "rmeshjoin", "meshjoin"),
    order="frequency",
    largest=8_000_000,
    fixed={"xhybridjoin": {"pinned_pages": None}},
)
#: opcachejoin2020 has disk buffers of 850 records throughout: one page of as many, and not enough bytes for two
RECORDS = 850
_RECORD_BYTES = 128
ONE_PAGE = {"buffer_bytes": RECORDS * _RECORD_BYTES * 3 // 2}
#: and from figure 4 on an intermediate buffer of 2 MB, of 240 MB that the largest R has
_INTERMEDIATE = 2 / 240
_WITH_INTERMEDIATE = ("pcachejoin", "opcachejoin")


def _of_opcachejoin2020(*algorithms: str) -> Family:
    fixed = dict.fromkeys(algorithms, ONE_PAGE)
    return Family(algorithms, largest=2_000_000, page_rows=RECORDS, fixed=fixed, intermediate=_INTERMEDIATE)


PC = _of_opcachejoin2020("pcachejoin", "cachejoin")
OPC = _of_opcachejoin2020("opcachejoin", "pcachejoin", "cachejoin")


def by_memory(lab: Lab, figure: str, family: Family, shares: Ticks = MEMORY, size: float = 1.0) -> Iterator[Point]:
    """Service rate over memory, R and skew 1 fixed; x is memory in percent of R."""
    source = family.source(lab, size)
    for share in shares.of(lab):
        memory = lab.memory(source, share)
        for algorithm in family.algorithms:
            held, optimum = family.held(lab, algorithm), _optimum(algorithm, source, memory)
            yield from lab.contest(figure, algorithm, percent(share), source, memory, fixed=held, **optimum)


def by_size(lab: Lab, figure: str, family: Family, memory_share: float = 0.1, sizes: Ticks = SIZES) -> Iterator[Point]:
    """Service rate over the size of R; memory is a share of the largest R and stays the same."""
    memory = lab.memory(family.source(lab), memory_share)
    for size in sizes.of(lab):
        source = family.source(lab, size)
        for algorithm in family.algorithms:
            held, optimum = family.held(lab, algorithm), _optimum(algorithm, source, memory)
            yield from lab.contest(figure, algorithm, source.rows, source, memory, fixed=held, **optimum)


def by_skew(lab: Lab, figure: str, family: Family, memory_share: float = 0.1, skews: Ticks = SKEWS) -> Iterator[Point]:
    """Service rate over the exponent of the stream's Zipf law."""
    for skew in skews.of(lab):
        source = family.source(lab, skew=skew)
        memory = lab.memory(source, memory_share)
        for algorithm in family.algorithms:
            held, optimum = family.held(lab, algorithm), _optimum(algorithm, source, memory)
            yield from lab.contest(figure, algorithm, skew, source, memory, fixed=held, **optimum)


def optimum_ratio(keys: KeyClasses, memory: float) -> float:
    """W* over MESHJOIN's tuples in an R-cycle, with the papers' bytes; infinite where all of R fits."""
    # A class of keys counts like one key: W* is where the sum of the smaller of both costs is the memory.
    best = optimal_tuples_per_cycle(keys.count * keys.p, keys.count * keys.m, MASTER_ROW_BYTES, WAITING_BYTES, memory)
    return best / (memory / WAITING_BYTES)


def _optimum(algorithm: str, source: Synthetic, memory: int) -> dict[str, float | None]:
    """W* beside the operators whose cache is measured by it; None where all of R fits."""
    if algorithm not in ("ssbj", "ssj"):
        return {}
    ratio = optimum_ratio(source.classes(), memory)
    return {"w_star_over_meshjoin": None if ratio == float("inf") else ratio}


def span(values: Sequence[float]) -> str:
    """From the least to the largest, as text.

    >>> span([2.5, 3.9]), span([3.01, 3.0])
    ('2.5 to 3.9', '3.0')
    """
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    return low if low == high else f"{low} to {high}"


def optimum_reason(points: Sequence[Point], claimed: Mapping[float, float]) -> str:
    """What W* of the settings that were run allows, and which of the claimed factors, by x, are more than that."""
    best = {
        point.x: point.settings["w_star_over_meshjoin"] for point in points if "w_star_over_meshjoin" in point.settings
    }
    # Where all of R fits there is no bound.
    found = {x: math.inf if bound is None else bound for x, bound in best.items()}
    bounds = [bound for bound in found.values() if bound < math.inf]
    if not bounds:
        return ""
    ratio = span(bounds)
    said = W_STAR.format(ratio=ratio, place=" along this axis" if "to" in ratio else "")
    beyond = [f"{times:g}" for x, times in claimed.items() if found[min(found, key=lambda at: abs(at - x))] < times]
    if not beyond:
        return said
    return f"{said} The claimed {' and '.join(beyond)} {'is' if len(beyond) == 1 else 'are'} more than that."
