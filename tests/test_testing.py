"""The reference that all operators are compared with is itself compared, with DuckDB."""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from tests.strategies import HOWS, KEY_KINDS, SHAPES, case, wide_table

from semistream.master.memory import MemoryMaster
from semistream.testing import (
    FakeClock,
    FaultyMaster,
    as_multiset,
    assert_same_rows,
    colliding_codes,
    reference_join,
    split,
)

SQL = {
    "inner": "SELECT s.*, {columns} FROM s JOIN r ON {on}",
    "left": "SELECT s.*, {columns} FROM s LEFT JOIN r ON {on}",
    "semi": "SELECT s.* FROM s WHERE EXISTS (SELECT 1 FROM r WHERE {on})",
    "anti": "SELECT s.* FROM s WHERE NOT EXISTS (SELECT 1 FROM r WHERE {on})",
}


@pytest.mark.parametrize("kind", KEY_KINDS)
@pytest.mark.parametrize("how", HOWS)
def test_reference_join_is_the_sql_join(how: str, kind: str) -> None:
    on = " AND ".join(f"s.{name} = r.{name}" for name in KEY_KINDS[kind].columns)
    query = SQL[how].format(on=on, columns="r.name, r.n AS n_right, r.price, r.live")
    with duckdb.connect() as connection:
        for shape in SHAPES:
            given = case(kind, shape)
            connection.register("s", given.stream)
            connection.register("r", given.master)
            actual = given.expected(how)
            assert_same_rows(actual, connection.sql(query).to_arrow_table().cast(actual.schema))


def test_zeros_and_nans_meet() -> None:
    stream = pa.table({"k": [-0.0, float("nan"), 1.0, None]})
    master = pa.table({"k": [0.0, float("nan"), None], "m": [1, 2, 3]})
    assert reference_join(stream, master, "k", "inner").column("m").to_pylist() == [1, 2]


def test_reference_join_takes_batches_names_and_selections() -> None:
    stream = pa.table({"a": [1, 2], "m": ["x", "y"]})
    master = pa.table({"b": [2], "m": [[5]], "z": [None]})
    out = reference_join(stream.to_batches(), master, {"a": "b"}, "left", ["m"], "_r")
    assert out.to_pydict() == {"a": [1, 2], "m": ["x", "y"], "m_r": [None, [5]]}
    with pytest.raises(ValueError, match=r"outer.*inner"):
        reference_join(stream, master, {"a": "b"}, "outer")


def test_multisets_hold_every_type() -> None:
    table = wide_table(np.arange(50))
    rows = as_multiset(pa.concat_tables([table, table]))
    assert rows == as_multiset(pa.concat_tables([table.slice(20), table, table.slice(0, 20)]))
    assert set(rows.values()) == {2}


@pytest.mark.parametrize("rows", [10, 20_000])
def test_same_rows_in_another_order(rows: int) -> None:
    table = pa.table({"a": np.arange(rows) % 7, "b": [f"x{i % 5}" for i in range(rows)]})
    shuffled = table.take(np.random.default_rng(0).permutation(rows))
    assert_same_rows(shuffled, table)
    wrong = pa.concat_tables([table.slice(1), table.slice(2, 1)])
    with pytest.raises(AssertionError, match=r"missing: 1\n.*1 × \(0, 'x0'\)\n.*too many: 1\n.*\(2, 'x2'\)"):
        assert_same_rows(wrong, table)


def test_different_columns_are_named() -> None:
    with pytest.raises(AssertionError, match="a: int64"):
        assert_same_rows(pa.table({"a": [1]}), pa.table({"a": pa.array([1], pa.int32())}))


def test_split_covers_the_table() -> None:
    table = pa.table({"a": range(10)})
    assert [batch.num_rows for batch in split(table, 4)] == [4, 4, 2]
    assert [batch.num_rows for batch in split(table.slice(0, 0), 4)] == [0]
    assert pa.Table.from_batches(split(table, [0, 3, 0, 2])).equals(table)
    with pytest.raises(ValueError, match="at least 1"):
        split(table, [3, 0])


def test_clock_moves_when_told() -> None:
    clock = FakeClock(5)
    clock.advance(0.5)
    assert clock() == 5.5
    with pytest.raises(ValueError, match="back"):
        clock.advance(-1)


def test_colliding_codes_are_few() -> None:
    table = pa.table({"k": [f"key {i}" for i in range(100)]})
    assert len(set(MemoryMaster(table, "k", **colliding_codes(2)).codes.tolist())) == 4
    with pytest.raises(ValueError, match="64"):
        colliding_codes(64)


def test_faulty_master_fails_once() -> None:
    table = pa.table({"k": range(100), "m": range(100)})
    faulty = FaultyMaster(MemoryMaster(table, "k", page_rows=10), fail_at=2)
    with faulty.open(["m"]) as reader:
        buffer = np.empty(reader.buffer_bytes(1), dtype=np.uint8)
        assert reader.read(0, 1, buffer).n_rows == 10
        with pytest.raises(OSError, match="injected"):
            reader.read(0, 1, buffer)
        assert reader.map(np.array([3, 9])).n_rows == 20
    assert faulty.has_failed
