"""An algorithm, described once: everything else in the package reads this record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from semistream.engine.facts import MasterFacts, StreamFacts
from semistream.engine.loop import Loop
from semistream.engine.options import CommonOptions, make_options
from semistream.engine.plan import Plan
from semistream.engine.workplace import Workplace
from semistream.predict.counts import Counts, Workload

Counters = tuple[str, ...]


@dataclass(frozen=True)
class Pricing:
    """Which counters of an algorithm are which operations, and which of them may run side by side.

    `seeks` names the counter of reads that need a seek, the others continue the one before; None: all do. `mapped`
    reads use R's pages in place. `threads` is 1, or 2 with the disk phase beside the stream phase, or 3 with the loads
    beside both. Where pages are read ahead, the longer one of reading and joining hides a part of the other,
    `hidden_ahead`, as measured on two virtual cores.
    """

    operations: Mapping[str, Counters]
    seeks: str | None = None
    mapped: bool = False
    threads: int = 1
    hidden_ahead: float = 1 / 3
    stream_phase: frozenset[str] = field(default=frozenset({"c_S", "c_H", "c_AI", "c_C"}))


Bound = Callable[[MasterFacts, int], float]


@dataclass(frozen=True)
class Knob:
    """A size that tuning may change: an option, its range for R and a budget, searched by factors or by steps."""

    name: str
    low: Bound
    high: Bound
    by_factors: bool = True
    whole: bool = True

    def values(self, low: float, high: float, count: int) -> list[float]:
        """`count` values between two, ends included, as the option takes them."""
        if high <= low or count < 2:
            return [self._value(low)]
        steps = [i / (count - 1) for i in range(count)]
        if self.by_factors:
            values = [low * (high / low) ** step for step in steps]
        else:
            values = [low + (high - low) * step for step in steps]
        return list(dict.fromkeys(map(self._value, values)))

    def _value(self, value: float) -> float:
        return round(value) if self.whole else round(value, 4)

    @staticmethod
    def share(name: str, low: float, high: float) -> Knob:
        """A part of the memory."""
        return Knob(name, lambda _r, _m: low, lambda _r, _m: high, by_factors=False, whole=False)


#: d, the tuples of the disk buffer: from one page to half of the memory
BUFFER_KNOB = Knob("buffer_bytes", lambda r, m: r.buffer_bytes(1), lambda r, m: max(m * 0.5, r.buffer_bytes(1)))
#: h_R, the tuples of the cache
CACHE_KNOB = Knob.share("cache_share", 0.02, 0.9)


@dataclass(frozen=True)
class Algorithm:
    """One algorithm of the family. Without `predict` and `pricing` it runs everywhere, and "auto" leaves it out."""

    name: str
    #: what it is, in full: the docstring of its file
    about: str
    plan: Callable[[MasterFacts, StreamFacts, int, Any], Plan[Any]]
    run: Callable[[Any, Workplace], Loop]
    options: type[CommonOptions] = CommonOptions
    predict: Callable[[Any, Workload], Counts] | None = None
    pricing: Pricing | None = None
    knobs: tuple[Knob, ...] = ()
    aliases: tuple[str, ...] = ()
    #: keys in docs/papers.md, with sections
    paper: str = "ours"
    #: "scan": R goes round and every tuple sees all of it; "index": pages are looked up
    access: str = "index"
    needs_index: bool = False
    wants_frequency_order: bool = False
    #: keeps its hot keys in `loop.cache`, so that several joins may put theirs together in a shared one
    shares_cache: bool = False
    #: knows rows of R by their codes alone, so that it can go on with a version that has more changes
    follows: bool = False
    #: null keys stay among the others, for the order of the stream matters
    keeps_null_keys: bool = False

    @property
    def title(self) -> str:
        """What the algorithm is, in a line."""
        return self.about.strip().partition("\n")[0]

    @property
    def is_weighed(self) -> bool:
        """Whether "auto" weighs it: what predicts nothing must be named to be used."""
        return self.predict is not None and self.pricing is not None

    def checked(self, options: Mapping[str, Any]) -> CommonOptions:
        """The options that a caller gave, checked."""
        return make_options(self.options, options, self.name)
