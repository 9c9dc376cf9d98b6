"""Stores written by a Spark job are what `build_pages` writes, whatever the keys, the sizes and the mishaps."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import re
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.master.decoding import read_all

from semistream import build_pages, open_join
from semistream.errors import ConfigError, KeyTypeError, SchemaError, SemiStreamWarning, StoreError
from semistream.master.format import versions_in
from semistream.master.leases import pin
from semistream.master.pages import PageMaster
from semistream.spark import layout
from semistream.spark.layout import build_master
from semistream.testing import as_multiset, assert_same_rows, reference_join, run_join

INT64 = np.iinfo(np.int64)
UTC = datetime.UTC

#: SQL type of the key columns, and values that sort or code in surprising ways; None is a null key
KEYS: dict[str, tuple[str, list[object]]] = {
    "tinyint": ("k tinyint", [*range(-128, 128, 5), None]),
    "smallint": ("k smallint", [*range(-32768, 32767, 1500), 0, None]),
    "int": ("k int", [-(2**31), -1, 0, 1, 2**31 - 1, *range(-99, 99, 7), None]),
    "bigint": ("k bigint", [int(INT64.min), int(INT64.max), -1, 0, 1, *range(-(10**12), 10**12, 10**11), None]),
    "boolean": ("k boolean", [True, False, None]),
    "float": ("k float", [float("nan"), 0.0, -0.0, float("inf"), -float("inf"), 1.5, -1.5, 1e-40, -1e-40, -2.0, None]),
    "double": ("k double", [float("nan"), 0.0, -0.0, float("inf"), -float("inf"), 5e-324, -5e-324, -3.0, 7.0, None]),
    "date": ("k date", [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), datetime.date(1969, 12, 31), None]),
    "timestamp": (
        "k timestamp",
        [
            *(datetime.datetime(1969, 12, 31, 23, 59, 59, us, UTC) for us in (0, 1, 999_999)),
            *(datetime.datetime(2026, 10, 25, hour, 30, tzinfo=UTC) for hour in range(4)),
            None,
        ],
    ),
    "timestamp_ntz": ("k timestamp_ntz", [datetime.datetime(1900, 1, 1), datetime.datetime(2026, 10, 25, 2, 30), None]),
    "interval": (
        "k interval day to second",
        [datetime.timedelta(0), datetime.timedelta(microseconds=-1), datetime.timedelta(days=9), None],
    ),
    "string": ("k string", ["", "a", "ab", "ключ", "鍵🔑", "x" * 40, *map(str, range(40)), None]),
    "binary": ("k binary", [bytearray(b""), bytearray(b"\0"), bytearray(b"\xff" * 33), bytearray(b"ab"), None]),
    "decimal": ("k decimal(9, 2)", [Decimal(n) / 4 for n in range(-60, 60, 7)] + [None]),
    "long decimal": ("k decimal(38, 4)", [Decimal(n) * Decimal("1234567890123456789012.0625") for n in (-1, 0, 1, 99)]),
    "composite": ("k int, k2 string", [(1, "a"), (1, "b"), (2, "a"), (None, "a"), (2, None), (-1, ""), (7, "ü")]),
    "mixed": (
        "k double, k2 date, k3 boolean",
        [(-0.0, datetime.date(2020, 1, 1), True), (1.0, None, False), (float("nan"), datetime.date(1960, 1, 1), False)],
    ),
}


def key_names(kind: str) -> list[str]:
    return re.findall(r"(\bk\d?) ", KEYS[kind][0])


def every_key(spark: SparkSession) -> DataFrame:
    """All of them side by side, each key several times; every row has a number and a text of its own."""
    size = 3 * max(len(values) for _, values in KEYS.values())
    columns = [[value if isinstance(value, tuple) else (value,) for value in values] for _, values in KEYS.values()]
    rows = [
        (*itertools.chain(*(values[i % len(values)] for values in columns)), i, None if i % 7 == 0 else f"row {i}")
        for i in range(size)
    ]
    types = ", ".join(re.sub(r"\b(k\d?) ", rf"`{kind} \1` ", types) for kind, (types, _) in KEYS.items())
    return spark.createDataFrame(rows, f"{types}, n int, text string")


def rows_of(df: DataFrame) -> pa.Table:
    """The DataFrame as the store would keep it."""
    table = df.toArrow()
    fields = [
        column.with_type(pa.timestamp("us", "UTC")) if pa.types.is_timestamp(column.type) and column.type.tz else column
        for column in table.schema
    ]
    return table.cast(pa.schema(fields))


def content(master: PageMaster, direct: bool = False) -> pa.Table:
    return read_all(master, master.schema.names, 3, direct)[0]


def test_every_key(spark: SparkSession, tmp_path: Path) -> None:
    """Same rows and codes as in process, in several shards, for all key types; and Spark's codes are ours."""
    df = every_key(spark)
    table = rows_of(df)
    hashed = df.select(*(F.xxhash64(*(f"{kind} {k}" for k in key_names(kind))) for kind in KEYS)).toArrow()
    for kind, hashes in zip(KEYS, hashed.columns, strict=True):
        on = [f"{kind} {name}" for name in key_names(kind)]
        columns = [*on, "n", "text"]
        rows = table.select(columns)
        master = build_master(df.select(*columns), tmp_path / kind, on, page_rows=4, shards=3)
        local = build_pages(rows, tmp_path / f"{kind} local", on=on, page_rows=4)
        try:
            assert master.schema.equals(rows.schema)
            assert (master.n_rows, master.null_key_rows) == (local.n_rows, local.null_key_rows)
            expected, expected_codes = read_all(local, columns)
            for direct in (False, True):
                found, codes = read_all(master, columns, direct=direct)
                assert codes == expected_codes
                assert as_multiset(found) == as_multiset(expected)
            if not master.coder.exact:
                ours, _ = master.coder.rows.codes([rows[name].combine_chunks() for name in on])
                assert hashes.to_pylist() == ours.tolist()
        except AssertionError as error:
            error.add_note(kind)
            raise


