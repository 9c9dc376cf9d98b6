"""A plan: who gets which bytes, decided before anything runs. The run consumes it, and so does the prediction.

facts of R and S + budget + options --plan--> Plan --run-----> Loop
                                              Plan --predict-> Counts --price--> seconds
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from semistream.engine.division import Division
from semistream.engine.facts import MasterFacts, StreamFacts
from semistream.engine.options import CommonOptions

SomeOptions = TypeVar("SomeOptions", bound=CommonOptions, covariant=True)


@dataclass(frozen=True)
class Plan(Generic[SomeOptions]):
    """What all plans have; an algorithm's own adds the sizes of its tables."""

    r: MasterFacts
    s: StreamFacts
    budget: int
    options: SomeOptions
    division: Division
