"""Is the stream what the papers assume? Zipf's law with exponent 1: ssj2014 (figure 3) and sscj2013 (figure 2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from semistream.lab.figure import Axis, Figure, Point, Verdict
from semistream.lab.laboratory import Lab
from semistream.lab.measure.runs import Estimate
from semistream.lab.verdicts import Check, Curves, judge, near
from semistream.lab.workloads.zipf import zipf_keys
from semistream.predict.keys import harmonic

_TUPLES_PER_KEY = 4
#: beyond this many keys a longer stream would show nothing new
_MOST_KEYS = 10_000_000
_SEGMENTS = 5
_CURVE_POINTS = 12
MADE, LAW = "generated stream", "Zipf's law"


def _keys(lab: Lab) -> int:
    return min(lab.rows, _MOST_KEYS)


def _ranked(lab: Lab) -> list[np.ndarray]:
    """How often each key came in each part of a stream, the most frequent keys of all of it first."""
    n_keys = _keys(lab)
    size = max(_TUPLES_PER_KEY * n_keys // _SEGMENTS, 1)
    parts = [
        np.bincount(zipf_keys(n_keys, 1.0, lab.seed, part * size, size), minlength=n_keys) for part in range(_SEGMENTS)
    ]
    order = np.argsort(-np.sum(parts, axis=0), kind="stable")
    return [part[order] / size for part in parts]


def _market(lab: Lab) -> Iterator[Point]:
    """Share of single keys by rank; ranks that come a few times only cannot be told apart and are left out."""
    parts = _ranked(lab)
    total = float(harmonic(_keys(lab), 1.0))
    for rank in np.unique(np.geomspace(1, max(_keys(lab) // 1000, 10), _CURVE_POINTS).astype(np.int64)):
        share = Estimate.of([float(part[rank - 1]) for part in parts])
        yield lab.point("sscj-2", "counts", MADE, float(rank), share)
        law = 1.0 / rank / total
        yield lab.point("sscj-2", "counts", LAW, float(rank), Estimate(law, law, law, 1))


def _matching(lab: Lab) -> Iterator[Point]:
    """Share of the stream that matches the first tuples of R in order of frequency, by their number."""
    parts = [np.cumsum(part) for part in _ranked(lab)]
    total = float(harmonic(_keys(lab), 1.0))
    for rank in np.unique(np.geomspace(1, _keys(lab), _CURVE_POINTS).astype(np.int64)):
        share = Estimate.of([float(part[rank - 1]) for part in parts])
        yield lab.point("ssj-3", "counts", MADE, float(rank), share.scaled(100.0))
        law = 100.0 * float(harmonic(int(rank), 1.0)) / total
        yield lab.point("ssj-3", "counts", LAW, float(rank), Estimate(law, law, law, 1))


def judge_law(points: Sequence[Point]) -> Verdict:
    def checks(curves: Curves) -> list[Check]:
        return [near("the stream follows the law", [ratio - 1 for ratio in curves.ratio(MADE, LAW).values()], 0.05)]

    return judge(points, checks, "Keys are ranked by how often they came, which flatters the ranks that come rarely.")


FIGURES = (
    Figure(
        "ssj-3",
        "Matching probability of R in the stream",
        Axis("tuples of R, the most frequent first", log=True),
        Axis("share of the stream", "%"),
        "The stream being skewed, with Zipf's law and exponent 1, the probability that a tuple of it matches a part of "
        "R is not the same everywhere but falls towards the tail (an illustration there; ours is the sum up to a rank, "
        "and we check the generator by it).",
        _matching,
        judge_law,
        joins=False,
    ),
    Figure(
        "sscj-2",
        "Frequency of keys by rank",
        Axis("rank", log=True),
        Axis("share of the stream", log=True),
        "Market sales follow the 80/20 rule, to be had by Zipf's law with exponent 1: a few products are sold far more "
        "often than all others (an illustration there, on logarithmic scales; we check the generator by it).",
        _market,
        judge_law,
        joins=False,
    ),
)
