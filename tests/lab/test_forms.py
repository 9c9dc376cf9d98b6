"""R in all its forms has the same rows, and is written once."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semistream.errors import ConfigError
from semistream.lab.forms import path_of
from semistream.lab.sources import Synthetic, TpchSource
from semistream.lab.workloads.relation import KEY
from semistream.master.open import open_master
from semistream.testing import assert_same_rows

SOURCE = Synthetic(2_000, repeated=True, page_rows=64)


def _sqlite(path: Path) -> pa.Table:
    names = ", ".join(SOURCE.master.schema.names)
    connection = sqlite3.connect(path)
    try:
        rows = connection.execute(f"SELECT {names} FROM r").fetchall()
    finally:
        connection.close()
    return pa.table(list(zip(*rows, strict=True)), schema=SOURCE.master.schema)


def _duckdb(path: Path) -> pa.Table:
    with duckdb.connect(str(path), read_only=True) as connection:
        return connection.sql("SELECT * FROM r").to_arrow_table()


READERS = {"parquet": pq.read_table, "sqlite": _sqlite, "duckdb": _duckdb}


@pytest.mark.parametrize("form", READERS)
def test_every_form_has_the_rows_of_r(form: str, tmp_path: Path) -> None:
    said: list[str] = []
    path = path_of(SOURCE, form, tmp_path, said.append)
    assert_same_rows(READERS[form](path), SOURCE.master.table())
    assert said
    said.clear()
    assert path_of(SOURCE, form, tmp_path, said.append) == path
    assert not said


def test_a_page_store_has_the_pages_that_were_asked_for(tmp_path: Path) -> None:
    with closing(open_master(path_of(SOURCE, "pages", tmp_path), (KEY,))) as master:
        assert (master.n_rows, master.n_pages) == (2_000, -(-2_000 // 64))
    assert path_of(Synthetic(2_000, repeated=True), "pages", tmp_path) != path_of(SOURCE, "pages", tmp_path)


def test_data_that_is_not_synthetic_has_pages_only(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="as pages only"):
        path_of(TpchSource(0.01), "sqlite", tmp_path)
