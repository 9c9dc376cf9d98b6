"""Batches of one stream may differ in what their schemas allow or say, not in what they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from semistream import open_join
from semistream.algorithms.registry import ALGORITHMS
from semistream.engine.stream_shape import StreamShape
from semistream.errors import SchemaError
from semistream.testing import assert_same_rows, reference_join

MASTER = pa.table({"key": np.arange(100), "name": [f"n{i}" for i in range(100)]})
NESTED = pa.list_(pa.field("item", pa.int64()))
STRICT_NESTED = pa.list_(pa.field("item", pa.int64(), nullable=False))


@pytest.fixture(params=[*sorted(ALGORITHMS), "auto"])
def algorithm(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def batch(nullable: bool, values: list[Any], metadata: dict[str, str] | None = None) -> pa.RecordBatch:
    schema = pa.schema(
        [
            pa.field("key", pa.int64(), nullable=nullable, metadata=metadata),
            pa.field("text", pa.string(), nullable=nullable),
            pa.field("list", NESTED if nullable else STRICT_NESTED, nullable=nullable),
        ],
        metadata=metadata,
    )
    lists = [None if value is None else [value, value + 1] for value in values]
    texts = [None if value is None else f"t{value}" for value in values]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, kind) for column, kind in zip((values, texts, lists), schema.types, strict=True)],
        schema=schema,
    )


def joined(join: Any, *batches: pa.RecordBatch) -> pa.Table:
    rows = [row for each in batches for row in join.push(each)]
    return pa.Table.from_batches([*rows, *join.drain()], join.output_schema)


@pytest.mark.parametrize("how", ["inner", "left", "anti"])
def test_a_batch_that_promises_more(algorithm: str, how: str) -> None:
    """The stream allows nulls; some batches say that they have none, one says something else besides."""
    batches = [
        batch(True, [5, None, 200]),
        batch(False, [6, 7, 201]),
        batch(True, [8, None], metadata={"made by": "somebody"}),
        batch(False, [9], metadata={"a": "b"}),
    ]
    whole = pa.Table.from_batches([each.cast(batches[0].schema) for each in batches])
    with open_join(algorithm, master=MASTER, on="key", how=how) as join:
        found = joined(join, *batches)
        assert join.output_schema == found.schema
    assert_same_rows(found, reference_join(whole, MASTER, "key", how))


def test_a_batch_that_allows_nulls_and_has_none(algorithm: str) -> None:
    strict = pa.schema([pa.field("key", pa.int64(), nullable=False), pa.field("text", pa.string(), nullable=False)])
    loose = pa.schema([("key", pa.int64()), ("text", pa.string())])
    first, second, third = (
        pa.RecordBatch.from_pydict({"key": keys, "text": texts}, schema=schema)
        for keys, texts, schema in (
            ([1, 2], ["a", "b"], strict),
            ([3, 400], ["c", "d"], loose),
            ([4, 5], ["e", None], loose),
        )
    )
    with open_join(algorithm, master=MASTER, on="key", how="left") as join:
        rows = [row for each in (first, second) for row in join.push(each)]
        with pytest.raises(SchemaError, match=r"column 'text' of this batch has nulls.*began with a schema.*none"):
            join.push(third)
        rows += join.drain()
        found = pa.Table.from_batches(rows, join.output_schema)
    whole = pa.Table.from_batches([first, second.cast(strict)])
    assert_same_rows(found, reference_join(whole, MASTER, "key", "left"))


def test_a_schema_that_lies(algorithm: str) -> None:
    """Packed rows keep no null where the schema has none: they would bring back some value instead."""
    schema = pa.schema([pa.field("key", pa.int64(), nullable=False), pa.field("n", pa.int64(), nullable=False)])
    lie = pa.RecordBatch.from_arrays([pa.array([1, 2]), pa.array([None, 5])], schema=schema)
    with open_join(algorithm, master=MASTER, on="key") as join, pytest.raises(SchemaError, match=r"'n'.*1 nulls"):
        list(join.push(lie))


SHAPE = StreamShape(pa.schema([("a", pa.int64()), ("b", pa.string()), pa.field("c", STRICT_NESTED)]))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ([("a", pa.int32()), ("b", pa.string()), ("c", STRICT_NESTED)], "'a' is int32 instead of int64"),
        ([("b", pa.string()), ("a", pa.int64()), ("c", STRICT_NESTED)], "in the order b, a, c instead of a, b, c"),
        ([("a", pa.int64()), ("c", STRICT_NESTED)], "it lacks 'b'"),
        ([("a", pa.int64()), ("d", pa.int8()), ("c", STRICT_NESTED)], "it lacks 'b' and it also has 'd'"),
        (
            [("a", pa.int64()), ("b", pa.string()), ("c", NESTED)],
            "'c' is list<item: int64> instead of list<item: int64 not",
        ),
    ],
    ids=["type", "order", "missing", "other", "nested"],
)
def test_what_differs_is_shown(schema: list[tuple[str, pa.DataType]], message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        SHAPE.fitted(pa.RecordBatch.from_pylist([], schema=pa.schema(schema)))
    assert message in str(caught.value)
    assert "cast every batch" in str(caught.value)


def test_maps_do_not_show_what_they_allow() -> None:
    strict, loose = (pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=allows)) for allows in (False, True))
    fits = StreamShape(pa.schema([("m", loose)])).fitted(pa.record_batch({"m": pa.array([[("x", 1)]], strict)}))
    assert fits.schema.field("m").type == loose
    assert fits.to_pydict() == {"m": [[("x", 1)]]}
    with pytest.raises(SchemaError, match=r"'m', map<string, int64>, may have nulls inside"):
        StreamShape(pa.schema([("m", strict)])).fitted(pa.record_batch({"m": pa.array([[("x", 1)]], loose)}))
