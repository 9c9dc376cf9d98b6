"""Types of columns as a user writes them: `id long, name string, price decimal(10,2)`."""

from __future__ import annotations

import re

import pyarrow as pa

from semistream.errors import ConfigError

_TYPES = {
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "text": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}
#: names that are shown; the others are other words for the same
_SHOWN = "byte, short, int, long, float, double, boolean, string, binary, date, timestamp, timestamptz, decimal(P,S)"
_COLUMN = re.compile(
    r"\s*(?:`([^`]+)`|([^\s`,()]+))\s+([a-z]+)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?\s*(?:,|$)", re.I
)


def parse_types(text: str, option: str) -> dict[str, pa.DataType]:
    """The columns and their types, in the order in which they are written.

    >>> parse_types("id long, `unit price` decimal(10,2)", "--stream-schema")
    {'id': DataType(int64), 'unit price': Decimal128Type(decimal128(10, 2))}
    """
    found: dict[str, pa.DataType] = {}
    at = 0
    while at < len(text):
        match = _COLUMN.match(text, at)
        if match is None:
            raise ConfigError(
                f"{option}: {text[at:].strip()!r} is not understood; write columns as NAME TYPE with commas between "
                f'them, for example "id long, name string"; types are {_SHOWN}'
            )
        quoted, plain, kind, precision, scale = match.groups()
        name = quoted or plain
        if name in found:
            raise ConfigError(f"{option} names the column {name!r} twice; name it once")
        found[name] = _type(option, name, kind.lower(), precision, scale)
        at = match.end()
    if not found:
        raise ConfigError(f'{option} names no column; write for example "id long, name string"')
    return found


def _type(option: str, name: str, kind: str, precision: str | None, scale: str | None) -> pa.DataType:
    if kind == "decimal" and precision is not None and 1 <= int(precision) <= 38 and int(scale or 0) <= int(precision):
        return pa.decimal128(int(precision), int(scale or 0))
    if kind not in _TYPES or precision is not None:
        said = kind if precision is None else f"{kind}({precision}{'' if scale is None else f',{scale}'})"
        raise ConfigError(f"{option}: the column {name!r} has the unknown type {said!r}; types are {_SHOWN}")
    return _TYPES[kind]
