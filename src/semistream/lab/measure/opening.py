"""Joins that are looked into."""

from __future__ import annotations

from typing import Any

from semistream import open_join
from semistream.engine.join import SemiStreamJoin
from semistream.errors import ConfigError


def open_named(algorithm: str, **arguments: Any) -> SemiStreamJoin:
    """As `open_join`, for an algorithm by name: its plan, loop and counts can be looked at.

    Inner joins, as the papers have them, unless it is said otherwise.
    """
    join = open_join(algorithm, **{"how": "inner", **arguments})
    if not isinstance(join, SemiStreamJoin):
        join.close()
        raise ConfigError(f"algorithm={algorithm!r} is none of the algorithms; see `semistream algorithms`")
    return join
