"""How does the service rate grow with memory? All five papers (docs/papers.md)."""

from __future__ import annotations

from collections.abc import Sequence

from semistream.lab.figure import Figure, Point, Printed, Verdict, Way
from semistream.lab.figures.family import (
    MEMORY_AXIS,
    OPC,
    OX,
    PC,
    PER_CYCLE,
    RATE,
    SSBJ,
    SSCJ,
    SSJ,
    Family,
    by_memory,
    optimum_reason,
)
from semistream.lab.figures.ticks import Ticks
from semistream.lab.verdicts import Check, Curves, ahead, factor, judge, rises

#: oxhybridjoin2012 gives no figures for its budgets; opcachejoin2020 takes 50 to 250 MB for two million tuples.
_OX_SHARES = Ticks((0.05, 0.15, 0.4), (0.05, 0.1, 0.15, 0.2, 0.3, 0.4))
_PC_SHARES = Ticks((0.21, 0.42, 1.04), (0.21, 0.42, 0.63, 0.83, 1.04))
HYBRID_REASON = (
    "Against HYBRIDJOIN: the cache is paid from the same memory, and without it a load already serves twice the tuples "
    "that the papers' model says (w_S of the index algorithms in docs/cost-models.md). Against the scans: on the "
    "papers' disk every load of an index operator seeks for 12 ms where a scan goes on reading, and in a small memory "
    "few tuples share a load; a waiting tuple takes 46 bytes there and 26 in a scan's table. Where a seek costs "
    "little, as on this machine's disk, a load costs its bytes, and the fewer bytes of R a tuple needs the better."
)
#: of oxhybridjoin2012, whose first rival has a cache too
PINNED_REASON = (
    "Against X-HYBRIDJOIN: it keeps the most wanted part of R in memory as well, and what Optimised X-HYBRIDJOIN "
    "spares is to let hot tuples wait for the next turn and to look every pinned tuple up on every turn. Where loads "
    f"from disk are most of the time, that is little. {HYBRID_REASON}"
)
SIDE_BY_SIDE = (
    "Two phases side by side take the longer of both times instead of their sum. Where loads are nearly all of it, "
    "there is little to gain, and I_B and handing tuples over cost something; the gain also needs a core for each. By "
    "the paper's own equation 2, a sum with one cost more than CACHEJOIN's, P-CACHEJOIN is the slower one "
    "(`equation_2_c_loop` in lab/equations/opcachejoin2020.py)."
)
ONE_DISK = (
    "One disk does not load twice as fast: opcachejoin2020 halves c_I/O for two buffers (`halved_c_IO` in "
    "lab/equations/opcachejoin2020.py). Where a load is most of the disk phase, or little of it, a second buffer "
    "gives next to nothing and takes memory from H_S (docs/arguments/second-buffer.md)."
)


def _scans(points: Sequence[Point], algorithm: str, low: float, high: float) -> Verdict:
    def checks(curves: Curves) -> list[Check]:
        return [
            ahead(curves, algorithm, "meshjoin", " %"),
            factor(curves, algorithm, "meshjoin", 1.0, low, " %"),
            factor(curves, algorithm, "meshjoin", 10.0, high, " %"),
            rises(curves, algorithm, "meshjoin"),
        ]

    return judge(points, checks, optimum_reason(points, {1.0: low, 10.0: high}))


def judge_5a(points: Sequence[Point]) -> Verdict:
    return _scans(points, "ssbj", 7.0, 8.0)


def judge_6a(points: Sequence[Point]) -> Verdict:
    return _scans(points, "ssj", 5.0, 7.0)


def judge_4a(points: Sequence[Point]) -> Verdict:
    def checks(curves: Curves) -> list[Check]:
        return [
            factor(curves, "cachejoin", "hybridjoin", 1.0, 3.0, " %"),
            factor(curves, "cachejoin", "hybridjoin", 10.0, 4.5, " %"),
            rises(curves, "cachejoin", "hybridjoin"),
            *(ahead(curves, "cachejoin", other, " %") for other in SSCJ.algorithms[1:]),
        ]

    return judge(points, checks, HYBRID_REASON)


def judge_first_of_all(points: Sequence[Point], family: Family, why: str) -> Verdict:
    """The first algorithm of a family ahead of all others."""

    def checks(curves: Curves) -> list[Check]:
        first, *others = family.algorithms
        return [ahead(curves, first, other) for other in others]

    return judge(points, checks, why)


def judge_beside(points: Sequence[Point], family: Family, why: str = "", *, most_where_small: bool = False) -> Verdict:
    """The first algorithm of a family ahead of the others by running phases side by side: how much is measured."""

    def checks(curves: Curves) -> list[Check]:
        first, *others = family.algorithms
        found = [ahead(curves, first, other) for other in others]
        if most_where_small:
            found += [rises(curves, first, other, falling=True) for other in others]
        return found

    return judge(points, checks, why, unjudged=_built_in(points), notes=beside_notes(points))


def _built_in(points: Sequence[Point]) -> dict[Way, str]:
    """A cost clock says what it was told of phases side by side: without a measurement of that it cannot judge them.

    Tuples per load are the same whoever runs beside whom.
    """
    reasons: dict[Way, str] = {"counts": "threads change no count, only how long it takes"}
    if all(point.settings.get("overlap") is None for point in points):
        reason = "nobody measured how much of the phases runs side by side"
        reasons |= {"papers": reason, "machine": reason}
    return {way: text for way, text in reasons.items() if any(point.way == way for point in points)}


