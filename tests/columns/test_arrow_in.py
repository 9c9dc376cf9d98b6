"""Arrow data of other libraries: pushed, run, built from and opened, without a word to PyArrow."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from semistream import build_pages, open_join, open_master
from semistream.columns.arrow_in import record_batches
from semistream.errors import ConfigError, SchemaError, StoreError
from semistream.testing import assert_same_rows, reference_join

MASTER = pa.table({"k": np.arange(500), "name": [f"n{i}" for i in range(500)], "v": np.arange(500) / 4})
STREAM = pa.table({"k": np.arange(900) * 7 % 600, "text": [None if i % 9 == 0 else f"t{i}" for i in range(900)]})


class OneBatch:
    """Whatever gives one record batch, and nothing else."""

    def __init__(self, table: pa.Table) -> None:
        self._batch = table.combine_chunks().to_batches()[0]

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        return self._batch.__arrow_c_array__(requested_schema)  # type: ignore[no-any-return]


def relation(table: pa.Table) -> Any:
    return duckdb.from_arrow(table)


MAKERS: dict[str, Callable[[pa.Table], Any]] = {
    "polars": pl.from_arrow,
    "polars in chunks": lambda table: pl.concat(
        [pl.from_arrow(table[:300]), pl.from_arrow(table[300:])], rechunk=False
    ),
    "pandas": lambda table: table.to_pandas(),
    "duckdb": relation,
    "table": lambda table: table,
    "reader": lambda table: table.to_reader(max_chunksize=200),
    "batch": lambda table: table.combine_chunks().to_batches()[0],
    "one batch": OneBatch,
}


@pytest.fixture(params=list(MAKERS))
def make(request: pytest.FixtureRequest) -> Callable[[pa.Table], Any]:
    return MAKERS[request.param]


def check(rows: list[pa.RecordBatch], schema: pa.Schema | None, how: str = "left") -> None:
    """The same rows, whatever form of text they are in."""
    assert schema is not None
    expected = reference_join(STREAM, MASTER, "k", how)
    found = pa.Table.from_batches(rows, schema)
    assert found.schema.names == expected.schema.names
    assert_same_rows(found.cast(expected.schema), expected)


@pytest.mark.parametrize("algorithm", ["auto", "ssbj"])
def test_pushed(make: Callable[[pa.Table], Any], algorithm: str) -> None:
    with open_join(algorithm, master=MASTER, on="k", how="left", memory="1MB") as join:
        rows = [*join.push(make(STREAM)), *join.drain()]
        assert join.stats.tuples_in == 900
        check(rows, join.output_schema)


@pytest.mark.parametrize("algorithm", ["auto", "ssbj"])
def test_run(make: Callable[[pa.Table], Any], algorithm: str) -> None:
    """Whole, or in parts one after another."""
    for stream in (make(STREAM), (make(STREAM[at : at + 300]) for at in (0, 300, 600))):
        with open_join(algorithm, master=MASTER, on="k", how="left", memory="1MB") as join:
            check(list(join.run(stream)), join.output_schema)


def test_opened_as_master_data(make: Callable[[pa.Table], Any]) -> None:
    with open_join("ssbj", master=make(MASTER), on="k", how="left", memory="1MB") as join:
        check(list(join.run(STREAM)), join.output_schema)
    assert open_master(make(MASTER), "k").n_rows == 500


def test_built_from(make: Callable[[pa.Table], Any], tmp_path: Path) -> None:
    build_pages(make(MASTER), tmp_path / "one", on="k").close()
    build_pages((make(MASTER[at : at + 250]) for at in (0, 250)), tmp_path / "two", on="k").close()
    for name in ("one", "two"):
        with open_join("ssbj", master=tmp_path / name, on="k", how="left", memory="1MB") as join:
            check(list(join.run(STREAM)), join.output_schema)


def test_a_stream_is_read_as_it_is_joined() -> None:
    """A run never holds the whole stream: what was not asked for is not made."""
    made = []

    def batches() -> Any:
        for number in range(100):
            made.append(number)
            yield pl.from_arrow(STREAM)

    with open_join("ssbj", master=MASTER, on="k", memory="1MB") as join:
        rows = join.run(batches())
        next(rows)
        assert len(made) < 10


@pytest.mark.parametrize("form", ["polars", "polars in chunks", "duckdb", "table", "reader"])
def test_an_empty_frame_tells_the_schema(form: str) -> None:
    """Where there is a form without rows that keeps its types: pandas forgets them, a batch has to be cut first."""
    make = MAKERS[form]
    for algorithm in ("auto", "ssbj"):
        with open_join(algorithm, master=MASTER, on="k", memory="1MB") as join:
            assert list(join.push(make(STREAM[:0]))) == []
            assert join.output_schema is not None


def test_a_push_is_refused_whole() -> None:
    """The second part lacks a column: nothing of the first one is joined, and the join goes on."""
    other = pa.record_batch({"k": [1], "text": [2]})

    class TwoSchemas:
        def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
            return pa.RecordBatchReader.from_batches(other.schema, [other]).__arrow_c_stream__(requested_schema)

    with open_join("ssbj", master=MASTER, on="k", memory="1MB") as join:
        list(join.push(STREAM))
        with pytest.raises(SchemaError, match="does not fit the schema"):
            join.push(TwoSchemas())
        assert join.stats.tuples_in == 900
        list(join.push(STREAM))


@pytest.mark.parametrize("algorithm", ["auto", "ssbj"])
def test_what_holds_no_rows_is_named(algorithm: str, tmp_path: Path) -> None:
    with open_join(algorithm, master=MASTER, on="k", memory="1MB") as join:
        for data, name in (
            ({"k": [1]}, "dict"),
            (np.arange(3), "numpy.ndarray"),
            ([STREAM], "list"),
            (None, "NoneType"),
        ):
            with pytest.raises(ConfigError, match=f"push takes Arrow data, not {name}: .*from_pylist"):
                join.push(data)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="run takes Arrow data, or batches of it one after another, not int"):
            join.run(3)  # type: ignore[arg-type]
        for series in (pl.Series("k", [1, 2]), pa.array([1, 2])):
            with pytest.raises(SchemaError, match="must be rows of named columns"):
                join.push(series)
    with pytest.raises(ConfigError, match="master data cannot be dict; allowed are"):
        open_master({"k": [1]}, "k")  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="cannot be read from int; allowed are"):
        build_pages(3, tmp_path / "a", on="k")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="must come as Arrow record batches, not int"):
        build_pages([1, 2], tmp_path / "b", on="k")  # type: ignore[list-item]


def test_none_of_the_libraries_is_imported() -> None:
    script = "import sys, semistream.columns.arrow_in; print({'polars', 'duckdb', 'pandas'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
    assert record_batches(3, "this") is None