@pytest.mark.parametrize("algorithm", ["sweepjoin", "hybridjoin", "cachejoin", "ssbj", "inlj", "oxhybridjoin"])
def test_joins(algorithm: str, sales: tuple[Path, pa.Table, pa.Table]) -> None:
    """Join results over a store of many short pages, mapped and read directly, in little memory and in plenty."""
    path, master, stream = sales
    for how, reads, memory in (("left", "mapped", "500KB"), ("inner", "direct", "500KB"), ("semi", "direct", "64MB")):
        with open_join(algorithm, master=path, on="k", how=how, reads=reads, memory=memory) as join:
            actual = run_join(join, stream.to_batches(max_chunksize=700))
        assert_same_rows(actual, reference_join(stream, master, "k", how))


@pytest.fixture(scope="module")
def sales(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table, pa.Table]:
    path = tmp_path_factory.mktemp("sales") / "r"
    rng = np.random.default_rng(5)
    keys = np.concatenate([rng.permutation(3000), np.full(300, 1500)])
    table = pa.table({"k": [f"p{k}" for k in keys], "price": keys * 2, "note": ["x" * (k % 50) for k in keys]})
    master = build_master(spark.createDataFrame(table), path, "k", page_rows=16, shards=9)
    assert len(master.manifest.shards) > 5
    stream = pa.table({"k": [f"p{k}" for k in rng.zipf(1.3, 3000) % 3300], "n": np.arange(3000)})
    return path, table, stream


def test_wide_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Nested columns, names that SQL would stumble over, and a session in another time zone."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        df = spark.sql(
            "select id % 50 as `a.b`, id as `K`, cast(id as string) as `k`, array(id, null) as `list of`, "
            "map('x', id) as `m`, named_struct('t', timestamp_micros(id * 1000003), 'u', array('a', null)) as `s`, "
            "timestamp_micros(id * 86400000001) as at, cast(id as decimal(20, 3)) as `back``tick`, null as nothing, "
            "timestamp_ntz'2024-03-31 02:30:00' as wall, unhex('00ff') as `bytes`, "
            "if(id % 3 = 0, null, id % 2 = 0) as flag from range(400)"
        )
        table = rows_of(df)
        struct = _utc(table.schema.field("s"))
        table = table.set_column(5, struct, table["s"].cast(struct.type))
        masters = [build_master(df, tmp_path / str(i), ["a.b", "k"], page_rows=16, shards=i) for i in (1, 4)]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before or "UTC")
    for master in masters:
        assert master.schema.equals(table.schema)
        assert as_multiset(content(master)) == as_multiset(table)
    assert len(masters[1].manifest.shards) == 4