def beside_notes(points: Sequence[Point]) -> list[str]:
    """How much algorithms with threads did side by side, and with how many cores."""
    notes = []
    timed = [p for p in points if p.way == "wall" and p.settings.get("side_by_side") is not None]
    for series in dict.fromkeys(point.series for point in timed):
        mine = [point.settings for point in timed if point.series == series]
        gains = sorted(float(one["side_by_side"]) for one in mine)
        busy = sorted(float(one["cpu_share"]) for one in mine if one.get("cpu_share") is not None)
        cores = "/".join(sorted({str(one.get("cpus")) for one in mine}))
        text = f"{series}, {cores} cores: side by side its phases give {gains[0]:.2f} to {gains[-1]:.2f} times the rate"
        used = f", with {busy[0]:.2f} to {busy[-1]:.2f} CPU seconds per second" if busy else ""
        notes.append(f"{text} of the same phases in turn{used}.")
    return notes


FIGURES = (
    Figure(
        "ssbj-5a",
        "Service rate against memory: SSBJ and MESHJOIN",
        MEMORY_AXIS,
        RATE,
        "SSBJ serves 7 times as many tuples as MESHJOIN with memory of 1 % of R and 8 times with 10 %: the cache gives "
        "slightly more in a larger memory (R of 100 million tuples, keys drawn with repetition, skew 1).",
        lambda lab: by_memory(lab, "ssbj-5a", SSBJ),
        judge_5a,
        counts=PER_CYCLE,
        printed=(Printed(1.0, 7.0, "ssbj", "meshjoin"), Printed(10.0, 8.0, "ssbj", "meshjoin")),
    ),
    Figure(
        "ssj-6a",
        "Service rate against memory: SSJ and MESHJOIN",
        MEMORY_AXIS,
        RATE,
        "SSJ is up to 5 times faster than MESHJOIN with memory of 1 % of R and up to 7 times with 10 % (R of 100 "
        "million tuples; the skew is not named, ours is 1).",
        lambda lab: by_memory(lab, "ssj-6a", SSJ),
        judge_6a,
        counts=PER_CYCLE,
        printed=(Printed(1.0, 5.0, "ssj", "meshjoin"), Printed(10.0, 7.0, "ssj", "meshjoin")),
    ),
    Figure(
        "sscj-4a",
        "Service rate against memory: SSCJ, HYBRIDJOIN, R-MESHJOIN, MESHJOIN",
        MEMORY_AXIS,
        RATE,
        "SSCJ (here: cachejoin) is up to 3 times faster than HYBRIDJOIN with memory of 1 % of R and up to 4.5 times "
        "with 10 %, and well ahead of R-MESHJOIN and MESHJOIN (R of 100 million tuples, skew 1).",
        lambda lab: by_memory(lab, "sscj-4a", SSCJ),
        judge_4a,
        counts=PER_CYCLE,
        printed=(Printed(1.0, 3.0, "cachejoin", "hybridjoin"), Printed(10.0, 4.5, "cachejoin", "hybridjoin")),
    ),
    Figure(
        "oxhybridjoin-6b",
        "Service rate against memory: Optimised X-HYBRIDJOIN and its relatives",
        MEMORY_AXIS,
        RATE,
        "With R of 2 million tuples in order of frequency, Optimised X-HYBRIDJOIN is well ahead of X-HYBRIDJOIN and "
        "all other related joins for every memory budget (Zipf's law with exponent 1; neither budgets nor the others "
        "are named in the text: ours are 5 to 40 % of R, and HYBRIDJOIN, R-MESHJOIN and MESHJOIN).",
        lambda lab: by_memory(lab, "oxhybridjoin-6b", OX, _OX_SHARES, size=0.25),
        lambda points: judge_first_of_all(points, OX, PINNED_REASON),
        counts=PER_CYCLE,
    ),
    Figure(
        "opcachejoin-4b",
        "Service rate against memory: P-CACHEJOIN and CACHEJOIN",
        MEMORY_AXIS,
        RATE,
        "P-CACHEJOIN is ahead of CACHEJOIN for every memory size, 50 to 250 MB with R of 2 million tuples (21 to 104 "
        "% of R), skew 1, disk buffer of 850 records.",
        lambda lab: by_memory(lab, "opcachejoin-4b", PC, _PC_SHARES),
        lambda points: judge_beside(points, PC, SIDE_BY_SIDE),
        counts=PER_CYCLE,
    ),
    Figure(
        "opcachejoin-6b",
        "Service rate against memory: OP-CACHEJOIN, P-CACHEJOIN, CACHEJOIN",
        MEMORY_AXIS,
        RATE,
        "OP-CACHEJOIN is ahead of P-CACHEJOIN and CACHEJOIN by a huge margin for every memory size, 50 to 250 MB with "
        "R of 2 million tuples (21 to 104 % of R), skew 1.",
        lambda lab: by_memory(lab, "opcachejoin-6b", OPC, _PC_SHARES),
        lambda points: judge_beside(points, OPC, ONE_DISK),
        counts=PER_CYCLE,
    ),
)
