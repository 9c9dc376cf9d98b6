"""Key codes: equal to Spark's where hashed, equal to the key where exact, whatever the columns' encoding."""

from __future__ import annotations

import importlib.util
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.columns.keys import KeyCoder, check_key_types, equal_keys
from semistream.errors import ConfigError, KeyTypeError, SchemaError, StoreError

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("make_spark_golden", HERE / "make_spark_golden.py")
assert _spec is not None
assert _spec.loader is not None
golden = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(golden)

CASES: list[dict[str, Any]] = json.loads((HERE / "spark_xxhash64.json").read_text("ascii"))["cases"]

EXACT = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us", tz="Europe/Berlin"), pa.timestamp("ns")),
    *(pa.duration("s"), pa.duration("ms"), pa.duration("us"), pa.duration("ns")),
    *(pa.bool_(), pa.float16(), pa.float32(), pa.float64()),
]
HASHED = [
    *(pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()),
    *(pa.binary(5), pa.decimal32(7, 2), pa.decimal64(18, 3), pa.decimal128(18, 3), pa.decimal128(38, 10)),
    *(pa.decimal256(18, 0), pa.decimal256(60, 4), pa.dictionary(pa.int8(), pa.string())),
]


def bits_to_array(values: list[int | None], kind: pa.DataType) -> pa.Array:
    """Any bit pattern as a value of a fixed-width type."""
    width = kind.bit_width
    if width == 1:
        return pa.array([None if v is None else bool(v & 1) for v in values], kind)
    if pa.types.is_date64(kind):
        return pa.array([None if v is None else v % 10**9 * 86_400_000 for v in values], pa.int64()).view(kind)
    cut = [None if v is None else v & ((1 << width) - 1) for v in values]
    unsigned = {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}[width]
    return pa.array(cut, unsigned).view(kind)


def same_value(left: Any, right: Any) -> bool:
    """Key equality as SQL and Spark see it, on Python values."""
    if left is None or right is None:
        return False
    return bool(left == right or (left != left and right != right))


