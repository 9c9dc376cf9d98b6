"""One door for all forms of R, with a clear refusal for what is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.master.decoding import every_type

from semistream.errors import ConfigError, SchemaError, StoreError
from semistream.master.build import build_pages
from semistream.master.memory import MemoryMaster
from semistream.master.open import open_master
from semistream.master.pages import PageMaster
from semistream.master.parquet import ParquetMaster


def test_every_form(tmp_path: Path) -> None:
    table = every_type(50)
    (tmp_path / "p").mkdir()
    pq.write_table(table, tmp_path / "p" / "r.parquet")
    store = build_pages(table, tmp_path / "s", on=["k", "word"])
    for source, kind in (
        (tmp_path / "s", PageMaster),
        (str(tmp_path / "s"), PageMaster),
        (store, PageMaster),
        (tmp_path / "p", ParquetMaster),
        (tmp_path / "p" / "r.parquet", ParquetMaster),
        (ds.dataset(str(tmp_path / "p")), ParquetMaster),
        (table, MemoryMaster),
        (table.to_batches()[0], MemoryMaster),
    ):
        master = open_master(source, ["k", "word"])
        assert isinstance(master, kind)
        assert master.on == ("k", "word")
    assert open_master(store) is store
    assert open_master(table, "k", page_rows=8).page_rows == 8
    assert open_master(tmp_path / "s", version=1).version == 1


def test_refused(tmp_path: Path) -> None:
    table = every_type(50)
    build_pages(table, tmp_path / "s", on="k")
    (tmp_path / "empty").mkdir()
    for source, on, error, words in (
        (tmp_path / "s", "word", SchemaError, r"laid out by the key \(k\)"),
        (tmp_path / "s", "wrod", SchemaError, "did you mean 'word'"),
        (table, "kk", SchemaError, "did you mean"),
        (table, None, ConfigError, "give on="),
        (tmp_path / "absent", "k", StoreError, "does not exist"),
        (tmp_path / "empty", "k", StoreError, "no Parquet file"),
        (3, "k", ConfigError, "cannot be int"),
    ):
        with pytest.raises(error, match=words):
            open_master(source, on)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="only a page store"):
        open_master(table, "k", version=2)
    (tmp_path / "s" / "CURRENT").unlink()
    with pytest.raises(StoreError, match="CURRENT"):
        open_master(tmp_path / "s", "k")


def test_a_table_of_two_columns_with_one_name() -> None:
    column = pa.array([1])
    with pytest.raises(SchemaError, match="2 columns named 'k'"):
        open_master(pa.table([column, column], names=["k", "k"]), "k")


def test_the_range_of_codes(tmp_path: Path) -> None:
    """Known to within a page; None where nobody knows it without reading R."""
    keys = np.random.default_rng(1).permutation(np.arange(-500, 4500, 2))
    table = pa.table({"k": keys, "word": [str(key) for key in keys]})
    pq.write_table(table, tmp_path / "r.parquet", row_group_size=300)
    pq.write_table(table, tmp_path / "bare.parquet", write_statistics=False)
    wanted = (keys, np.arange(len(keys), dtype=np.float64))
    for master, slack in (
        (MemoryMaster(table, "k"), 0),
        (ParquetMaster(tmp_path / "r.parquet", "k"), 0),
        (build_pages(table, tmp_path / "s", on="k", page_rows=16), 32),
        (build_pages(table, tmp_path / "f", on="k", page_rows=16, order="frequency", frequency=wanted), 1000),
    ):
        assert master.code_range is not None
        low, high = master.code_range
        assert low == -500
        assert high == pytest.approx(4498, abs=slack)
    assert ParquetMaster(tmp_path / "bare.parquet", "k").code_range is None
    assert ParquetMaster(tmp_path / "r.parquet", "word").code_range is None
    assert MemoryMaster(table.slice(0, 0), "k").code_range is None
    assert build_pages(table.slice(0, 0), tmp_path / "none", on="k").code_range is None
