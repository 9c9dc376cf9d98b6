"""Row filters of a source: `column op value`, all of which must hold.

A filter is read into its parts, so that names can be quoted and values bound, whatever the source: no text of a filter
becomes part of a statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from semistream.errors import ConfigError

_OPERATORS = ("=", "!=", "<=", ">=", "<", ">", "in", "is null", "is not null")
_CONDITION = re.compile(
    r"""\s*(?:"(?P<quoted>(?:[^"]|"")+)"|(?P<name>[^\s"<>=!']+))\s*
    (?P<op><=|>=|!=|<>|=|<|>|\bin\b|\bis\s+not\s+null\b|\bis\s+null\b)\s*(?P<value>.*?)\s*""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_VALUE = re.compile(r"\s*(?:'((?:[^']|'')*)'|([^,']*?))\s*(,|$)")


@dataclass(frozen=True)
class Condition:
    """One of `_OPERATORS` between a column and values, which are texts until the column's type is known."""

    column: str
    operator: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        quoted = ", ".join(f"'{value}'" for value in self.values)
        return f"{self.column} {self.operator} {quoted}".strip()


def read_conditions(texts: Iterable[str]) -> tuple[Condition, ...]:
    """Conditions as they are written.

    >>> [str(one) for one in read_conditions(["price >= 10", "country in DE, 'FR'", "gone is null"])]
    ["price >= '10'", "country in 'DE', 'FR'", 'gone is null']
    """
    return tuple(_condition(text) for text in texts)


def _condition(text: str) -> Condition:
    match = _CONDITION.fullmatch(text)
    allowed = f"write COLUMN OPERATOR VALUE with one of {', '.join(_OPERATORS)}, such as \"country = 'DE'\""
    if match is None:
        raise ConfigError(f"the row filter {text!r} cannot be read; {allowed}")
    operator = " ".join(match["op"].lower().split()).replace("<>", "!=")
    values = _values(match["value"])
    wanted = 0 if operator.startswith("is") else 1
    if values is None or (len(values) != wanted and not (operator == "in" and values)):
        raise ConfigError(f"the row filter {text!r} has no value that fits; {allowed}")
    name = match["quoted"].replace('""', '"') if match["quoted"] else match["name"]
    return Condition(name, operator, values)


def _values(text: str) -> tuple[str, ...] | None:
    """The values between commas; None if they cannot be told apart."""
    found, at = [], 0
    while at < len(text):
        match = _VALUE.match(text, at)
        if match is None or (match[1] is None and not match[2]):
            return None
        found.append(match[2] if match[1] is None else match[1].replace("''", "'"))
        at = match.end()
        if match[3] == "," and at >= len(text):
            return None
    return tuple(found)


def typed(text: str, kind: pa.DataType, column: str) -> Any:
    """A text as a value of a column's type."""
    try:
        return pa.scalar(text, pa.string()).cast(kind).as_py()
    except (pa.ArrowException, ValueError):
        raise ConfigError(f"{text!r} is no value of the column {column!r}, which has the type {kind}") from None


def as_text(value: Any) -> str:
    """The text that `typed` reads as this value."""
    return str(value.isoformat(sep=" ") if hasattr(value, "hour") else value)


def expression(conditions: Iterable[Condition], schema: pa.Schema) -> Any:
    """The conditions as one of Arrow's expressions; None for none."""
    made: Any = None
    for one in conditions:
        field = pc.field(one.column)
        kind = schema.field(one.column).type
        values = [pa.scalar(typed(value, kind, one.column), kind) for value in one.values]
        if one.operator == "is null":
            part = field.is_null()
        elif one.operator == "is not null":
            part = field.is_valid()
        elif one.operator == "in":
            part = field.isin(values)
        else:
            compare = {"=": "__eq__", "!=": "__ne__", "<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}
            part = getattr(field, compare[one.operator])(values[0])
        made = part if made is None else made & part
    return made