def values_of(array: pa.Array) -> list[Any]:
    """Python values that tell keys apart; temporal ones as ticks, which Python's own types may not hold."""
    kind = array.type
    if pa.types.is_temporal(kind):
        return array.view(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist()
    return array.to_pylist()


# ---- hashed codes are Spark's


@pytest.mark.parametrize("case", CASES, ids=lambda case: "+".join(case["types"]))
def test_codes_equal_spark(case: dict[str, Any]) -> None:
    columns = [golden.decode(*pair) for pair in zip(case["types"], case["columns"], strict=True)]
    if len(columns) == 1:
        # A null column leaves the hash alone, so this asks for the hash of types that are exact when alone.
        columns.append(pa.nulls(len(columns[0]), pa.int32()))
    codes, valid = KeyCoder([column.type for column in columns]).codes(columns)
    assert codes.tolist() == case["hashes"]
    whole = [all(column[row].is_valid for column in columns) for row in range(len(codes))]
    assert (valid if valid is not None else np.ones(len(codes), bool)).tolist() == whole


def test_every_case_has_values() -> None:
    assert len(CASES) >= 37
    assert all(len(case["hashes"]) == len(case["columns"][0]) > 2 for case in CASES)


@pytest.mark.parametrize("case", [c for c in CASES if len(c["types"]) > 1], ids=lambda c: "+".join(c["types"]))
def test_slices_have_the_codes_of_their_rows(case: dict[str, Any]) -> None:
    columns = [golden.decode(*pair) for pair in zip(case["types"], case["columns"], strict=True)]
    coder = KeyCoder([column.type for column in columns])
    for start, length in [(1, 5), (7, 20), (9, 0), (13, 47)]:
        codes, _ = coder.codes([column.slice(start, length) for column in columns])
        assert codes.tolist() == case["hashes"][start : start + length]


@pytest.mark.parametrize(
    ("kind", "same_as", "factor"),
    [
        (pa.timestamp("s"), pa.timestamp("us"), 1_000_000),
        (pa.duration("ms"), pa.duration("us"), 1_000),
        (pa.time32("s"), pa.time64("ns"), 1_000_000_000),
        (pa.date64(), pa.date32(), 1 / 86_400_000),
    ],
)
def test_units_hash_as_the_one_spark_holds(kind: pa.DataType, same_as: pa.DataType, factor: float) -> None:
    ticks = [0, 1, 86_399] if pa.types.is_time(kind) else [0, 86_400_000, -86_400_000]
    width = {32: pa.int32(), 64: pa.int64()}
    coarse = pa.array(ticks, width[kind.bit_width]).view(kind)
    fine = pa.array([round(t * factor) for t in ticks], width[same_as.bit_width]).view(same_as)
    pad = pa.nulls(3, pa.int8())
    ours, _ = KeyCoder([kind, pa.int8()]).codes([coarse, pad])
    theirs, _ = KeyCoder([same_as, pa.int8()]).codes([fine, pad])
    assert ours.tolist() == theirs.tolist()


def test_nanoseconds_hash_as_whole_microseconds() -> None:
    nanos = pa.array([0, 999, 1000, -1], pa.int64()).view(pa.timestamp("ns"))
    micros = pa.array([0, 0, 1, -1], pa.int64()).view(pa.timestamp("us"))
    pad = pa.nulls(4, pa.int8())
    ours, _ = KeyCoder([nanos.type, pa.int8()]).codes([nanos, pad])
    theirs, _ = KeyCoder([micros.type, pa.int8()]).codes([micros, pad])
    assert ours.tolist() == theirs.tolist()


@given(st.lists(st.none() | st.integers(-(10**18) + 1, 10**18 - 1), max_size=20))
def test_decimal_width_does_not_change_the_hash(unscaled: list[int | None]) -> None:
    values = [None if v is None else Decimal(v) for v in unscaled]
    kinds = [pa.decimal64(18, 0), pa.decimal128(18, 0), pa.decimal256(18, 0)]
    codes = [KeyCoder([kind]).codes([pa.array(values, kind)])[0].tolist() for kind in kinds]
    assert codes[0] == codes[1] == codes[2]


# ---- exact codes are the keys


@pytest.mark.parametrize("kind", EXACT, ids=str)
@settings(max_examples=30)
@given(data=st.data())
def test_exact_codes_are_equal_iff_the_keys_are(kind: pa.DataType, data: st.DataObject) -> None:
    special = st.sampled_from([0, 1, 1 << 63, 1 << 31, 0x7FF8 << 48, (0x7FF8 << 48) + 1, 0x7FC00000, 0xFFC00001])
    patterns = st.lists(st.none() | special | st.integers(0, (1 << 64) - 1), max_size=12)
    array = bits_to_array(data.draw(patterns), kind)
    start = data.draw(st.integers(0, len(array)))
    array = array.slice(start)
    coder = KeyCoder([kind])
    assert coder.exact
    codes, valid = coder.codes([array])
    values = values_of(array)
    usable = np.ones(len(values), bool) if valid is None else valid
    assert usable.tolist() == [v is not None for v in values]
    for i, left in enumerate(values):
        for j, right in enumerate(values):
            if left is not None and right is not None:
                assert (codes[i] == codes[j]) == same_value(left, right)


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1)))
def test_integer_codes_are_the_values(values: list[int]) -> None:
    codes, valid = KeyCoder([pa.int64()]).codes([pa.array(values, pa.int64())])
    assert codes.tolist() == values
    assert valid is None
    assert codes.flags.writeable
    assert codes.flags.c_contiguous


def test_uint64_keeps_its_bits() -> None:
    codes, _ = KeyCoder([pa.uint64()]).codes([pa.array([2**64 - 1, 2**63, 1], pa.uint64())])
    assert codes.tolist() == [-1, -(2**63), 1]


@pytest.mark.parametrize("kind", HASHED, ids=str)
def test_other_types_are_hashed(kind: pa.DataType) -> None:
    assert not KeyCoder([kind]).exact
    assert not KeyCoder([pa.int32(), kind]).exact


def test_two_integers_are_hashed() -> None:
    assert not KeyCoder([pa.int32(), pa.int32()]).exact


@pytest.mark.parametrize("kind", [*EXACT, *HASHED], ids=str)
def test_empty_batches_and_all_null_batches(kind: pa.DataType) -> None:
    coder = KeyCoder([kind])
    codes, valid = coder.codes([pa.array([], kind)])
    assert codes.shape == (0,)
    assert codes.dtype == np.int64
    assert valid is None
    codes, valid = coder.codes([pa.nulls(3, kind)])
    assert valid is not None
    assert not valid.any()
    assert len(set(codes.tolist())) == 1


# ---- encodings


words = st.lists(st.none() | st.text(max_size=12), min_size=1, max_size=20)


def encodings(array: pa.Array) -> list[pa.Array]:
    large = array.cast(pa.large_string())
    return [
        large,
        array.cast(pa.string_view()),
        array.dictionary_encode(),
        large.dictionary_encode().cast(pa.dictionary(pa.int16(), pa.large_string())),
        pc.run_end_encode(array),
        pc.run_end_encode(large, run_end_type=pa.int64()),
    ]