def _utc(struct: pa.Field) -> pa.Field:
    zoned = pa.timestamp("us", "UTC")
    return struct.with_type(pa.struct([c.with_type(zoned) if c.name == "t" else c for c in struct.type]))


def test_sizes(spark: SparkSession, tmp_path: Path) -> None:
    """No row, only null keys, one key, fewer keys than shards, and the number of shards that Spark chooses."""
    empty = build_master(spark.range(0), tmp_path / "empty", "id")
    assert (empty.n_rows, empty.n_pages, empty.manifest.shards) == (0, 0, [])
    with open_join("sweepjoin", master=tmp_path / "empty", on="id", how="left", memory="1MB") as join:
        assert run_join(join, [pa.record_batch({"id": [1, 2]})]).num_rows == 2
    nulls = build_master(spark.sql("select cast(null as int) k from range(10)"), tmp_path / "nulls", "k")
    assert (nulls.n_rows, nulls.null_key_rows) == (0, 10)
    same = build_master(
        spark.sql("select 'one' k, id from range(1000)"), tmp_path / "same", "k", page_rows=16, shards=4
    )
    assert [shard["rows"] for shard in same.manifest.shards] == [1000]
    few = build_master(spark.sql("select id % 2 = 0 k from range(10)"), tmp_path / "few", "k", shards=5)
    assert [shard["rows"] for shard in few.manifest.shards] == [5, 5]
    many = build_master(spark.range(20_000), tmp_path / "many", "id")
    assert many.n_rows == 20_000
    assert 1 <= len(many.manifest.shards) <= 2
    assert many.manifest.fixed_layout == ["id"]
    with many.open(["id"]) as reader:
        assert reader.fences[0] == 0


class _Attempts(layout._ShardTask):
    """Runs as if other attempts at the same partition had been there: one killed half-way, one that won nothing."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = [batch.slice(i, 5) for batch in batches for i in range(0, batch.num_rows, 5)]
        started = itertools.chain(rows[: len(rows) // 2], _killed())
        with contextlib.suppress(KeyboardInterrupt):
            list(super().__call__(started))
        list(super().__call__(iter(rows)))
        yield from super().__call__(iter(rows))


def _killed() -> Iterator[pa.RecordBatch]:
    raise KeyboardInterrupt
    yield


class _Breaks(layout._ShardTask):
    """The last thing a task does goes wrong."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from super().__call__(batches)
        raise StoreError("the disk broke")


def names(path: Path) -> list[str]:
    return sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file() and p.name != ".lock")


def test_versions_and_failures(spark: SparkSession, tmp_path: Path) -> None:
    store = tmp_path / "deep" / "r"
    df = spark.range(300)
    broken = df.select(
        F.when(F.col("id") == 299, F.raise_error(F.lit("no such row"))).otherwise(F.col("id")).alias("id")
    )
    with pytest.raises(StoreError, match=r"could not be laid out: .*no such row"):
        build_master(broken, store, "id", shards=2)
    assert not store.exists()
    assert build_master(df, f"file:{store}", "id", shards=2).version == 1
    whole = names(store)
    assert whole == [
        "CURRENT",
        *(f"v000001/{n}-0000{i}.arrow" for n in ("index",) for i in (0, 1)),
        "v000001/manifest.json",
        *(f"v000001/pages-0000{i}.arrow" for i in (0, 1)),
    ]
    with pytest.raises(StoreError, match="no such row"):
        build_master(broken, store, "id", shards=2)
    assert names(store) == whole
    with pytest.raises(StoreError, match="overwrite=True"):
        build_master(df, store, "id", overwrite=False)
    assert pin(store, "query", 0) == 1
    for rows in (5, 6, 7):
        build_master(spark.range(rows), store, "id", keep_versions=0)
    assert versions_in(store) == [1, 4]
    assert PageMaster(store).n_rows == 7
    assert PageMaster(store, version=1).n_rows == 300
    assert [p.name for p in store.iterdir() if p.name.startswith(".build")] == []


