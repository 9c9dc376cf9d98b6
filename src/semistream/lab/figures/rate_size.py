"""How does the service rate fall when R grows and memory does not? All five papers (docs/papers.md)."""

from __future__ import annotations

from collections.abc import Sequence

from semistream.lab.figure import Figure, Point, Printed, Verdict
from semistream.lab.figures.family import (
    OPC,
    OX,
    PC,
    PER_CYCLE,
    RATE,
    SIZE_AXIS,
    SSBJ,
    SSCJ,
    SSJ,
    by_size,
    optimum_reason,
)
from semistream.lab.figures.rate_memory import (
    HYBRID_REASON,
    ONE_DISK,
    PINNED_REASON,
    SIDE_BY_SIDE,
    judge_beside,
    judge_first_of_all,
)
from semistream.lab.figures.ticks import Ticks
from semistream.lab.verdicts import Check, Curves, ahead, factor, judge, rises

#: oxhybridjoin2012: 0.5 to 8 million tuples, each size twice the one before; its memory is taken as that of
#: opcachejoin2020, 50 MB.
_OX_SIZES = Ticks((1 / 16, 1 / 4, 1.0), (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0))
_OX_MEMORY = 50 / 960
#: opcachejoin2020: 0.5 to 2 million tuples and 50 MB.
_PC_SIZES = Ticks((0.25, 0.5, 1.0), (0.25, 0.5, 0.75, 1.0))
_PC_MEMORY = 50 / 240

CPU_BOUND = (
    "Where memory is a large part of R, an R-cycle is shared by so many tuples that the CPU time of a tuple is most "
    "of its cost, and that is about the same for both."
)
#: of the same R, memory and skew, in two figures of one paper
TWO_FACTORS = (
    "The paper has two factors for one setting, R of 100 million tuples, memory of 10 % of it and skew 1: {one} in "
    "figure {first} and {other} in figure {second}. No run can have both."
)
#: the same where the text does not name the sizes of R
NOT_NAMED = "Sizes of R are not named for figure {second}; 100 million tuples is the only one in the paper's table."


def judge_5b(points: Sequence[Point]) -> Verdict:
    sizes = sorted({point.x for point in points}) or [0.0]

    def checks(curves: Curves) -> list[Check]:
        return [
            ahead(curves, "ssbj", "meshjoin"),
            factor(curves, "ssbj", "meshjoin", sizes[0], 7.0),
            factor(curves, "ssbj", "meshjoin", sizes[-1], 5.7),
            rises(curves, "ssbj", "meshjoin", falling=True),
        ]

    two = TWO_FACTORS.format(one="8", first="5a", other="5.7", second="5b")
    best = optimum_reason(points, {sizes[0]: 7.0, sizes[-1]: 5.7})
    return judge(points, checks, f"{best} {CPU_BOUND} {two}".strip())


def judge_6b(points: Sequence[Point]) -> Verdict:
    def checks(curves: Curves) -> list[Check]:
        return [ahead(curves, "ssj", "meshjoin"), factor(curves, "ssj", "meshjoin", None, 3.5)]

    two = f"{TWO_FACTORS} {NOT_NAMED}".format(one="7", first="6c", other="3.5 at most", second="6b")
    return judge(points, checks, f"{optimum_reason(points, {})} {CPU_BOUND} {two}".strip())


def judge_4b(points: Sequence[Point]) -> Verdict:
    def checks(curves: Curves) -> list[Check]:
        return [
            factor(curves, "cachejoin", "hybridjoin", None, 3.0),
            *(ahead(curves, "cachejoin", other) for other in SSCJ.algorithms[1:]),
        ]

    two = f"{TWO_FACTORS} {NOT_NAMED}".format(one="4.5", first="4a", other="3 at most", second="4b")
    return judge(points, checks, f"{HYBRID_REASON} {two}")