@given(values=words, start=st.integers(0, 3))
def test_encodings_do_not_change_codes(values: list[str | None], start: int) -> None:
    plain = pa.array(values, pa.string())
    expected, expected_valid = KeyCoder([pa.string()]).codes([plain.slice(start)])
    for encoded in encodings(plain):
        codes, valid = KeyCoder([encoded.type]).codes([encoded.slice(start)])
        assert codes.tolist() == expected.tolist()
        assert (valid is None) == (expected_valid is None)
        assert valid is None or valid.tolist() == expected_valid.tolist()
        assert equal_keys([encoded.slice(start)], [plain.slice(start)]).tolist() == [
            value is not None for value in values[start:]
        ]


def test_dictionary_with_a_null_among_its_values() -> None:
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), pa.array(["a", None]))
    codes, valid = KeyCoder([array.type]).codes([array])
    assert valid is not None
    assert valid.tolist() == [True, False, False]
    assert codes[0] == KeyCoder([pa.string()]).codes([pa.array(["a"])])[0][0]


def test_dictionary_of_integers_is_exact() -> None:
    array = pa.array([5, 7, 5, None], pa.int32()).dictionary_encode()
    codes, valid = KeyCoder([array.type]).codes([array])
    assert codes.tolist() == [5, 7, 5, 0]
    assert valid is not None
    assert valid.tolist() == [True, True, True, False]


def test_extension_types_are_coded_by_their_storage() -> None:
    storage = pa.array([bytes(range(16)), None], pa.binary(16))
    array = pa.ExtensionArray.from_storage(pa.uuid(), storage)
    ours, theirs = KeyCoder([pa.uuid()]).codes([array]), KeyCoder([pa.binary(16)]).codes([storage])
    assert ours[0].tolist() == theirs[0].tolist()


# ---- stream types that differ from the master's


INTEGERS = EXACT[:8]


def may_mix(stream: pa.DataType, master: pa.DataType) -> bool:
    wide = pa.uint64() in (stream, master)
    signed = pa.types.is_signed_integer(stream) or pa.types.is_signed_integer(master)
    return not (wide and signed)


def bounds(kind: pa.DataType) -> tuple[int, int]:
    info = np.iinfo(kind.to_pandas_dtype())
    return int(info.min), int(info.max)


@pytest.mark.parametrize("composite", [False, True], ids=["single", "composite"])
@pytest.mark.parametrize("master", INTEGERS, ids=str)
@pytest.mark.parametrize("stream", INTEGERS, ids=str)
def test_integer_widths_may_be_mixed(stream: pa.DataType, master: pa.DataType, composite: bool) -> None:
    extra = [pa.string()] if composite else []
    if not may_mix(stream, master):
        with pytest.raises(KeyTypeError, match=r"uint64 and signed integers .* cast both to decimal"):
            KeyCoder.for_stream([stream, *extra], [master, *extra])
        return
    coder = KeyCoder.for_stream([stream, *extra], [master, *extra])
    low, high = bounds(stream)
    edges = [0, 1, -1, 127, 128, -128, -129, 255, 256, 2**31, 2**32, -(2**31), 2**63 - 1, 2**63, low, high]
    values = [v for v in edges if low <= v <= high]
    names = [pa.array(["x"] * len(values))] if composite else []
    codes, valid = coder.codes([pa.array(values, stream), *names])
    low, high = bounds(master)
    usable = np.ones(len(values), bool) if valid is None else valid
    if composite:
        assert usable.tolist() == [low <= v <= high for v in values]
    there = [v for v in values if low <= v <= high]
    pad = [pa.array(["x"] * len(there))] if composite else []
    expected, _ = KeyCoder([master, *extra]).codes([pa.array(there, master), *pad])
    assert codes[[low <= v <= high for v in values]].tolist() == expected.tolist()
    # What does not fit must not meet a code of the master's, whichever way it is kept apart.
    strangers = {int(c) for c, v, ok in zip(codes, values, usable, strict=True) if ok and not low <= v <= high}
    assert strangers.isdisjoint(expected.tolist())


