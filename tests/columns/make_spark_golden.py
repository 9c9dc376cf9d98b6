"""Writes spark_xxhash64.json beside it: keys of every type and what Spark's own `xxhash64` makes of them.

The tests read that file and need no Spark. Run this again only to add cases, in a throwaway environment with
Java 17 or later:

    pip install pyspark==4.3.0 pyarrow "pandas<3"
    SPARK_LOCAL_IP=127.0.0.1 python tests/columns/make_spark_golden.py

Values travel as JSON integers (days, ticks, IEEE bits), decimals as strings of their unscaled integer and
binaries as hex, so that nothing is rounded on the way; `decode` below is shared with the tests. Spark reads
most cases from Parquet, which also fixes how it widens unsigned integers and units of time.
"""

from __future__ import annotations

import json
import random
import tempfile
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

GOLDEN = Path(__file__).with_name("spark_xxhash64.json")

TYPES = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "date32": pa.date32(),
    "timestamp_ms": pa.timestamp("ms"),
    "timestamp_us": pa.timestamp("us"),
    "timestamp_us_utc": pa.timestamp("us", tz="UTC"),
    "time_us": pa.time64("us"),
    "duration_us": pa.duration("us"),
    "string": pa.string(),
    "binary": pa.binary(),
    "fixed7": pa.binary(7),
    "fixed40": pa.binary(40),
    "decimal_10_2": pa.decimal128(10, 2),
    "decimal_18_0": pa.decimal128(18, 0),
    "decimal_18_6": pa.decimal128(18, 6),
    "decimal_20_0": pa.decimal128(20, 0),
    "decimal_20_4": pa.decimal128(20, 4),
    "decimal_38_0": pa.decimal128(38, 0),
    "decimal_38_18": pa.decimal128(38, 18),
}
# Parquet has no such type: these are handed to Spark through Arrow.
NOT_IN_PARQUET = {"duration_us"}


def decode(name: str, values: list[Any]) -> pa.Array:
    """The Arrow array of a column of the golden file."""
    kind = TYPES[name]
    if pa.types.is_decimal(kind):
        exact = Context(prec=80)
        scaled = [None if v is None else Decimal(v).scaleb(-kind.scale, exact) for v in values]
        return pa.array(scaled, kind)
    if pa.types.is_floating(kind):
        bits = pa.uint32() if kind == pa.float32() else pa.uint64()
        return pa.array(values, bits).view(kind)
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.array([None if v is None else bytes.fromhex(v) for v in values], kind)
    if pa.types.is_temporal(kind):
        return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    return pa.array(values, kind)


def _integers(rng: random.Random, low: int, high: int) -> list[Any]:
    edges = [v for v in (0, 1, -1, 2, 42, -42, 127, 128, 255, 256, 65535, 65536) if low <= v <= high]
    return [*edges, low, low + 1, high - 1, high, *(rng.randint(low, high) for _ in range(16)), None]


def _strings(rng: random.Random) -> list[Any]:
    alphabet = "abcXYZ019 éßñ中文日本🙂🚀\u0000\u0301"
    chosen = [
        "",
        " ",
        "a",
        "Spark",
        "naïve café",
        "日本語のキー",
        "🙂",
        "e\u0301",
        "\u00e9",
        "x" * 1000,
        None,
    ]
    ascii_runs = ["".join(rng.choice("abcdefghijklmnop") for _ in range(n)) for n in range(1, 101)]
    unicode_runs = ["".join(rng.choice(alphabet) for _ in range(rng.randint(1, 40))) for _ in range(40)]
    return chosen + ascii_runs + unicode_runs