def test_other_attempts_leave_nothing(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setattr(layout, "_ShardTask", _Attempts)
    master = build_master(spark.range(1000), tmp_path / "r", "id", page_rows=16, shards=3)
    assert sorted(p.name for p in master.folder.iterdir()) == sorted(["manifest.json", *master.manifest.files])
    assert content(master)["id"].to_pylist() == list(range(1000))
    before = names(tmp_path / "r")
    monkeypatch.setattr(layout, "_ShardTask", _Breaks)
    with pytest.raises(StoreError, match="could not be laid out: the disk broke"):
        build_master(spark.range(10), tmp_path / "r", "id", shards=3)
    assert names(tmp_path / "r") == before


def test_what_spark_must_do_is_checked(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in another order than that of their codes, a key in two partitions, executors that see another disk."""
    df = spark.sql("select 10 - id as k from range(10)")

    def in_order(*columns: str) -> None:
        found = df.repartition(2).sortWithinPartitions(*columns) if columns else df.coalesce(1)
        monkeypatch.setattr(layout, "_in_code_order", lambda *_: found)

    in_order()
    with pytest.raises(StoreError, match=r"orders keys of the types \['int64'\] otherwise .* build_pages"):
        build_master(df, tmp_path / "r", "k")
    in_order("k")
    with pytest.raises(StoreError, match="to two partitions"):
        build_master(df, tmp_path / "r", "k")
    assert not (tmp_path / "r").exists()
    schema = pa.schema({"k": pa.int64()}).serialize().to_pybytes()
    with pytest.raises(StoreError, match=r"absent is not there on .* mount"):
        next(layout._ShardTask(str(tmp_path / "absent"), schema, ("k",), 8)(iter(())))


def test_refused_before_the_job(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.sql("select id as key, map(id, id) m, cast(id as string) word from range(3)")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    stream = spark.readStream.format("rate").load()
    collated = spark.sql("select 'a' collate UNICODE_CI as k")
    months = spark.sql("select interval '1' month as m, 1 as k")
    twice = spark.sql("select 1 as k, 2 as k")
    for given, options, error, words in (
        (df, {"on": "kee"}, SchemaError, "did you mean 'key'"),
        (df, {"on": "m"}, KeyTypeError, "cannot be a key"),
        (df, {"on": "key", "shards": 0}, ConfigError, "shards=0"),
        (df, {"on": "key", "page_rows": 0}, ConfigError, "page_rows=0"),
        (df, {"on": "key", "keep_versions": -1}, ConfigError, "keep_versions=-1"),
        (df, {"on": []}, SchemaError, "at least one column"),
        (df, {"on": "key", "path": "hdfs://name/r"}, ConfigError, "'hdfs://name/r' is on hdfs:"),
        (df, {"on": "key", "path": "s3a://bucket/r"}, ConfigError, "mount"),
        (df, {"on": "key", "path": "file://host/r"}, ConfigError, "host"),
        (df, {"on": "key", "path": tmp_path / "full"}, StoreError, "no page store"),
        (stream, {"on": "value"}, ConfigError, "streaming"),
        (collated, {"on": "k"}, KeyTypeError, "collation UNICODE_CI"),
        (months, {"on": "k"}, SchemaError, "cannot be handed to Python"),
        (twice, {"on": "k"}, SchemaError, "2 columns named 'k'"),
    ):
        with pytest.raises(error, match=words):
            build_master(given, **{"path": tmp_path / "r", **options})
        assert not (tmp_path / "r").exists()


def test_readers_are_warned_of_a_schema_that_does_not_fit(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "r"
    build_master(spark.sql("select 1L k, 'a' name, 2 size"), path, "k").close()
    # Nobody uses it: nothing to say.
    build_master(spark.sql("select 1L k, 'a' name, 2L size"), path, "k").close()
    pin(path, "query", 0)
    # Columns that are added or moved concern nobody.
    build_master(spark.sql("select 5 extra, 2L size, 'a' name, 1L k"), path, "k").close()
    with pytest.warns(SemiStreamWarning) as caught:
        build_master(spark.sql("select 1 k, cast(null as string) name, 5 extra"), path, "k").close()
    (message,) = [str(warning.message) for warning in caught]
    assert re.search(r"r is in use.*readers of its version 3", message)
    assert "column 'size' is gone" in message
    assert "column 'name' may hold nulls and could not before" in message
    assert "column 'k' has the type int32 and had int64" in message
    assert "build at another path" in message
    assert caught[0].filename == __file__
    with pytest.warns(SemiStreamWarning, match=r"the key is \(name\) and was \(k\)"):
        build_master(spark.sql("select 1 k, cast('a' as string) name, 5 extra"), path, "name").close()