@pytest.mark.parametrize(
    ("stream", "master"),
    [
        (pa.string(), pa.large_string()),
        (pa.dictionary(pa.int32(), pa.string()), pa.string_view()),
        (pa.binary(4), pa.binary()),
        (pa.decimal64(10, 2), pa.decimal128(10, 2)),
        (pa.timestamp("us", tz="UTC"), pa.timestamp("us", tz="Asia/Tokyo")),
        (pa.dictionary(pa.int8(), pa.int16()), pa.int64()),
        (pa.float16(), pa.float32()),
    ],
)
def test_types_that_agree(stream: pa.DataType, master: pa.DataType) -> None:
    check_key_types([pa.field("s", stream)], [pa.field("m", master)])
    check_key_types([pa.field("s", master)], [pa.field("m", stream)])
    assert KeyCoder.for_stream([stream], [master]).types == (master,)


@pytest.mark.parametrize(
    ("stream", "master", "why"),
    [
        (pa.string(), pa.binary(), "the types must be the same"),
        (pa.string(), pa.int64(), "the types must be the same"),
        (pa.date32(), pa.timestamp("us"), "the types must be the same"),
        (pa.date32(), pa.date64(), "the types must be the same"),
        (pa.float32(), pa.float64(), "the types must be the same"),
        (pa.int64(), pa.float64(), "the types must be the same"),
        (pa.int32(), pa.date32(), "the types must be the same"),
        (pa.bool_(), pa.int8(), "the types must be the same"),
        (pa.decimal128(10, 2), pa.int64(), "the types must be the same"),
        (pa.decimal128(10, 2), pa.decimal128(10, 3), "precision and scale"),
        (pa.decimal128(10, 2), pa.decimal128(20, 2), "precision and scale"),
        (pa.timestamp("us"), pa.timestamp("ms"), "units differ"),
        (pa.timestamp("us"), pa.timestamp("us", tz="UTC"), "time zone"),
        (pa.duration("us"), pa.duration("s"), "the types must be the same"),
    ],
)
def test_types_that_do_not_agree(stream: pa.DataType, master: pa.DataType, why: str) -> None:
    with pytest.raises(KeyTypeError) as raised:
        check_key_types([pa.field("s_col", stream)], [pa.field("m_col", master)])
    message = str(raised.value)
    for part in ("'s_col'", "'m_col'", str(stream), str(master), why, "cast"):
        assert part in message
    with pytest.raises(KeyTypeError, match="cast"):
        equal_keys([pa.nulls(1, stream)], [pa.nulls(1, master)])


@pytest.mark.parametrize(
    "kind",
    [
        pa.null(),
        pa.list_(pa.int64()),
        pa.struct([("a", pa.int64())]),
        pa.map_(pa.string(), pa.int64()),
        pa.list_(pa.int8(), 3),
        pa.month_day_nano_interval(),
        pa.dictionary(pa.int8(), pa.list_(pa.int8())),
    ],
    ids=str,
)
def test_types_that_cannot_be_keys(kind: pa.DataType) -> None:
    with pytest.raises(KeyTypeError) as raised:
        check_key_types([pa.field("bad", kind)], [pa.field("good", pa.int64())])
    message = str(raised.value)
    assert "'bad'" in message
    assert str(kind) in message
    assert "allowed are integers" in message
    assert "cast the column" in message
    with pytest.raises(KeyTypeError, match="'good'"):
        check_key_types([pa.field("fine", pa.int64())], [pa.field("good", kind)])
    with pytest.raises(KeyTypeError, match="'k'"):
        KeyCoder([kind], names=["k"])


def test_as_many_columns_on_both_sides() -> None:
    with pytest.raises(SchemaError, match=r"'a', 'b' .* 'c': name at least one, and as many"):
        check_key_types([pa.field("a", pa.int8()), pa.field("b", pa.int8())], [pa.field("c", pa.int8())])
    with pytest.raises(SchemaError, match="none"):
        check_key_types([], [])
    with pytest.raises(SchemaError, match="at least one column"):
        KeyCoder([])


def test_batches_that_are_not_what_was_announced() -> None:
    coder = KeyCoder([pa.int64(), pa.string()], names=["a", "b"])
    with pytest.raises(KeyTypeError, match=r"'a' has type int32 in this batch where int64 is expected: cast"):
        coder.codes([pa.array([1], pa.int32()), pa.array(["x"])])
    with pytest.raises(SchemaError, match=r"1 key columns were given where 2"):
        coder.codes([pa.array([1])])
    with pytest.raises(SchemaError, match=r"'b' has 1 values where the first has 2"):
        coder.codes([pa.array([1, 2]), pa.array(["x"])])


# ---- equal_keys


keys = st.tuples(st.none() | st.sampled_from(["", "a", "é"]), st.none() | st.integers(-2, 2))