def values_of(name: str, rng: random.Random) -> list[Any]:
    """Edges, then random values, of one type."""
    kind = TYPES[name]
    if pa.types.is_boolean(kind):
        return [True, False, None]
    if pa.types.is_integer(kind):
        signed = pa.types.is_signed_integer(kind)
        bits = kind.bit_width
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
        return _integers(rng, low, high)
    if kind == pa.float32():
        edges = [0, 0x80000000, 0x7FC00000, 0xFFC00001, 0x7F800001, 0x7F800000, 0xFF800000, 1, 0x3F800000]
        return [*edges, 0xBF800000, 0x7F7FFFFF, *(rng.getrandbits(32) for _ in range(16)), None]
    if kind == pa.float64():
        high = 1 << 63
        edges = [0, high, 0x7FF8 << 48, (0xFFF8 << 48) + 1, (0x7FF0 << 48) + 1, 0x7FF0 << 48, 0xFFF0 << 48, 1]
        return [*edges, 0x3FF0 << 48, 0xBFF0 << 48, *(rng.getrandbits(64) for _ in range(16)), None]
    if pa.types.is_date32(kind):
        return [0, 1, -1, -719162, 2932896, 19000, *(rng.randint(-700000, 2900000) for _ in range(16)), None]
    if pa.types.is_time(kind):
        last = 86_400_000_000 - 1
        return [0, 1, last, *(rng.randint(0, last) for _ in range(16)), None]
    if pa.types.is_temporal(kind):
        span = 60_000_000_000_000_000 // (1000 if name == "timestamp_ms" else 1)
        return [0, 1, -1, 999, -1001, *(rng.randint(-span, span) for _ in range(16)), None]
    if pa.types.is_string(kind):
        return _strings(rng)
    if pa.types.is_decimal(kind):
        top = 10**kind.precision - 1
        powers = [v for e in (7, 8, 15, 16, 31, 32, 63, 64, 71, 127) for v in (1 << e, (1 << e) - 1)]
        edges = [v for p in powers for v in (p, -p, -p - 1) if abs(v) <= top]
        digits = [rng.choice((1, -1)) * rng.randrange(10 ** rng.randint(1, kind.precision)) for _ in range(24)]
        return [*map(str, [0, 1, -1, 127, -128, -129, top, -top, *edges, *digits]), None]
    if pa.types.is_fixed_size_binary(kind):
        return [*(rng.randbytes(kind.byte_width).hex() for _ in range(8)), "00" * kind.byte_width, None]
    return ["", "00", "ff", *(rng.randbytes(n).hex() for n in range(1, 101)), rng.randbytes(4097).hex(), None]


COMPOSITES = [
    ["int64", "string"],
    ["string", "int32"],
    ["int32", "int32"],
    ["string", "string", "string"],
    ["date32", "decimal_10_2", "bool"],
    ["decimal_38_18", "binary", "int16", "float64"],
    ["timestamp_us", "timestamp_us_utc", "int8", "float32"],
    ["timestamp_ms", "uint8", "uint16", "uint32", "uint64"],
    ["decimal_20_0", "decimal_18_6", "fixed7"],
]


def make_cases() -> list[dict[str, Any]]:
    """The inputs, without hashes."""
    rng = random.Random(20)
    cases = [{"types": [name], "columns": [values_of(name, rng)]} for name in TYPES]
    for names in COMPOSITES:
        pools = [values_of(name, rng) for name in names]
        columns = [[rng.choice(pool) if rng.random() > 0.1 else None for _ in range(60)] for pool in pools]
        cases.append({"types": names, "columns": columns})
    return cases


def main() -> None:
    from pyspark.sql import SparkSession  # only here: the tests import this module without Spark
    from pyspark.sql import functions as F

    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.parquet.datetimeRebaseModeInRead", "CORRECTED")
        .config("spark.sql.timeType.enabled", "true")
        .getOrCreate()
    )
    cases = make_cases()
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(cases):
            arrays = [decode(name, values) for name, values in zip(case["types"], case["columns"], strict=True)]
            names = [f"k{i}" for i in range(len(arrays))]
            table = pa.table([*arrays, pa.array(range(len(arrays[0])))], names=[*names, "row"])
            if NOT_IN_PARQUET.isdisjoint(case["types"]):
                path = f"{folder}/{number}.parquet"
                pq.write_table(table, path)
                frame = spark.read.parquet(path)
            else:
                frame = spark.createDataFrame(table)
            case["spark_types"] = [frame.schema[name].dataType.simpleString() for name in names]
            rows = frame.select("row", F.xxhash64(*names).alias("hash")).orderBy("row").collect()
            case["hashes"] = [row["hash"] for row in rows]
            assert len(rows) == len(arrays[0])
        version = spark.version
        spark.stop()
    lines = ",\n".join(json.dumps(case, ensure_ascii=True) for case in cases)
    GOLDEN.write_text(f'{{"spark": "{version}", "cases": [\n{lines}\n]}}\n', encoding="ascii")


if __name__ == "__main__":
    main()
