"""The inputs of the operator tests: named key kinds and shapes for tables of cases, hypothesis strategies.

A case is described by integers ("ids"): which key a tuple has. A key kind turns ids into key columns, so one
shape serves every kind. Master data holds even ids from 0 on; odd ids are gaps between keys, negative ones
lie below the smallest key and large ones above the greatest. Every stream tuple carries its own number `n`:
a tuple that is lost, doubled or joined with the wrong row shows.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
from hypothesis import settings

from semistream.testing import reference_join, split

PAGE_ROWS = 8
HOWS = ("inner", "left", "semi", "anti")

Ids = np.ndarray


# --- keys ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeyKind:
    """How an id becomes a key. `build(ids, is_null, side)` gives one array for each key column."""

    columns: tuple[str, ...]
    build: Callable[[Ids, np.ndarray, str], list[pa.Array]] = field(repr=False)

    @property
    def on(self) -> str | list[str]:
        return self.columns[0] if len(self.columns) == 1 else list(self.columns)

    def arrays(self, ids: Ids, is_null: np.ndarray, side: str = "stream") -> dict[str, pa.Array]:
        return dict(zip(self.columns, self.build(ids, is_null, side), strict=True))


def _single(kind: pa.DataType, value: Callable[[int], object]) -> KeyKind:
    def build(ids: Ids, is_null: np.ndarray, side: str) -> list[pa.Array]:
        values = [None if null else value(int(i)) for i, null in zip(ids, is_null, strict=True)]
        return [pa.array(values, kind)]

    return KeyKind(("k",), build)


def _text(i: int) -> str:
    """Unicode of all widths, the empty string, and keys that are prefixes of each other."""
    return "" if i == 0 else ("ключ", "鍵🔑", "k", "naïve")[i % 4] + "x" * (i // 4 % 40) + str(i // 160 or "")


def _composite(ids: Ids, is_null: np.ndarray, side: str) -> list[pa.Array]:
    """Two columns that are only together a key; a null sits in the one, the other, or both."""
    numbers = [None if null and i % 3 != 1 else i // 6 for i, null in zip(ids.tolist(), is_null, strict=True)]
    texts = [None if null and i % 3 != 0 else "äbcdé語"[i % 6] for i, null in zip(ids.tolist(), is_null, strict=True)]
    return [pa.array(numbers, pa.int32()), pa.array(texts, pa.string())]


def _floats(ids: Ids, is_null: np.ndarray, side: str) -> list[pa.Array]:
    """Id 0 is a zero (negative in the stream), id 2 is NaN: both must be found."""
    values = ids.astype(np.float64) / 3
    values[ids == 0] = -0.0 if side == "stream" else 0.0
    values[ids == 2] = np.nan
    return [pa.array(values, mask=is_null)]


KEY_KINDS: dict[str, KeyKind] = {
    "int64": _single(pa.int64(), lambda i: (i - 50) * 1_000_000_007),
    "int32": _single(pa.int32(), lambda i: (i - 50) * 10_007),
    "string": _single(pa.string(), _text),
    "date32": _single(pa.date32(), lambda i: datetime.date(1970, 1, 1) + datetime.timedelta(days=(i - 50) * 11)),
    "decimal128": _single(pa.decimal128(30, 4), lambda i: Decimal(i - 50) * Decimal("1234567890123456.0625")),
    "composite": KeyKind(("k1", "k2"), _composite),
}

MORE_KEY_KINDS: dict[str, KeyKind] = {
    "int8": _single(pa.int8(), lambda i: i % 256 - 128),
    "uint64": _single(pa.uint64(), lambda i: (1 << 63) + i * 3 - 300),
    "float64": KeyKind(("k",), _floats),
    "short_decimal": _single(pa.decimal128(9, 2), lambda i: Decimal(i - 50) / 4),
    "timestamp": _single(pa.timestamp("us", tz="UTC"), lambda i: (i - 50) * 86_400_000_001),
    "binary": _single(pa.binary(), lambda i: bytes([i % 256, 0, i // 256 % 256])),
    "fixed_binary": _single(pa.binary(3), lambda i: bytes([0, i % 256, i // 256 % 256])),
    "large_string": _single(pa.large_string(), _text),
    "dictionary": _single(pa.dictionary(pa.int32(), pa.string()), _text),
}


# --- shapes --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """Ids of both sides and the batch sizes of the stream; no batch at all when `batch_rows` is empty."""

    stream: Ids
    master: Ids
    batch_rows: Sequence[int]


def _zipf(rng: np.random.Generator, n_keys: int, size: int, exponent: float) -> Ids:
    """Ids of a master with `n_keys` keys, hot ones scattered."""
    weights = np.arange(1, n_keys + 1, dtype=np.float64) ** -exponent
    return 2 * rng.permutation(n_keys)[rng.choice(n_keys, size, p=weights / weights.sum())]


def _shapes() -> dict[str, Shape]:
    rng = np.random.default_rng(20260501)
    none = np.empty(0, dtype=np.int64)
    unique = 2 * rng.permutation(120)
    # The first and the last key have the longest runs: 40 rows are five pages and more.
    runs = 2 * np.repeat(np.arange(24), np.concatenate(([40], rng.integers(1, 20, 22), [27])))
    absent = np.concatenate((np.arange(-20, 0), np.arange(1, 240, 6), np.arange(241, 260)))
    some_absent = np.concatenate((rng.choice(unique, 140), rng.choice(absent, 60)))
    return {
        "one_to_one": Shape(rng.permutation(unique), unique, [37]),
        "one_to_many": Shape(rng.choice(unique[:50], 300), unique, [50, 1, 80]),
        "many_to_many": Shape(2 * rng.integers(0, 24, 150), rng.permutation(runs), [60]),
        "some_unmatched": Shape(rng.permutation(some_absent), unique, [33]),
        "all_unmatched": Shape(rng.choice(absent, 150), unique, [64]),
        "empty_master": Shape(rng.integers(0, 40, 90), none, [32]),
        "empty_stream": Shape(none, unique, []),
        "empty_batches": Shape(rng.choice(unique, 30), unique, [0, 10, 0, 0, 15, 5, 0, 1]),
        "one_row_batches": Shape(rng.choice(unique, 40), unique, [1]),
        "one_huge_batch": Shape(rng.choice(unique, 1500), unique, [1500]),
        "odd_sizes": Shape(rng.integers(-10, 450, 307), 2 * rng.integers(0, 211, 211), [17]),
        "one_key": Shape(np.repeat(2, 45), np.repeat(2, 43), [11]),
        "skew_0": Shape(_zipf(rng, 120, 300, 0.0), unique, [70]),
        "skew_0.5": Shape(_zipf(rng, 120, 300, 0.5), unique, [70]),
        "skew_1": Shape(_zipf(rng, 120, 300, 1.0), unique, [70]),
        "skew_1.5": Shape(_zipf(rng, 120, 300, 1.5), unique, [70]),
    }


SHAPES = _shapes()


@dataclass(frozen=True, eq=False)
class Case:
    """A join to be done: both inputs, and on what."""

    on: str | list[str]
    stream: pa.Table
    master: pa.Table
    batches: list[pa.RecordBatch]

    def expected(self, how: str, select: Sequence[str] | None = None) -> pa.Table:
        return _expected(self, how, None if select is None else tuple(select))


@lru_cache(maxsize=1024)
def _expected(case: Case, how: str, select: tuple[str, ...] | None) -> pa.Table:
    return reference_join(case.stream, case.master, case.on, how, select)


def tables(
    kind: KeyKind, stream: Ids, master: Ids, stream_null: np.ndarray, master_null: np.ndarray
) -> tuple[pa.Table, pa.Table]:
    """Stream and master tables with these keys. Both have a column `n`: the names clash on purpose."""
    numbers = np.arange(len(stream))
    left = {
        "n": pa.array(numbers, pa.int64()),
        **kind.arrays(stream, stream_null, "stream"),
        "tag": pa.array([None if i % 7 == 3 else f"t{i % 5}" for i in numbers.tolist()], pa.string()),
    }
    numbers = np.arange(len(master))
    right = {
        "name": pa.array([None if i % 6 == 4 else f"имя {i}" for i in numbers.tolist()], pa.string()),
        **kind.arrays(master, master_null, "master"),
        "n": pa.array(numbers, pa.int32()),
        "price": pa.array(numbers / 8, mask=numbers % 5 == 2),
        "live": pa.array(numbers % 3 == 0, mask=numbers % 11 == 7),
    }
    return pa.table(left), pa.table(right)


@lru_cache(maxsize=512)
def case(kind_name: str, shape_name: str) -> Case:
    """The case of a key kind and a shape; about one key in fifteen is null on either side."""
    kind = {**KEY_KINDS, **MORE_KEY_KINDS}[kind_name]
    shape = SHAPES[shape_name]
    rng = np.random.default_rng(len(kind_name) * 1000 + len(shape_name))
    nulls = [rng.random(len(ids)) < 1 / 15 for ids in (shape.stream, shape.master)]
    stream, master = tables(kind, shape.stream, shape.master, *nulls)
    batches = split(stream, shape.batch_rows) if shape.batch_rows else []
    return Case(kind.on, stream, master, batches)


@lru_cache(maxsize=64)
def pressing_case(kind_name: str, seed: int, skew: float = 1.0, n_stream: int = 4_000, n_master: int = 2_500) -> Case:
    """More than the least budgets hold: pending tables fill, chunks expire, caches evict.

    Keys are drawn with repetition on the master's side, so a third of the domain is absent and the rest m:n.
    """
    kind = {**KEY_KINDS, **MORE_KEY_KINDS}[kind_name]
    rng = np.random.default_rng(seed)
    stream_ids = _zipf(rng, max(n_master, 1), n_stream, skew) // 2
    master_ids = rng.integers(0, max(n_master, 1), n_master)
    nulls = [rng.random(size) < 1 / 50 for size in (n_stream, n_master)]
    stream, master = tables(kind, stream_ids, master_ids, *nulls)
    long = pa.array(["x" * (200 if i % 50 == 0 else i % 30) for i in range(n_master)])
    return Case(kind.on, stream, master.append_column("long", long), split(stream, [1_000, 1, 0, 700]))


# --- every type of column ------------------------------------------------------------------------------


def wide_table(ids: Ids, seed: int = 0) -> pa.Table:
    """A table with a column of every type Arrow data is likely to bring, nulls in all of them."""
    rng = np.random.default_rng(seed)
    n = len(ids)
    numbers = ids.tolist()

    def nullable(values: Sequence[object], kind: pa.DataType) -> pa.Array:
        hidden = rng.random(n) < 0.2
        return pa.array([None if null else value for value, null in zip(values, hidden, strict=True)], kind)

    words = [_text(i) for i in numbers]
    return pa.table(
        {
            "k": pa.array(ids, pa.int64()),
            "flag": nullable([i % 2 == 0 for i in numbers], pa.bool_()),
            "tiny": nullable([i % 100 for i in numbers], pa.int8()),
            "half": nullable([i / 4 for i in numbers], pa.float32()),
            "real": nullable([float("nan") if i % 5 == 0 else i / 3 for i in numbers], pa.float64()),
            "word": nullable(words, pa.string()),
            "large_word": nullable(words, pa.large_string()),
            "view_word": nullable(words, pa.string_view()),
            "blob": nullable([bytes([i % 256]) * (i % 9) for i in numbers], pa.binary()),
            "fixed_blob": nullable([bytes([i % 256]) * 5 for i in numbers], pa.binary(5)),
            "day": nullable(numbers, pa.date32()),
            "moment": nullable([i * 1_000_000_007 for i in numbers], pa.timestamp("ns", tz="Europe/Paris")),
            "clock": nullable([i * 1_000 % 86_400_000_000 for i in numbers], pa.time64("us")),
            "span": nullable(numbers, pa.duration("ms")),
            "money": nullable([Decimal(i) / 8 for i in numbers], pa.decimal128(18, 3)),
            "big_money": nullable([Decimal(i) * 10**20 for i in numbers], pa.decimal256(50, 2)),
            "category": nullable([word[:3] for word in words], pa.dictionary(pa.int8(), pa.string())),
            "numbers": nullable([[i, None, -i][: i % 4] for i in numbers], pa.list_(pa.int64())),
            "words": nullable([[words[j]] * (i % 3) for j, i in enumerate(numbers)], pa.list_(pa.string())),
            "pair": nullable([[i, i + 1] for i in numbers], pa.list_(pa.int16(), 2)),
            "record": nullable(
                [{"a": i, "b": None if i % 3 else words[j]} for j, i in enumerate(numbers)],
                pa.struct([("a", pa.int32()), ("b", pa.string())]),
            ),
            "mapping": nullable([[("x", i)] * (i % 2) for i in numbers], pa.map_(pa.string(), pa.int32())),
            "nothing": pa.nulls(n),
        }
    )


# --- hypothesis ----------------------------------------------------------------------------------------


def examples(count: int) -> settings:
    """So many random joins for each operator; ten times as many with `--hypothesis-profile=thorough`."""
    return settings(max_examples=count * (10 if settings.get_current_profile_name() == "thorough" else 1))


@dataclass(frozen=True)
class RandomJoin:
    """One random join: input, batch boundaries, what is asked for, and how tight the memory is."""

    kind: str
    case: Case
    how: str
    select: list[str] | None
    page_rows: int
    budget_factor: float

    def __repr__(self) -> str:
        sizes = [batch.num_rows for batch in self.case.batches]
        return (
            f"RandomJoin(kind={self.kind!r}, how={self.how!r}, select={self.select}, "
            f"page_rows={self.page_rows}, budget_factor={self.budget_factor}, batches={sizes},\n"
            f"  stream={self.case.stream.to_pydict()},\n  master={self.case.master.to_pydict()})"
        )


@st.composite
def id_lists(draw: st.DrawFn, max_size: int, max_id: int) -> tuple[Ids, np.ndarray]:
    """Ids and which of them are null. Runs are drawn as (id, length), so long runs are likely."""
    runs = draw(st.lists(st.tuples(st.integers(-1, max_id), st.integers(1, 12)), max_size=max_size))
    ids = np.array([i for i, length in runs for _ in range(length)], dtype=np.int64)
    if draw(st.booleans()):
        ids = np.random.default_rng(draw(st.integers(0, 99))).permutation(ids)
    return np.maximum(ids, 0), ids < 0


@st.composite
def random_joins(draw: st.DrawFn, kinds: Sequence[str] | None = None) -> RandomJoin:
    """Joins of a few to some hundred rows. A small id range makes m:n likely, a large one absent keys."""
    name = draw(st.sampled_from(sorted(kinds or {**KEY_KINDS, **MORE_KEY_KINDS})))
    kind = {**KEY_KINDS, **MORE_KEY_KINDS}[name]
    max_id = draw(st.sampled_from([2, 12, 120]))
    stream_ids, stream_null = draw(id_lists(24, max_id))
    master_ids, master_null = draw(id_lists(24, max_id))
    stream, master = tables(kind, stream_ids, master_ids, stream_null, master_null)
    sizes = [*draw(st.lists(st.integers(0, 30), max_size=6)), draw(st.integers(1, 60))]
    return RandomJoin(
        kind=name,
        case=Case(kind.on, stream, master, split(stream, sizes)),
        how=draw(st.sampled_from(HOWS)),
        select=draw(st.none() | st.lists(st.sampled_from(["name", "n", "price", "live"]), unique=True)),
        page_rows=draw(st.sampled_from([1, 2, 3, 8, 64])),
        budget_factor=draw(st.sampled_from([1.0, 1.3, 2.0, 8.0])),
    )
