"""The retailer: dimensions with unique keys, sales with the skew, the gaps and the bursts they promise."""

from __future__ import annotations

from dataclasses import replace
from decimal import ROUND_FLOOR, Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.lab.workloads.estimators import chi_square_p

from semistream.errors import ConfigError
from semistream.lab.workloads.retail import Products, Retail, Sales
from semistream.lab.workloads.workload import Workload
from semistream.lab.workloads.zipf import zipf_probabilities
from semistream.planner.open import open_join
from semistream.testing import assert_same_rows, reference_join, run_join

SHOP = Retail(n_products=1_000, n_customers=2_000, n_stores=25, seed=11)
ROWS = 60_000


@pytest.fixture(scope="module")
def sales() -> pa.Table:
    return SHOP.sales.table(0, ROWS)


@pytest.mark.parametrize("table", [SHOP.products, SHOP.customers, SHOP.stores], ids=["products", "customers", "stores"])
def test_dimensions_have_one_row_a_key(table: Workload) -> None:
    rows = table.table()
    key = rows.column(0).to_numpy()
    assert np.array_equal(key, np.arange(1, table.n_rows + 1))
    assert all(column.null_count < rows.num_rows / 5 for column in rows.columns)


def test_columns_are_mixed_and_filled() -> None:
    products, customers = SHOP.products.table(), SHOP.customers.table()
    kinds = {str(kind) for kind in [*products.schema.types, *customers.schema.types]}
    assert {"string", "bool", "date32[day]", "decimal128(9, 2)", "timestamp[us, tz=UTC]"} < kinds
    assert any(kind.startswith("struct") for kind in kinds)
    assert any(kind.startswith("list") for kind in kinds)
    assert 0 < products.column("weight_g").null_count < 100
    assert len(products.column("name").unique()) > 900
    assert len(customers.column("email").unique()) == 2_000
    assert len(products.column("category").unique()) == 9
    assert set(pc.list_value_length(products.column("tags")).to_pylist()) == {0, 1, 2, 3}
    assert pc.all(pc.less(products.column("cost"), products.column("list_price"))).as_py()
    prices = products.column("list_price").to_pylist()
    assert Decimal("0.99") <= min(prices) < 10 < 1_000 < max(prices) < 2_100


def test_keys_that_match_nothing(sales: pa.Table) -> None:
    for name, known in (("product_id", 1_000), ("customer_id", 2_000)):
        ids = sales.column(name)
        assert ids.null_count / ROWS == pytest.approx(0.005, abs=0.0015)
        unknown = pc.greater(ids, known)
        assert pc.sum(unknown).as_py() / ROWS == pytest.approx(0.02, abs=0.003)
        assert pc.min(ids).as_py() >= 1
        assert pc.max(ids).as_py() <= 2 * known
    both = pc.and_(sales.column("product_id").is_null(), sales.column("customer_id").is_null())
    assert pc.sum(both).as_py() <= 10


@pytest.mark.parametrize(("name", "known", "exponent"), [("product_id", 1_000, 1.0), ("customer_id", 2_000, 0.6)])
def test_skew(sales: pa.Table, name: str, known: int, exponent: float) -> None:
    ids = sales.column(name).drop_null().to_numpy()
    # Unknown ids are drawn by the same law, one domain further up. Ranks are known only from the counts, so
    # the fit is of the ranks that counts cannot confuse: the share of the k most frequent, for a few k.
    counts = np.sort(np.bincount((ids - 1) % known, minlength=known))[::-1]
    shares = np.cumsum(counts) / counts.sum()
    expected = np.cumsum(zipf_probabilities(known, exponent))
    assert shares[[0, 4, 19, 99]] == pytest.approx(expected[[0, 4, 19, 99]], abs=0.015)


def test_stores_are_even(sales: pa.Table) -> None:
    counts = np.bincount(sales.column("store_id").to_numpy() - 1, minlength=25)
    assert chi_square_p(counts, np.full(25, ROWS / 25)) > 1e-4


def test_a_sale_knows_the_price_of_its_product(sales: pa.Table) -> None:
    joined = reference_join(sales.slice(0, 3_000), SHOP.products.table(), "product_id", "inner", select=["list_price"])
    pairs = zip(joined.column("price").to_pylist(), joined.column("list_price").to_pylist(), strict=True)
    # What a discount leaves is cut to whole hundredths.
    cut = Decimal("0.01")
    discounts = {
        tuple(off for off in (0, 5, 10, 20) if (full * (100 - off) / 100).quantize(cut, ROUND_FLOOR) == paid)
        for paid, full in pairs
    }
    assert () not in discounts
    assert {(0,), (5,), (10,), (20,)} <= discounts


def test_sales_come_in_order_and_in_bursts(sales: pa.Table) -> None:
    moments = sales.column("sold_at").cast(pa.int64()).to_numpy()
    assert (np.diff(moments) >= 0).all()
    counts = np.bincount((moments - moments[0]) // 10_000)
    # Poisson counts would have a variance of about their mean.
    assert counts.var() > 20 * counts.mean()


def test_independent_columns(sales: pa.Table) -> None:
    store, quantity = sales.column("store_id").to_numpy(), sales.column("qty").to_numpy()
    assert abs(np.corrcoef(store, quantity)[0, 1]) < 0.02
    assert set(np.unique(quantity)) == {1, 2, 3, 4, 6, 12}


def test_shares_can_be_chosen() -> None:
    odd = replace(SHOP.sales, unknown=0.3, no_key=0.2).table(0, 20_000)
    assert odd.column("product_id").null_count / 20_000 == pytest.approx(0.2, abs=0.015)
    clean = replace(SHOP.sales, unknown=0.0, no_key=0.0).table(0, 5_000)
    assert clean.column("customer_id").null_count == 0
    assert pc.max(clean.column("product_id")).as_py() <= 1_000


def test_sales_join_with_their_dimensions(sales: pa.Table) -> None:
    stream = sales.slice(0, 2_000)
    for dimension, on in ((SHOP.products, "product_id"), (SHOP.customers, "customer_id")):
        master = dimension.table()
        with open_join(
            "sweepjoin", master=master, on=on, memory="8MB", how="left", stream_schema=stream.schema
        ) as join:
            assert_same_rows(run_join(join, stream), reference_join(stream, master, on, "left"))


def test_seeds_differ() -> None:
    assert not Products(100, 1).table().equals(Products(100, 2).table())


def test_impossible_shops_are_refused() -> None:
    with pytest.raises(ConfigError, match="0 products"):
        Sales(0, 1, 1)
    with pytest.raises(ConfigError, match=r"unknown=0\.9, no_key=0\.2"):
        Sales(1, 1, 1, unknown=0.9, no_key=0.2)
