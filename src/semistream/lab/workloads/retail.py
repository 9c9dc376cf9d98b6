"""A retailer: products, customers and stores as master data, and its sales as a skewed, bursty stream.

The shape of the join this package is for: facts that arrive in bursts, most of them about few products, with
keys that the dimension tables sometimes do not know and sometimes not even given. Columns are as mixed as those
of a real warehouse: text, decimals, dates, nested ones, with gaps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.errors import ConfigError
from semistream.lab.workloads.arrivals import SECOND, BurstyArrivals
from semistream.lab.workloads.cells import Draws, days, decimals, numbered
from semistream.lab.workloads.counter import scaled, stream_seed, unit, words_at
from semistream.lab.workloads.retail_words import (
    BRANDS,
    CATEGORIES,
    CITIES,
    CITY_COUNTRY,
    COLOURS,
    PEOPLE,
    PERSON_MAILBOX,
    PRODUCT_CATEGORY,
    PRODUCTS,
    SEGMENTS,
    STREETS,
    TAGS,
)
from semistream.lab.workloads.workload import Workload
from semistream.lab.workloads.zipf import zipf_keys

_CENTS = pa.decimal128(9, 2)
_MOMENT = pa.timestamp("us", tz="UTC")
#: Equally likely each: most sales are of one piece at the full price.
_QUANTITIES = np.array([1] * 10 + [2, 2, 3, 4, 6, 12], dtype=np.int32)
_DISCOUNTS = np.array([0, 0, 0, 0, 0, 5, 10, 20], dtype=np.int64)
_OPENING = np.datetime64("2024-11-29T06:00:00", "us")


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in columns.items()])


def list_price(seed: int, product: np.ndarray) -> np.ndarray:
    """Hundredths: 0.99 to about 2,000, most of them low. A function of the product, so a sale knows it too."""
    draw = unit(words_at(stream_seed(seed, "products/price"), product))
    return np.asarray(np.exp(4.6 + 7.6 * draw**2).astype(np.int64) // 10 * 10 + 9)


@dataclass(frozen=True)
class Products(Workload):
    """The products, ids 1 .. n_rows in this order."""

    n_rows: int
    seed: int = 0

    @property
    def schema(self) -> pa.Schema:
        millimetres = pa.struct([(name, pa.int32()) for name in ("width_mm", "height_mm", "depth_mm")])
        return _schema(
            product_id=pa.int64(),
            sku=pa.string(),
            name=pa.string(),
            brand=pa.string(),
            category=pa.string(),
            colour=pa.string(),
            list_price=_CENTS,
            cost=_CENTS,
            weight_g=pa.int32(),
            launched=pa.date32(),
            active=pa.bool_(),
            size=millimetres,
            tags=pa.list_(pa.string()),
        )

    def _make(self, start: int, stop: int) -> list[pa.Array]:
        draws = Draws(self.seed, "products", start, stop)
        rows = np.arange(start, stop, dtype=np.int64)
        price = list_price(self.seed, rows)
        name = draws.below(len(PRODUCTS), "name")
        # 0 to 3 tags: neighbours in the list of tags, so that a row needs one draw for all of them.
        draw = draws.words("tags")
        offsets = np.concatenate(([0], np.cumsum(draw & np.uint64(3)))).astype(np.int32)
        lengths = np.diff(offsets)
        tag = np.repeat(scaled(draw, len(TAGS)) - offsets[:-1], lengths) + np.arange(offsets[-1])
        sizes = [pa.array((draws.below(1990, side) + 10).astype(np.int32)) for side in ("width", "height", "depth")]
        size_type = self.schema.field("size").type
        return [
            pa.array(rows + 1),
            numbered("P-", rows + 1, 9),
            PRODUCTS.take(pa.array(name)),
            draws.pick(BRANDS, "brand"),
            CATEGORIES.take(pa.array(PRODUCT_CATEGORY[name])),
            draws.pick(COLOURS, "colour"),
            decimals(price, 9),
            decimals(price * (40 + draws.below(40, "cost")) // 100, 9),
            pa.array((draws.below(20_000, "weight") + 5).astype(np.int32), mask=draws.missing(0.05, "weight")),
            days(np.datetime64("2012-01-01"), draws.below(4700, "launched")),
            pa.array(draws.unit("active") <= 0.93),
            pa.StructArray.from_arrays(sizes, fields=list(size_type)),
            pa.ListArray.from_arrays(pa.array(offsets), TAGS.take(pa.array(tag % len(TAGS)))),
        ]


@dataclass(frozen=True)
class Customers(Workload):
    """The customers, ids 1 .. n_rows in this order."""

    n_rows: int
    seed: int = 0

    @property
    def schema(self) -> pa.Schema:
        address = pa.struct(
            [("street", pa.string()), ("postcode", pa.string()), ("city", pa.string()), ("country", pa.string())]
        )
        return _schema(
            customer_id=pa.int64(),
            name=pa.string(),
            email=pa.string(),
            segment=pa.string(),
            born=pa.date32(),
            joined=_MOMENT,
            credit_limit=pa.decimal128(12, 2),
            consent=pa.bool_(),
            address=address,
        )

    def _make(self, start: int, stop: int) -> list[pa.Array]:
        draws = Draws(self.seed, "customers", start, stop)
        rows = np.arange(start, stop, dtype=np.int64)
        person = pa.array(draws.below(len(PEOPLE), "name"))
        city = draws.below(len(CITIES), "city")
        email = pc.binary_join_element_wise(
            PERSON_MAILBOX.take(person), numbered("", rows + 1, 9), "@mail.example", "", null_handling="skip"
        )
        joined = _OPENING.astype(np.int64) - draws.below(3_000 * 86_400, "joined") * 1_000_000
        street = draws.pick(STREETS, "street")
        places = [street, numbered("", draws.below(90_000, "postcode") + 10_000, 5)]
        places += [CITIES.take(pa.array(city)), CITY_COUNTRY.take(pa.array(city))]
        segment = SEGMENTS.take(pa.array((draws.unit("segment") ** 2 * len(SEGMENTS)).astype(np.int64) % len(SEGMENTS)))
        return [
            pa.array(rows + 1),
            PEOPLE.take(person),
            email,
            segment,
            days(np.datetime64("1935-01-01"), draws.below(26_000, "born"), draws.missing(0.1, "born")),
            pa.array(joined).cast(_MOMENT),
            decimals(draws.below(500, "credit") * 10_000, 12),
            pa.array(draws.unit("consent") <= 0.6),
            pa.StructArray.from_arrays(places, fields=list(self.schema.field("address").type)),
        ]


@dataclass(frozen=True)
class Stores(Workload):
    """The stores, ids 1 .. n_rows in this order; few enough to be broadcast."""

    n_rows: int
    seed: int = 0

    @property
    def schema(self) -> pa.Schema:
        return _schema(
            store_id=pa.int32(),
            store=pa.string(),
            city=pa.string(),
            country=pa.string(),
            opened=pa.date32(),
            area_m2=pa.int32(),
        )

    def _make(self, start: int, stop: int) -> list[pa.Array]:
        draws = Draws(self.seed, "stores", start, stop)
        rows = np.arange(start, stop, dtype=np.int64)
        city = pa.array(draws.below(len(CITIES), "city"))
        return [
            pa.array((rows + 1).astype(np.int32)),
            numbered("Store ", rows + 1, 5),
            CITIES.take(city),
            CITY_COUNTRY.take(city),
            days(np.datetime64("1990-01-01"), draws.below(12_000, "opened")),
            pa.array((draws.below(4_800, "area") + 200).astype(np.int32)),
        ]


@dataclass(frozen=True)
class Sales(Workload):
    """The stream: one row for each product sold.

    Products follow Zipf's law with `product_exponent`, customers with a milder one. Of the customer and product
    ids, each on its own, `unknown` are not in the dimension table (new master data comes late) and `no_key` null.
    """

    products: int
    customers: int
    stores: int
    seed: int = 0
    rate_per_s: float = 100_000.0
    product_exponent: float = 1.0
    customer_exponent: float = 0.6
    unknown: float = 0.02
    no_key: float = 0.005
    n_rows: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if min(self.products, self.customers, self.stores) < 1 or not 0 <= self.unknown + self.no_key <= 1:
            raise ConfigError(
                f"{self.products} products, {self.customers} customers, {self.stores} stores, unknown={self.unknown}, "
                f"no_key={self.no_key}; allowed are at least one of each, and shares that add up to 1 at most"
            )

    @property
    def schema(self) -> pa.Schema:
        return _schema(
            order_id=pa.int64(),
            sold_at=_MOMENT,
            store_id=pa.int32(),
            customer_id=pa.int64(),
            product_id=pa.int64(),
            qty=pa.int32(),
            price=_CENTS,
        )

    @cached_property
    def arrivals(self) -> BurstyArrivals:
        """When the sales happen."""
        return BurstyArrivals(self.rate_per_s, seed=stream_seed(self.seed, "sales/arrivals"))

    def _ids(self, draws: Draws, what: str, keys: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        fate = draws.unit(f"{what} known")
        ids = keys + 1
        ids[fate <= self.unknown] += n
        return ids, (fate > self.unknown) & (fate <= self.unknown + self.no_key)

    def _make(self, start: int, stop: int) -> list[pa.Array]:
        draws = Draws(self.seed, "sales", start, stop)
        count = stop - start
        product = zipf_keys(self.products, self.product_exponent, stream_seed(self.seed, "sales/product"), start, count)
        customer = zipf_keys(
            self.customers, self.customer_exponent, stream_seed(self.seed, "sales/customer"), start, count
        )
        product_id, no_product = self._ids(draws, "product", product, self.products)
        customer_id, no_customer = self._ids(draws, "customer", customer, self.customers)
        word = draws.words("rest")
        # One word, three independent draws: the store from its high bits, quantity and discount from low ones.
        quantity = _QUANTITIES[word & np.uint64(15)]
        discount = _DISCOUNTS[(word >> np.uint64(4)) & np.uint64(7)]
        price = list_price(self.seed, product_id - 1) * (100 - discount) // 100
        moment = _OPENING.astype(np.int64) + self.arrivals.times(start, stop) // (SECOND // 1_000_000)
        return [
            pa.array(np.arange(start + 1, stop + 1, dtype=np.int64)),
            pa.array(moment).cast(_MOMENT),
            pa.array((scaled(word, self.stores) + 1).astype(np.int32)),
            pa.array(customer_id, mask=no_customer),
            pa.array(product_id, mask=no_product),
            pa.array(quantity),
            decimals(price, 9),
        ]


@dataclass(frozen=True)
class Retail:
    """The whole scenario in one size.

    >>> shop = Retail(n_products=1_000, n_customers=2_000, n_stores=10)
    >>> shop.sales.rows(5, 7).num_rows, shop.products.table().num_rows
    (2, 1000)
    """

    n_products: int = 1_000_000
    n_customers: int = 2_000_000
    n_stores: int = 500
    seed: int = 0
    rate_per_s: float = 100_000.0

    @property
    def products(self) -> Products:
        return Products(self.n_products, self.seed)

    @property
    def customers(self) -> Customers:
        return Customers(self.n_customers, self.seed)

    @property
    def stores(self) -> Stores:
        return Stores(self.n_stores, self.seed)

    @property
    def sales(self) -> Sales:
        """The stream over just these tables; `dataclasses.replace` changes its skew or its shares."""
        return Sales(self.n_products, self.n_customers, self.n_stores, self.seed, self.rate_per_s)
