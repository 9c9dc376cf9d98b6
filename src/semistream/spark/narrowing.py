"""Enrichments without the master columns that nobody wants of their result.

A join that does not carry a column neither reads it nor keeps it in its cache, and does not build it for every row.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from dataclasses import replace

import pyarrow as pa

from semistream.spark.dimension import Dimension


def narrowed(dimensions: tuple[Dimension, ...], wanted: Set[int]) -> tuple[tuple[Dimension, ...], tuple[int, ...]]:
    """The dimensions without columns whose places in the result are not wanted, and the places of those left.

    A column by which a later dimension is joined stays. Everything stays where a column has another name in the stream
    that a later dimension gets than in the master data: which names are made depends on what else is there.
    """
    columns = [_result_columns(dimension) for dimension in dimensions]
    width = len(dimensions[0].stream_schema)
    after = [name for names in columns[:-1] for name in names]
    if dimensions[-1].stream_schema.names[width:] != after:
        return dimensions, tuple(range(width + sum(map(len, columns))))
    keys = {name for dimension in dimensions[1:] for name in dimension.request.spec.stream_on}
    places, made = list(range(width)), []
    for number, (dimension, names) in enumerate(zip(dimensions, columns, strict=True)):
        made.append(_with_stream(dimension, places))
        is_last = number == len(dimensions) - 1
        kept = {
            place: name for place, name in enumerate(names, width) if place in wanted or (not is_last and name in keys)
        }
        if len(kept) < len(names):
            made[-1] = _with_columns(made[-1], kept.values())
        places += kept
        width += len(names)
    return tuple(made), tuple(places)


def _result_columns(dimension: Dimension) -> list[str]:
    """Master columns of the result, by their names in the master data."""
    spec = dimension.request.spec
    assert spec.select is not None, "an enrichment that was described names its columns"
    return spec.result_columns(spec.select) if spec.carries_master else []


def _with_stream(dimension: Dimension, places: Collection[int]) -> Dimension:
    """The dimension behind a stream that has these columns only."""
    stream = dimension.stream_schema
    if len(places) == len(stream):
        return dimension
    left = pa.schema([stream.field(place) for place in places], metadata=stream.metadata)
    return replace(dimension, stream=left.serialize().to_pybytes())


def _with_columns(dimension: Dimension, names: Collection[str]) -> Dimension:
    """The dimension with these columns of the master data only."""
    spec = dimension.request.spec
    columns = pa.ipc.read_schema(pa.py_buffer(dimension.columns))
    left = pa.schema([field for field in columns if field.name in {*spec.master_on, *names}], columns.metadata)
    request = replace(dimension.request, spec=replace(spec, select=tuple(names)))
    return replace(dimension, request=request, columns=left.serialize().to_pybytes())