FIGURES = (
    Figure(
        "ssbj-5b",
        "Service rate against the size of R: SSBJ and MESHJOIN",
        SIZE_AXIS,
        RATE,
        "With memory of 1.12 GB, 10 % of the largest R, SSBJ serves 7 times as many tuples as MESHJOIN with R of 20 "
        "million tuples and 5.7 times with 100 million (skew 1).",
        lambda lab: by_size(lab, "ssbj-5b", SSBJ),
        judge_5b,
        counts=PER_CYCLE,
        printed=(
            Printed(0.2, 7.0, "ssbj", "meshjoin", in_proportion=True),
            Printed(1.0, 5.7, "ssbj", "meshjoin", in_proportion=True),
        ),
    ),
    Figure(
        "ssj-6b",
        "Service rate against the size of R: SSJ and MESHJOIN",
        SIZE_AXIS,
        RATE,
        "With memory of 1.12 GB, SSJ is up to 3.5 times faster than MESHJOIN for every size of R (skew 1; the sizes "
        "are not named in the text, ours are 20 to 100 % of the largest).",
        lambda lab: by_size(lab, "ssj-6b", SSJ),
        judge_6b,
        counts=PER_CYCLE,
    ),
    Figure(
        "sscj-4b",
        "Service rate against the size of R: SSCJ, HYBRIDJOIN, R-MESHJOIN, MESHJOIN",
        SIZE_AXIS,
        RATE,
        "With memory of 1.12 GB, SSCJ (here: cachejoin) is up to 3 times faster than HYBRIDJOIN for every size of R, "
        "and well ahead of R-MESHJOIN and MESHJOIN (skew 1; the sizes are not named in the text, ours are 20 to 100 % "
        "of the largest).",
        lambda lab: by_size(lab, "sscj-4b", SSCJ),
        judge_4b,
        counts=PER_CYCLE,
    ),
    Figure(
        "oxhybridjoin-6a",
        "Service rate against the size of R: Optimised X-HYBRIDJOIN and its relatives",
        SIZE_AXIS,
        RATE,
        "Optimised X-HYBRIDJOIN is well ahead of X-HYBRIDJOIN and all other related joins for every size of R, 0.5 to "
        "8 million tuples in order of frequency, with the same memory (Zipf's law with exponent 1; neither memory nor "
        "the others are named in the text: ours are 5 % of the largest R, and HYBRIDJOIN, R-MESHJOIN and MESHJOIN).",
        lambda lab: by_size(lab, "oxhybridjoin-6a", OX, _OX_MEMORY, _OX_SIZES),
        lambda points: judge_first_of_all(points, OX, PINNED_REASON),
        counts=PER_CYCLE,
    ),
    Figure(
        "opcachejoin-4a",
        "Service rate against the size of R: P-CACHEJOIN and CACHEJOIN",
        SIZE_AXIS,
        RATE,
        "P-CACHEJOIN is well ahead of CACHEJOIN for every size of R, 0.5 to 2 million tuples, with 50 MB of memory "
        "(skew 1, disk buffer of 850 records); most where R is small.",
        lambda lab: by_size(lab, "opcachejoin-4a", PC, _PC_MEMORY, _PC_SIZES),
        lambda points: judge_beside(points, PC, SIDE_BY_SIDE, most_where_small=True),
        counts=PER_CYCLE,
    ),
    Figure(
        "opcachejoin-6a",
        "Service rate against the size of R: OP-CACHEJOIN, P-CACHEJOIN, CACHEJOIN",
        SIZE_AXIS,
        RATE,
        "OP-CACHEJOIN is well ahead of P-CACHEJOIN and CACHEJOIN for every size of R (neither sizes nor memory are "
        "named again; ours are those of figure 4a, 0.5 to 2 million tuples, 50 MB and skew 1).",
        lambda lab: by_size(lab, "opcachejoin-6a", OPC, _PC_MEMORY, _PC_SIZES),
        lambda points: judge_beside(points, OPC, ONE_DISK),
        counts=PER_CYCLE,
    ),
)
