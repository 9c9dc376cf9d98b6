"""What a file says about its rows, in the form of Delta's log: numbers of rows and nulls, least and greatest values.

Readers leave files out by it, so a bound that is not certain is left out instead: of floats with NaN, which some
readers count as the greatest value and Parquet does not count; of decimals with more digits than JSON numbers keep; of
dates that Python cannot hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

#: longer texts are cut: a bound is for leaving files out, not for reading
_TEXT = 32
_LAST_CHARACTER = "\U0010ffff"
_EXACT_DIGITS = 15


def delta_stats(schema: pa.Schema, metadata: pq.FileMetaData, with_nan: Collection[str] = ()) -> str:
    """The statistics of a file in JSON."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    places = {metadata.schema.column(at).path: at for at in range(len(metadata.schema))}
    for field in schema:
        if pa.types.is_nested(field.type) or field.name not in places:
            continue
        found = [_statistics(metadata, group, places[field.name]) for group in range(metadata.num_row_groups)]
        counted = [one for one in found if one is not None and one.has_null_count]
        if len(counted) == len(found):
            nulls[field.name] = sum(one.null_count for one in counted)
        if field.name not in with_nan and _is_ordered(field.type):
            _add_bound(least, field.name, found, min, _lower)
            _add_bound(most, field.name, found, max, _upper)
    return json.dumps({"numRecords": metadata.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls})


def _statistics(metadata: pq.FileMetaData, group: int, column: int) -> Any:
    return metadata.row_group(group).column(column).statistics


def _is_ordered(kind: pa.DataType) -> bool:
    """Whether Delta keeps bounds of a type."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
    )


def _add_bound(
    into: dict[str, Any],
    name: str,
    groups: list[Any],
    extreme: Callable[[list[Any]], Any],
    as_json: Callable[[Any], Any],
) -> None:
    try:
        # A row group of nulls has no bounds and needs none.
        known = [one for one in groups if one is None or not one.has_null_count or one.num_values > 0]
        if not known or not all(one is not None and one.has_min_max for one in known):
            return
        bound = as_json(extreme([one.min if extreme is min else one.max for one in known]))
    except (ValueError, OverflowError, TypeError):
        return
    if bound is not None:
        into[name] = bound


def _lower(value: Any) -> Any:
    return value[:_TEXT] if isinstance(value, str) else _plain(value)


def _upper(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _TEXT:
        # Greater than every text that goes on where this one is cut.
        return None if value[_TEXT] == _LAST_CHARACTER else value[:_TEXT] + _LAST_CHARACTER
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        # JSON has no infinities.
        return value if abs(value) != float("inf") else None
    if isinstance(value, Decimal):
        return float(value) if len(value.as_tuple().digits) <= _EXACT_DIGITS else None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return value.isoformat(timespec="microseconds")
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    if isinstance(value, date):
        return value.isoformat()
    return value if isinstance(value, int | str) else None
