"""One look for each algorithm and each peer, the same in every picture.

The colours of algorithms that stand in one figure of the papers are at least 20 units of CIELAB apart, for people who
see red and green alike too; the others are closer, so each has a marker of its own. On a
dark page a colour has a lighter twin, picked by the same measure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import cycle

from semistream.algorithms.registry import ALGORITHMS

#: words behind an algorithm's name that say a value was computed, not measured
PREDICTED = frozenset({"predicted", "calculated", "analytic", "equation", "model"})
SOLID, DASHED, DOTTED, DASHDOT = "solid", "dashed", "dotted", "dashdot"
_LINES = (SOLID, DASHED, DOTTED, DASHDOT)


@dataclass(frozen=True)
class Look:
    """How a series is drawn: colour on light and on dark ground, marker, line, and whether markers are filled."""

    light: str
    dark: str
    marker: str
    line: str = SOLID
    filled: bool = True


#: of the algorithms, in the order of their registration; the last ones are for those to come
PALETTE = (
    Look("#117733", "#70bb7c", "h"),
    Look("#009e73", "#6cd0a8", "H"),
    Look("#44aa99", "#83d5c5", "8"),
    Look("#999933", "#cac770", "d"),
    Look("#4d4d4d", "#b4b4b4", "o"),
    Look("#0b3d6b", "#7a93c1", "v"),
    Look("#d55e00", "#ff9c56", "P"),
    Look("#5b8ff9", "#9ebeff", "X"),
    Look("#7a3b12", "#cf8d66", "s"),
    Look("#33bbee", "#7edcff", "^"),
    Look("#e69f00", "#ffc354", "p"),
    Look("#cc3311", "#ff855e", "<"),
    Look("#1f5fd6", "#8ea3ff", ">"),
    Look("#332288", "#9b7ee0", "D"),
    Look("#c45ab3", "#f79ae6", "*"),
    Look("#882255", "#d67fa8", "$\u2663$"),
    Look("#7b52c7", "#c298ff", "$\u2665$"),
    Look("#d6278b", "#ff81c6", "$\u2660$"),
    Look("#661100", "#c07a66", "$\u266b$"),
)

_PEERS: dict[str, Look] = {
    "duckdb parquet": Look("#b8860b", "#ebb85b", "s"),
    "duckdb table": Look("#6b7a00", "#aeb85b", "D"),
    "polars scan": Look("#0077bb", "#7bb5f3", "o"),
    "lru look-up": Look("#8c8c8c", "#bebebe", "^"),
    "sqlite look-up": Look("#2f4f4f", "#83a09f", "v"),
    "spark native": Look("#ee7733", "#ffa96d", "X"),
    "spark hinted": Look("#a65628", "#e99b70", "P"),
    "spark sweepjoin": Look("#aa4499", "#e98fd7", "*"),
}

LOOKS: dict[str, Look] = {**dict(zip(ALGORITHMS, cycle(PALETTE), strict=False)), **_PEERS}

#: for curves that are no algorithm, in the order they come
_OTHERS = (
    Look("#0077bb", "#7bb5f3", "o"),
    Look("#d55e00", "#ff9c56", "s"),
    Look("#117733", "#70bb7c", "^"),
    Look("#7b52c7", "#c298ff", "D"),
    Look("#b8860b", "#ebb85b", "v"),
    Look("#d6278b", "#ff81c6", "P"),
    Look("#4d4d4d", "#b4b4b4", "X"),
)

_ALIASES = {alias: name for name, operator in ALGORITHMS.items() for alias in operator.aliases}


def known_name(series: str) -> str | None:
    """The algorithm or peer that a series is about: its longest known beginning, an alias's own name."""
    text = series.lower()
    found = [name for name in (*LOOKS, *_ALIASES) if text == name or text.startswith((f"{name} ", f"{name},"))]
    if not found:
        return None
    longest = max(found, key=len)
    return _ALIASES.get(longest, longest)


def is_predicted(series: str) -> bool:
    """Whether the name says that the values come from the cost model."""
    return not PREDICTED.isdisjoint(series.lower().replace(",", " ").split())


def looks(series: Iterable[str]) -> dict[str, Look]:
    """A look for each series of a figure.

    Series about the same algorithm share its colour and marker and differ in their line; predicted ones have hollow
    markers, and the first of them is dashed.

    >>> looks(["ssbj", "ssbj predicted"])["ssbj predicted"].line
    'dashed'
    """
    found: dict[str, Look] = {}
    seen: dict[str, int] = {}
    others = 0
    for name in dict.fromkeys(series):
        base = known_name(name)
        if base is None:
            line = DASHED if is_predicted(name) else _LINES[others // len(_OTHERS) % len(_LINES)]
            found[name] = replace(_OTHERS[others % len(_OTHERS)], line=line, filled=not is_predicted(name))
            others += 1
        elif is_predicted(name):
            turn = seen.get(f"{base} predicted", 0)
            seen[f"{base} predicted"] = turn + 1
            line = (DASHED, DOTTED, DASHDOT)[turn % 3]
            found[name] = replace(LOOKS[base], line=line, filled=False)
        else:
            turn = seen.get(base, 0)
            seen[base] = turn + 1
            line = (SOLID, DOTTED, DASHDOT)[turn % 3]
            found[name] = replace(LOOKS[base], line=line, filled=turn == 0)
    return found


def colour_pairs() -> dict[str, str]:
    """Every colour on light ground with its twin on dark ground."""
    return {look.light: look.dark for look in (*PALETTE, *_PEERS.values(), *_OTHERS)}
