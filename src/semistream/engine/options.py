"""Options of an algorithm: a frozen dataclass, whose fields say what is allowed.

    @dataclass(frozen=True)
    class Options(CommonOptions):
        cache_share: float = option(0.15, "the cache's part of the memory for tables", above=0, below=0.95)

Defaults, types and ranges stand there and nowhere else: `make_options` reads what a caller gave and checks it, tuning
and documentation read the fields.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar

from semistream.errors import ConfigError

_RULE = "semistream.option"


@dataclass(frozen=True)
class Rule:
    """What an option means and which values it takes. `kind` is bool, int or float; None may be allowed beside."""

    about: str
    kind: type
    optional: bool
    #: bounds that are allowed themselves, and bounds that are not
    least: float | None = None
    above: float | None = None
    below: float | None = None

    @property
    def allowed(self) -> str:
        """The range in words."""
        if self.kind is bool:
            return "True and False"
        what = "whole numbers" if self.kind is int else "numbers"
        low = f" from {self.least:g}" if self.least is not None else ""
        low = f" above {self.above:g}" if self.above is not None else low
        high = f" below {self.below:g}" if self.below is not None else ""
        return f"{what}{low}{' and' if low and high else ''}{high}"

    def accepts(self, value: object) -> bool:
        """Whether an option may have this value."""
        if value is None:
            return self.optional
        if self.kind is bool or isinstance(value, bool):
            return self.kind is bool and isinstance(value, bool)
        if not isinstance(value, int if self.kind is int else int | float) or not math.isfinite(value):
            return False
        low = (self.least is None or value >= self.least) and (self.above is None or value > self.above)
        return low and (self.below is None or value < self.below)


def option(
    default: Any,
    about: str,
    *,
    kind: type | None = None,
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> Any:
    """A field of an options class; `kind` is that of the default unless this is None."""
    chosen = kind if kind is not None else type(default)
    return field(default=default, metadata={_RULE: Rule(about, chosen, default is None, least, above, below)})


@dataclass(frozen=True)
class CommonOptions:
    """Options of every algorithm."""

    buffer_bytes: int | None = option(
        None, "bytes of the disk buffer (default: a part of the budget)", kind=int, least=1
    )


@dataclass(frozen=True)
class WaitingOptions(CommonOptions):
    """Options of algorithms whose main loop waits for more tuples unless it is told not to."""

    eager: bool = option(
        False,
        "one turn of the main loop after every push, whether H_S is full or not: chunks, and with them the memory that "
        "is in use, follow the arrival rate",
    )


SomeOptions = TypeVar("SomeOptions", bound=CommonOptions)


def rules(kind: type[CommonOptions]) -> dict[str, Rule]:
    """The options of a class by name."""
    return {each.name: each.metadata[_RULE] for each in fields(kind)}


def defaults(kind: type[CommonOptions]) -> dict[str, Any]:
    """What an option is when nobody gives it."""
    return {each.name: each.default for each in fields(kind) if each.default is not MISSING}


def make_options(kind: type[SomeOptions], given: Mapping[str, Any], algorithm: str) -> SomeOptions:
    """The options that a caller gave, checked: the first that is unknown or out of range is refused."""
    known = rules(kind)
    for name, value in given.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(sorted(known))}"
            raise ConfigError(f"{algorithm} has no option {name!r}; {hint}")
        if not known[name].accepts(value):
            raise ConfigError(
                f"{name}={value!r} is out of range for {algorithm}: {known[name].about}; "
                f"allowed are {known[name].allowed}"
            )
    return kind(**given)
