"""What else ssbj2019 says of the cache inequality: against SSIJ's cache of blocks, and over HYBRIDJOIN (section 5).

The paper argues and does not measure. Keys are unique, as in its argument about one-to-many joins. Reads go through the
page cache where SSIJ is one of two: it reads single pages, which past the cache take minutes and say no more about the
counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from semistream.lab.balanced_hybrid import NAME as BALANCED_NAME
from semistream.lab.balanced_hybrid import known
from semistream.lab.figure import Axis, Figure, Point, Verdict
from semistream.lab.figures.family import MEMORY_AXIS, RATE, SKEW_AXIS, SSJ
from semistream.lab.figures.ticks import MEMORY, SKEWS, percent
from semistream.lab.laboratory import Lab
from semistream.lab.verdicts import Check, Curves, ahead, judge

BLOCK_HITS, BLOCK_RATE = "ssbj-ssij-hits", "ssbj-ssij-rate"
OVER_MEMORY, OVER_SKEW = "ssbj-hybridjoin-memory", "ssbj-hybridjoin-skew"
#: R of 20 million tuples
_SIZE, _MEMORY = 0.2, 0.1
BY_FREQUENCY = "ssij, R by frequency"
BALANCED = "hybridjoin balanced"
_PARENT, _RIVAL = "hybridjoin", "cachejoin"
#: a cache that is of no use may cost its parent's rate this much
_UNUSED = 0.95

# ------------------------------------------------------------------------------------------ blocks or tuples


def _blocks(lab: Lab, figure: str) -> Iterator[Point]:
    plain = SSJ.source(lab, _SIZE)
    series = {
        "ssbj": ("ssbj", plain),
        "ssij": ("ssij", plain),
        BY_FREQUENCY: ("ssij", replace(plain, order="frequency")),
    }
    quick = lab.buffered()
    for share in MEMORY.of(lab):
        for name, (algorithm, source) in series.items():
            run = quick.measure(algorithm, source, lab.memory(source, share))
            if run is None:
                continue
            if figure == BLOCK_HITS:
                hits = run.hit_share().scaled(100.0)
                yield lab.point(figure, "counts", name, percent(share), hits, run)
            else:
                yield from lab.rates(figure, name, percent(share), run)


def judge_hits(points: Sequence[Point]) -> Verdict:
    return judge(
        points,
        lambda curves: [ahead(curves, "ssbj", "ssij", " %")],
        "Where hot keys are scattered over R, a block in the cache holds one of them and many that nobody asks for; "
        "where R is in order of frequency, a cached block is full of hot keys, and SSBJ gives most of its memory to "
        "tuples that wait.",
    )


def judge_rate(points: Sequence[Point]) -> Verdict:
    return judge(
        points,
        lambda curves: [ahead(curves, "ssbj", "ssij", " %")],
        "SSIJ reads the blocks that its stream buffer needs, in the order of the disk. When the buffer is large those "
        "are nearly all blocks of R, and it scans as SSBJ does, with a buffer that takes more bytes per tuple; with "
        "R in order of frequency it needs few of them.",
    )


# ------------------------------------------------------------------------------------- the inequality over HYBRIDJOIN


def _balanced(lab: Lab, figure: str, over_skew: bool) -> Iterator[Point]:
    points = SKEWS.of(lab) if over_skew else MEMORY.of(lab)
    series = {BALANCED: BALANCED_NAME, _RIVAL: _RIVAL, _PARENT: _PARENT}
    with known():
        for x in points:
            source = SSJ.source(lab, _SIZE, skew=x if over_skew else 1.0)
            memory = lab.memory(source, _MEMORY if over_skew else x)
            for name, algorithm in series.items():
                run = lab.measure(algorithm, source, memory)
                yield from lab.rates(figure, name, x if over_skew else percent(x), run)


def judge_over_memory(points: Sequence[Point]) -> Verdict:
    def checks(curves: Curves) -> list[Check]:
        return [ahead(curves, BALANCED, _PARENT, " %"), _not_behind(curves, _RIVAL, 1.0, None)]

    return judge(points, checks, _REASON)


def judge_over_skew(points: Sequence[Point]) -> Verdict:
    def checks(curves: Curves) -> list[Check]:
        return [
            ahead(curves, BALANCED, _PARENT, but=(0.0, 0.25, 0.5)),
            _not_behind(curves, _PARENT, _UNUSED, 0.0),
            _not_behind(curves, _RIVAL, 1.0, None),
        ]

    return judge(points, checks, _REASON)


def _not_behind(curves: Curves, other: str, least: float, x: float | None) -> Check:
    """At least this part of the other's rate, everywhere or at one x."""
    ratios = {at: ratio for at, ratio in curves.ratio(BALANCED, other).items() if x is None or at == x}
    where = "everywhere" if x is None else f"at {x:g}"
    text = f"{BALANCED} / {other} " + ", ".join(f"{ratio:.2f} at {at:g}" for at, ratio in ratios.items())
    reached = bool(ratios) and all(ratio >= least for ratio in ratios.values())
    return Check(f"{BALANCED} has {least:.0%} of {other}'s rate {where}", reached, text)


_REASON = (
    "The inequality takes as few bytes as possible for a number of tuples that wait. In a scan they all share the one "
    "R-cycle, so that is what counts; in HYBRIDJOIN a load is shared by those of its pages only, and a hot key that "
    "waits makes loads that others share."
)

FIGURES = (
    Figure(
        BLOCK_HITS,
        "Share of the stream that the cache answers: tuples in SSBJ, blocks in SSIJ",
        MEMORY_AXIS,
        Axis("answered by the cache", "% of the stream"),
        "For one-to-many joins the cache of SSBJ, which holds single tuples, is smaller and more efficient than SSIJ's "
        "cache of blocks (section 5; argued, not measured. We hold it to the share that it answers, with the same "
        "memory and skew 1; SSIJ with R in order of frequency stands beside it).",
        lambda lab: _blocks(lab, BLOCK_HITS),
        judge_hits,
    ),
    Figure(
        BLOCK_RATE,
        "Service rate against memory: SSBJ and SSIJ",
        MEMORY_AXIS,
        RATE,
        "Reading all of R in turn, as SSBJ does, is likely more efficient than SSIJ's plan of disk accesses, since the "
        "cache has taken much of the skew out of what is left (section 5; argued, not measured; ours has skew 1).",
        lambda lab: _blocks(lab, BLOCK_RATE),
        judge_rate,
    ),
    Figure(
        OVER_MEMORY,
        "The cache inequality over HYBRIDJOIN: service rate against memory",
        MEMORY_AXIS,
        RATE,
        "With an index, HYBRIDJOIN could be the disk phase, and the cache inequality could still be applied (section "
        "5; not measured there. We hold it to be ahead of HYBRIDJOIN without a cache, and not behind CACHEJOIN, whose "
        "cache has a fixed share; skew 1).",
        lambda lab: _balanced(lab, OVER_MEMORY, over_skew=False),
        judge_over_memory,
    ),
    Figure(
        OVER_SKEW,
        "The cache inequality over HYBRIDJOIN: service rate against skew",
        SKEW_AXIS,
        RATE,
        "The same for every skew (section 5; not measured there. Without skew no key is worth caching: we hold it not "
        "to lose more than 5 % against HYBRIDJOIN by a cache that has nothing to keep; memory of 10 % of R).",
        lambda lab: _balanced(lab, OVER_SKEW, over_skew=True),
        judge_over_skew,
    ),
)
