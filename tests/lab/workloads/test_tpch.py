"""TPC-H at a small scale: sizes and keys as the benchmark's rules have them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from semistream.errors import ConfigError, SemiStreamError, StoreError
from semistream.lab.workloads import tpch as module
from semistream.lab.workloads.tpch import ON, Tpch, busy_customers, tpch
from semistream.lab.workloads.zipf import zipf_probabilities
from semistream.testing import assert_same_rows, reference_join


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tpch:
    return tpch(tmp_path_factory.mktemp("cache"), 0.01)


def test_row_counts_and_keys(tables: Tpch) -> None:
    customers = pq.read_table(tables.customer, columns=["c_custkey"]).column(0).to_numpy()
    orders = pq.read_table(tables.orders, columns=["o_custkey"]).column(0).to_numpy()
    assert (tables.customers_count, tables.orders_count) == (1_500, 15_000)
    assert np.array_equal(np.sort(customers), np.arange(1, 1_501))
    assert len(orders) == tables.orders_count
    assert np.isin(orders, customers).all()
    # Every third customer never orders; each of the others may.
    assert not (orders % 3 == 0).any()
    assert len(np.unique(orders)) > 900


def test_every_order_finds_one_customer(tables: Tpch) -> None:
    orders, customers = pq.read_table(tables.orders).slice(0, 500), pq.read_table(tables.customer)
    joined = reference_join(orders, customers, ON)
    assert joined.num_rows == 500
    assert_same_rows(joined.select(orders.column_names), orders)


def without_tool(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(module.sys, "executable", str(folder / "python"))


def test_tables_are_made_once(tables: Tpch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_tool(monkeypatch, tmp_path)
    assert tpch(tables.folder.parent, 0.01) == tables
    assert [path.name for path in tables.folder.parent.iterdir()] == ["tpch-sf0.01"]


def test_a_missing_tool_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_tool(monkeypatch, tmp_path)
    with pytest.raises(ConfigError, match=r"tpchgen-cli is not installed.*semistream\[workloads\]"):
        tpch(tmp_path / "cache", 0.01)
    assert not (tmp_path / "cache").exists()


def test_a_tool_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / module.TOOL
    tool.write_text("#!/bin/sh\necho no space left\nexit 3\n")
    tool.chmod(0o755)
    monkeypatch.setattr(module.sys, "executable", str(tmp_path / "python"))
    with pytest.raises(SemiStreamError, match="status 3: no space left"):
        tpch(tmp_path / "cache", 0.01)
    assert list((tmp_path / "cache").iterdir()) == []


def test_half_a_cache_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tpch-sf0.01").mkdir()
    (tmp_path / "tpch-sf0.01" / "customer.parquet").touch()
    with pytest.raises(StoreError, match=r"lacks orders\.parquet; remove the folder"):
        tpch(tmp_path, 0.01)


def test_scale_is_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="scale_factor=0"):
        tpch(tmp_path, 0)


def test_busy_customers_follow_zipfs_law() -> None:
    drawn = busy_customers(3_000, 1.0, seed=3, start=0, count=200_000)
    assert drawn.min() >= 1
    assert drawn.max() <= 3_000
    assert not (drawn % 3 == 0).any()
    counts = np.sort(np.unique(drawn, return_counts=True)[1])[::-1]
    expected = 200_000 * zipf_probabilities(2_000, 1.0)
    assert counts[:50].sum() == pytest.approx(expected[:50].sum(), rel=0.02)
    assert counts[0] == pytest.approx(expected[0], rel=0.05)


def test_busy_customers_can_be_drawn_from_anywhere() -> None:
    whole = busy_customers(1_000, 1.0, seed=3, start=0, count=500)
    assert np.array_equal(busy_customers(1_000, 1.0, seed=3, start=200, count=300), whole[200:])
    assert not np.array_equal(busy_customers(1_000, 1.0, seed=4, start=0, count=500), whole)
    assert busy_customers(1, 1.0, seed=3, start=0, count=2).tolist() == [1, 1]
    with pytest.raises(ConfigError, match="n_customers=0"):
        busy_customers(0, 1.0, seed=3, start=0, count=1)
