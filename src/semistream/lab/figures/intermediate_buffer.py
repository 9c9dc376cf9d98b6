"""How large should P-CACHEJOIN's intermediate buffer be? opcachejoin2020."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from semistream.lab.figure import Axis, Figure, Point, Verdict
from semistream.lab.figures.family import ONE_PAGE, PC, PER_CYCLE, RATE
from semistream.lab.figures.ticks import Ticks, percent
from semistream.lab.laboratory import Lab
from semistream.lab.verdicts import FLAT, Check, Curves, judge

#: of 100 MB for R of 2 million tuples: 0.5 to 16 MB, and a disk buffer of 850 records
SHARES = Ticks((0.005, 0.02, 0.16), (0.005, 0.01, 0.02, 0.04, 0.08, 0.16))
_MEMORY = 100 / 240
_BEST = 2.0


def _figure_3(lab: Lab) -> Iterator[Point]:
    source = PC.source(lab)
    memory = lab.memory(source, _MEMORY)
    for share in SHARES.of(lab):
        fixed = {"intermediate_bytes": int(share * memory), **ONE_PAGE}
        yield from lab.contest("opcachejoin-3", "pcachejoin", percent(share), source, memory, fixed=fixed)


def judge_3(points: Sequence[Point]) -> Verdict:
    def checks(curves: Curves) -> list[Check]:
        curve = curves.series.get("pcachejoin", {})
        if _BEST not in curve:
            return []
        best = max(curve, key=lambda x: curve[x])
        text = f"best at {best:g} % of memory; " + ", ".join(
            f"{rate / curve[_BEST]:.3f} at {x:g} %" for x, rate in curve.items()
        )
        larger = [rate for x, rate in curve.items() if x >= _BEST]
        falls = all(after <= (1 + FLAT) * before for before, after in pairwise(larger))
        return [
            Check("2 % of memory is best", curve[_BEST] >= (1 - FLAT) * curve[best], text),
            Check("more than that is worse", falls and larger[-1] < (1 - FLAT) * curve[_BEST], text, "trend"),
        ]

    return judge(
        points,
        checks,
        "Tuples are handed over in chunks here, and the disk phase takes them out at once, so a small I_B does as "
        "well. What a larger one takes from H_S and Q, the paper's own reason, is a few percent of them up to 4 % of "
        "memory.",
    )


FIGURES = (
    Figure(
        "opcachejoin-3",
        "Service rate of P-CACHEJOIN against the intermediate buffer",
        Axis("intermediate buffer I_B", "% of memory", log=True),
        RATE,
        "The rate is best with an intermediate buffer of 2 MB of 100 MB of memory, and falls when it is larger (disk "
        "buffer of 850 records; R is not named, ours is 2 million records in proportion).",
        _figure_3,
        judge_3,
        counts=PER_CYCLE,
    ),
)
