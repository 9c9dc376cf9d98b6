"""At which values an axis is measured: few where a run must be short, many where it may be long.

A curve through three points shows an order, but not where it bends. The small scale is for trying things out and stays
short. The ends are the papers'; between them their texts name hardly any value, and the steps are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

from semistream.lab.laboratory import SCALES, Lab


@dataclass(frozen=True)
class Ticks:
    """The values of an axis: `few` up to the small scale, `many` beyond it. Every one of the few is among the many."""

    few: tuple[float, ...]
    many: tuple[float, ...]

    def of(self, lab: Lab) -> tuple[float, ...]:
        """The values for this lab's scale."""
        return self.many if lab.rows > SCALES["small"].rows else self.few


#: 1 to 10 % of R: ssbj2019, ssj2014 and sscj2013
MEMORY = Ticks((0.01, 0.03, 0.1), (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1))
#: 20 to 100 million tuples, as shares of the largest R
SIZES = Ticks((0.2, 0.6, 1.0), (0.2, 0.4, 0.6, 0.8, 1.0))
SKEWS = Ticks((0.0, 0.5, 1.0), (0.0, 0.25, 0.5, 0.75, 1.0))


def percent(share: float) -> float:
    """A share as a number of percent without the last digits of a product of floats.

    >>> percent(0.07)
    7.0
    """
    return round(100 * share, 6)
