"""The types that table formats have, and how Arrow's others are kept in them: exactly, or not at all."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from semistream.errors import SchemaError

#: the type of a format for a flat type of Arrow, None where it has none
Flat = Callable[[pa.DataType], pa.DataType | None]

_MOST_DIGITS = 38
_MICROSECONDS = ("s", "ms", "us")


def delta_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of a Delta table for rows of a schema."""
    return _converted(schema, _delta, "Delta")


def iceberg_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of an Iceberg table for rows of a schema."""
    return _converted(schema, _iceberg, "Iceberg")


def _converted(schema: pa.Schema, flat: Flat, format: str) -> pa.Schema:
    fields = []
    for field in schema:
        kind = _nested(field.type, flat)
        if kind is not None and not kind.equals(field.type):
            try:
                pa.nulls(1, field.type).cast(kind)
            except pa.ArrowException:
                kind = None
        if kind is None:
            raise SchemaError(
                f"column {field.name!r} has the type {field.type}, which {format} has no form for; leave it out or "
                "convert it before (nanoseconds to microseconds, unsigned numbers to wider signed ones)"
            )
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def _nested(kind: pa.DataType, flat: Flat) -> pa.DataType | None:
    if pa.types.is_struct(kind):
        inner = [(one.name, _nested(one.type, flat)) for one in kind]
        if not inner or any(type_ is None for _, type_ in inner):
            return None
        return pa.struct([pa.field(name, type_) for name, type_ in inner])
    if pa.types.is_map(kind):
        key, item = _nested(kind.key_type, flat), _nested(kind.item_type, flat)
        return None if key is None or item is None else pa.map_(key, item)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        value = _nested(kind.value_type, flat)
        return None if value is None else pa.list_(pa.field("element", value))
    return None if pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType) else flat(kind)


def _delta(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    return _common(kind)


def _iceberg(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_int8(kind) or pa.types.is_int16(kind):
        return pa.int32()
    if pa.types.is_time(kind):
        return pa.time64("us") if kind.unit in _MICROSECONDS else None
    if pa.types.is_fixed_size_binary(kind):
        return kind
    return _common(kind)


def _common(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_boolean(kind) or pa.types.is_signed_integer(kind):
        return kind
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return kind
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_date(kind):
        return pa.date32()
    if pa.types.is_timestamp(kind):
        # Moments are kept in UTC; a time zone is how they are shown.
        return pa.timestamp("us", None if kind.tz is None else "UTC") if kind.unit in _MICROSECONDS else None
    if pa.types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale) if kind.precision <= _MOST_DIGITS else None
    return None
