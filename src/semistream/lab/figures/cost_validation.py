"""Do the cost models say what a turn of the main loop takes? ssbj2019, ssj2014, sscj2013 and oxhybridjoin2012.

Calculated is the formula's c_loop, from R, M and the distribution alone; measured is a run's. On the cost clocks both
are priced alike, so they differ by the predicted counts; on the wall clock the formula is priced with this machine's
unit costs, so that their errors are in it as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from semistream.errors import BudgetError
from semistream.lab.figure import Axis, Figure, Point, Verdict
from semistream.lab.figures.family import MEMORY_AXIS, MEMORY_SHARES, OX, SSBJ, SSCJ, SSJ, Family
from semistream.lab.laboratory import WAYS, Lab
from semistream.lab.measure.runs import Estimate
from semistream.lab.verdicts import Check, Curves, judge, near

_LOOP = Axis("c_loop", "s", log=True)
MEASURED, CALCULATED = "measured", "calculated"


def validation(
    lab: Lab,
    figure: str,
    family: Family,
    *,
    algorithms: Sequence[str] | None = None,
    skew: float = 1.0,
    size: float = 1.0,
    shares: Sequence[float] = MEMORY_SHARES,
) -> Iterator[Point]:
    """c_loop over memory, measured and calculated, by every clock."""
    source = family.source(lab, size, skew)
    for share in shares:
        memory = lab.memory(source, share)
        for algorithm in algorithms or family.algorithms:
            run = lab.measure(algorithm, source, memory)
            if run is None:
                continue
            try:
                predicted = {
                    name: lab.situation(source, memory).predict(algorithm, profile).c_loop
                    for name, profile in lab.profiles.items()
                }
            except BudgetError:
                continue
            for way in WAYS:
                exact = predicted["machine" if way == "wall" else way]
                x = 100 * share
                yield lab.point(figure, way, f"{algorithm} {MEASURED}", x, run.loop_cost(way), run)
                yield lab.point(figure, way, f"{algorithm} {CALCULATED}", x, Estimate(exact, exact, exact, 1), run)


def judge_validation(points: Sequence[Point]) -> Verdict:
    def checks(curves: Curves) -> list[Check]:
        found = []
        for series in curves.series:
            algorithm = series.removesuffix(f" {MEASURED}")
            if algorithm == series:
                continue
            ratios = curves.ratio(f"{algorithm} {CALCULATED}", series)
            check = near(f"{algorithm}: calculated near measured", [ratio - 1 for ratio in ratios.values()])
            found.append(Check(check.says, check.holds, f"{algorithm} {check.numbers}"))
        return found

    return judge(
        points,
        checks,
        "On a cost clock the difference is that of predicted and real counts; on the wall clock that of unit costs "
        "as well, which a busy machine moves.",
    )


_CLAIM = "For every algorithm the calculated cost of a turn of the main loop closely resembles the measured one"

FIGURES = (
    Figure(
        "ssbj-6c",
        "Cost of a turn, calculated and measured, without skew: SSBJ and MESHJOIN",
        MEMORY_AXIS,
        _LOOP,
        f"{_CLAIM} (skew 0; no number is given, we hold the median to 15 %).",
        lambda lab: validation(lab, "ssbj-6c", SSBJ, skew=0.0),
        judge_validation,
    ),
    Figure(
        "ssbj-6d",
        "Cost of a turn, calculated and measured, with skew: SSBJ and MESHJOIN",
        MEMORY_AXIS,
        _LOOP,
        f"{_CLAIM} (skew 1; no number is given, we hold the median to 15 %).",
        lambda lab: validation(lab, "ssbj-6d", SSBJ),
        judge_validation,
    ),
    Figure(
        "ssj-8",
        "Cost of a turn, calculated and measured: SSJ and MESHJOIN",
        MEMORY_AXIS,
        _LOOP,
        f"{_CLAIM} (no number is given, we hold the median to 15 %).",
        lambda lab: validation(lab, "ssj-8", SSJ),
        judge_validation,
    ),
    Figure(
        "sscj-6",
        "Cost of a turn, calculated and measured: SSCJ, HYBRIDJOIN, R-MESHJOIN, MESHJOIN",
        MEMORY_AXIS,
        _LOOP,
        f"{_CLAIM} (no number is given, we hold the median to 15 %).",
        lambda lab: validation(lab, "sscj-6", SSCJ),
        judge_validation,
    ),
    Figure(
        "oxhybridjoin-7",
        "Cost of a turn, calculated and measured: Optimised X-HYBRIDJOIN",
        MEMORY_AXIS,
        _LOOP,
        "For every memory setting the predicted cost of Optimised X-HYBRIDJOIN is close to the measured one (no "
        "number is given, we hold the median to 15 %).",
        lambda lab: validation(
            lab, "oxhybridjoin-7", OX, algorithms=OX.algorithms[:1], size=0.25, shares=(0.05, 0.15, 0.4)
        ),
        judge_validation,
    ),
)