@given(st.lists(st.tuples(keys, keys), max_size=30))
def test_equal_keys_compares_row_by_row(pairs: list[tuple[Any, Any]]) -> None:
    left = [pa.array([p[0][0] for p in pairs], pa.string()), pa.array([p[0][1] for p in pairs], pa.int64())]
    right = [
        pa.array([p[1][0] for p in pairs], pa.large_string()),
        pa.array([p[1][1] for p in pairs], pa.int8()),
    ]
    expected = [all(same_value(a, b) for a, b in zip(*pair, strict=True)) for pair in pairs]
    result = equal_keys(left, right)
    assert result.dtype == np.bool_
    assert result.tolist() == expected
    mixed = KeyCoder.for_stream([a.type for a in left], [a.type for a in right]).codes(left)[0]
    own = KeyCoder([a.type for a in right]).codes(right)[0]
    assert np.all((mixed == own)[result])


def test_equal_keys_of_floats() -> None:
    left = pa.array([0.0, float("nan"), 1.0, None, None, float("inf")])
    right = pa.array([-0.0, -float("nan"), 1.5, None, 0.0, float("inf")])
    expected = [True, True, False, False, False, True]
    assert equal_keys([left], [right]).tolist() == expected
    assert equal_keys([left.cast(pa.float32())], [right.cast(pa.float32())]).tolist() == expected


def test_equal_keys_across_widths() -> None:
    money = [Decimal("1.50"), Decimal("-2.25"), None]
    assert equal_keys([pa.array(money, pa.decimal32(7, 2))], [pa.array(money, pa.decimal256(7, 2))]).tolist() == [
        True,
        True,
        False,
    ]
    assert equal_keys([pa.array([b"ab", b"cd"], pa.binary(2))], [pa.array([b"ab", b"c"])]).tolist() == [
        True,
        False,
    ]
    zones = [pa.array([1, 2], pa.timestamp("us", tz=tz)) for tz in ("UTC", "Asia/Tokyo")]
    assert equal_keys([zones[0]], [zones[1]]).tolist() == [True, True]


@pytest.mark.parametrize("kind", [*EXACT, *HASHED], ids=str)
def test_equal_keys_takes_every_key_type(kind: pa.DataType) -> None:
    nulls = pa.nulls(2, kind)
    assert equal_keys([nulls], [nulls]).tolist() == [False, False]


def test_equal_keys_refuses_what_does_not_line_up() -> None:
    one, two = pa.array([1]), pa.array([1, 2])
    with pytest.raises(SchemaError, match="1 and 2 rows"):
        equal_keys([one], [two])
    with pytest.raises(SchemaError, match="1 and 2 columns"):
        equal_keys([one], [one, one])


# ---- mask and manifest


def test_mask_forces_collisions_of_hashed_codes_only() -> None:
    array = pa.array([str(i) for i in range(100)])
    codes, _ = KeyCoder([pa.string()], mask=3).codes([array])
    assert set(codes.tolist()) == {0, 1, 2, 3}
    coder = KeyCoder([pa.string()])
    coder.mask = 0
    assert set(coder.codes([array])[0].tolist()) == {0}
    numbers = pa.array(range(100), pa.int64())
    assert KeyCoder([pa.int64()], mask=3).codes([numbers])[0].tolist() == list(range(100))
    stream = KeyCoder.for_stream([pa.large_string()], [pa.string()], mask=3)
    assert stream.codes([array.cast(pa.large_string())])[0].tolist() == codes.tolist()
    with pytest.raises(ConfigError, match=r"mask -1 is refused"):
        KeyCoder([pa.string()], mask=-1)


@pytest.mark.parametrize("kind", [*EXACT, *HASHED, pa.uuid()], ids=str)
@pytest.mark.parametrize("mask", [None, 15])
def test_manifest_round_trip(kind: pa.DataType, mask: int | None) -> None:
    coder = KeyCoder([kind, pa.int64()], mask)
    again = KeyCoder.from_json(json.loads(json.dumps(coder.to_json())))
    assert again.types == coder.types
    assert again.mask == mask
    assert again.exact == coder.exact


@pytest.mark.parametrize(
    "change",
    [{"schema": "!"}, {"schema": "AAAA"}, {"schema": None}, {"mask": "x"}, {"mask": -2}],
    ids=str,
)
def test_damaged_manifest(change: dict[str, Any]) -> None:
    saved = KeyCoder([pa.int64()]).to_json() | change
    with pytest.raises(StoreError, match=r"manifest cannot be read .* build the store again"):
        KeyCoder.from_json(saved)
    with pytest.raises(StoreError, match="manifest"):
        KeyCoder.from_json({})
