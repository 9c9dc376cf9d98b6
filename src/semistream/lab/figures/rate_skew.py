"""What does skew do to the service rate? ssbj2019, ssj2014, sscj2013 and opcachejoin2020."""

from __future__ import annotations

from collections.abc import Sequence

from semistream.lab.figure import Figure, Point, Printed, Verdict
from semistream.lab.figures.family import (
    OPC,
    PC,
    PER_CYCLE,
    RATE,
    SKEW_AXIS,
    SSBJ,
    SSCJ,
    SSJ,
    by_skew,
    optimum_reason,
)
from semistream.lab.figures.rate_memory import HYBRID_REASON, ONE_DISK, SIDE_BY_SIDE, judge_beside
from semistream.lab.figures.rate_size import NOT_NAMED, TWO_FACTORS
from semistream.lab.figures.ticks import Ticks
from semistream.lab.verdicts import AHEAD, SLIGHTLY_WORSE, Check, Curves, ahead, factor, judge, rises, slightly_worse

_PC_SKEWS = Ticks((0.5, 0.75, 1.0), (0.5, 0.75, 1.0))
_PC_MEMORY = 50 / 240


UNSKEWED = (
    "Without skew no key of R comes often enough in an R-cycle to be worth its bytes in a cache, which then only takes "
    "memory from H_S; with a slight skew that is so for nearly all keys (the inequality in docs/arguments/w-star.md)."
)


def slightly_slower(curves: Curves, algorithm: str) -> Check:
    """An algorithm without a cache does not gain by skew, and loses slightly at most: the papers see it fall a bit."""
    says = f"{algorithm} slightly slower with skew, or as fast"
    curve = curves.series.get(algorithm, {})
    if len(curve) < 2:
        return Check(says, False, "", "trend")
    ratio = curve[max(curve)] / curve[min(curve)]
    return Check(says, SLIGHTLY_WORSE <= ratio < AHEAD, f"{algorithm} {ratio - 1:+.0%} by skew", "trend")


def judge_5c(points: Sequence[Point]) -> Verdict:
    def checks(curves: Curves) -> list[Check]:
        return [
            ahead(curves, "ssbj", "meshjoin", but=(0.0,)),
            rises(curves, "ssbj", "meshjoin"),
            factor(curves, "ssbj", "meshjoin", 1.0, 8.0),
            slightly_slower(curves, "meshjoin"),
        ]

    best = optimum_reason([point for point in points if point.x == 1.0], {1.0: 8.0})
    return judge(points, checks, f"{best} {UNSKEWED}".strip())


def judge_6c(points: Sequence[Point]) -> Verdict:
    def checks(curves: Curves) -> list[Check]:
        return [
            ahead(curves, "ssj", "meshjoin", but=(0.0,)),
            rises(curves, "ssj", "meshjoin"),
            factor(curves, "ssj", "meshjoin", 1.0, 7.0),
            slightly_worse(curves, "ssj", "meshjoin", 0.0),
            slightly_slower(curves, "meshjoin"),
        ]

    best = optimum_reason([point for point in points if point.x == 1.0], {1.0: 7.0})
    two = f"{TWO_FACTORS} {NOT_NAMED}".format(one="7", first="6c", other="3.5 at most", second="6b")
    return judge(points, checks, f"{best} {UNSKEWED} {two}".strip())


def judge_4c(points: Sequence[Point]) -> Verdict:
    def checks(curves: Curves) -> list[Check]:
        return [
            *(ahead(curves, "cachejoin", other, but=(0.0,)) for other in SSCJ.algorithms[1:]),
            factor(curves, "cachejoin", "hybridjoin", 1.0, 3.0),
            *(rises(curves, "cachejoin", other) for other in SSCJ.algorithms[1:]),
            *(slightly_worse(curves, "cachejoin", scan, 0.0) for scan in ("meshjoin", "rmeshjoin")),
            *(slightly_slower(curves, scan) for scan in ("meshjoin", "rmeshjoin")),
        ]

    two = TWO_FACTORS.format(one="4.5", first="4a", other="3", second="4c")
    return judge(points, checks, f"{HYBRID_REASON} {UNSKEWED} {two}")


FIGURES = (
    Figure(
        "ssbj-5c",
        "Service rate against skew: SSBJ and MESHJOIN",
        SKEW_AXIS,
        RATE,
        "SSBJ is ahead of MESHJOIN as soon as there is any skew, ever more so, about 8 times at skew 1; MESHJOIN "
        "becomes slightly slower with skew (R of 100 million tuples, memory of 10 % of R).",
        lambda lab: by_skew(lab, "ssbj-5c", SSBJ),
        judge_5c,
        counts=PER_CYCLE,
        printed=(Printed(1.0, 8.0, "ssbj", "meshjoin"),),
    ),
    Figure(
        "ssj-6c",
        "Service rate against skew: SSJ and MESHJOIN",
        SKEW_AXIS,
        RATE,
        "SSJ is well ahead of MESHJOIN even for moderate skew, ever more so, about 7 times at skew 1, and slightly "
        "worse only at skew 0; MESHJOIN becomes slightly slower with skew (R of 100 million tuples, memory of 10 % of "
        "R).",
        lambda lab: by_skew(lab, "ssj-6c", SSJ),
        judge_6c,
        counts=PER_CYCLE,
        printed=(Printed(1.0, 7.0, "ssj", "meshjoin"),),
    ),
    Figure(
        "sscj-4c",
        "Service rate against skew: SSCJ, HYBRIDJOIN, R-MESHJOIN, MESHJOIN",
        SKEW_AXIS,
        RATE,
        "SSCJ (here: cachejoin) is well ahead of HYBRIDJOIN, R-MESHJOIN and MESHJOIN even for moderate skew, ever more "
        "so, about 3 times HYBRIDJOIN at skew 1, and slightly worse than MESHJOIN and R-MESHJOIN only at skew 0; these "
        "two become slightly slower with skew (R of 100 million tuples, memory of 10 % of R).",
        lambda lab: by_skew(lab, "sscj-4c", SSCJ),
        judge_4c,
        counts=PER_CYCLE,
        printed=(Printed(1.0, 3.0, "cachejoin", "hybridjoin"),),
    ),
    Figure(
        "opcachejoin-4c",
        "Service rate against skew: P-CACHEJOIN and CACHEJOIN",
        SKEW_AXIS,
        RATE,
        "P-CACHEJOIN is ahead of CACHEJOIN at skew 0.5, 0.75 and 1 (the text names no sizes; ours are R of 2 million "
        "tuples and 50 MB in proportion).",
        lambda lab: by_skew(lab, "opcachejoin-4c", PC, _PC_MEMORY, _PC_SKEWS),
        lambda points: judge_beside(points, PC, SIDE_BY_SIDE),
        counts=PER_CYCLE,
    ),
    Figure(
        "opcachejoin-6c",
        "Service rate against skew: OP-CACHEJOIN, P-CACHEJOIN, CACHEJOIN",
        SKEW_AXIS,
        RATE,
        "OP-CACHEJOIN is well ahead of P-CACHEJOIN and CACHEJOIN at skew 0.5, 0.75 and 1 (the text names no sizes; "
        "ours are R of 2 million tuples and 50 MB in proportion).",
        lambda lab: by_skew(lab, "opcachejoin-6c", OPC, _PC_MEMORY, _PC_SKEWS),
        lambda points: judge_beside(points, OPC, ONE_DISK),
        counts=PER_CYCLE,
    ),
)
