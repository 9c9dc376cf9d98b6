"""The nested codec gives back every value, null and type, whatever the layout of the Arrow input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.columns import nested
from semistream.columns.nested import decode_nested, encode_nested, supports_nested
from semistream.errors import SchemaError, StoreError

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
ANY_BITS = [
    *INTEGERS,
    *FLOATS,
    pa.date32(),
    pa.timestamp("ns", tz="Europe/Vienna"),
    pa.timestamp("s"),
    pa.duration("us"),
    pa.binary(3),
    pa.binary(16),
    pa.month_day_nano_interval(),
]
# Arrow checks the range of these.
SMALL_BITS = [
    pa.date64(),
    pa.time32("ms"),
    pa.time64("us"),
    pa.decimal32(5, 2),
    pa.decimal64(12, 0),
    pa.decimal128(30, 4),
    pa.decimal256(60, 9),
]
TEXTS = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.binary(),
    pa.large_binary(),
    pa.binary_view(),
]
WRAPPED = [
    pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.uint32(), pa.float64(), ordered=True),
    pa.dictionary(pa.int64(), pa.list_(pa.string_view())),
    pa.dictionary(pa.int16(), pa.null()),
    pa.run_end_encoded(pa.int32(), pa.float32()),
    pa.run_end_encoded(pa.int64(), pa.string()),
    pa.uuid(),
    pa.bool8(),
    pa.json_(pa.large_string()),
    pa.fixed_shape_tensor(pa.float32(), [2, 2]),
]
LEAVES = [*ANY_BITS, *SMALL_BITS, *TEXTS, pa.bool_(), pa.null(), pa.binary(0), *WRAPPED]


def lists_of(inner: pa.DataType) -> list[pa.DataType]:
    return [
        pa.list_(inner),
        pa.large_list(pa.field("e", inner, metadata={"unit": "m"})),
        pa.list_view(inner),
        pa.large_list_view(inner),
        pa.list_(inner, 3),
        pa.list_(inner, 0),
        pa.map_(pa.string(), inner),
        pa.map_(pa.dictionary(pa.int32(), pa.int64()), inner, keys_sorted=True),
    ]


def structs_of(*inner: pa.DataType) -> pa.DataType:
    return pa.struct([pa.field(f"f{at}", type, metadata={"at": str(at)}) for at, type in enumerate(inner)])


TYPES = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        inner.flatmap(lambda type: st.sampled_from(lists_of(type))),
        st.lists(inner, max_size=3).map(lambda types: structs_of(*types)),
    ),
    max_leaves=5,
)
SEEDS = st.integers(0, 2**32 - 1)


class Builder:
    """Random arrays in the least convenient layout: slices, gaps, and rubbish beneath every null."""

    def __init__(self, seed: int, null_rate: float | None = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.null_rate = float(self.rng.choice([0.0, 0.2, 0.9])) if null_rate is None else null_rate

    def build(self, type: pa.DataType, n: int, nullable: bool = True) -> pa.Array:
        before, after = (int(count) for count in self.rng.integers(0, 11, 2))
        array = self._build(type, before + n + after, nullable)
        assert array.type.equals(type, check_metadata=True)
        return array.slice(before, n)

    def _build(self, type: pa.DataType, n: int, nullable: bool) -> pa.Array:
        if pa.types.is_null(type):
            return pa.nulls(n)
        if isinstance(type, pa.BaseExtensionType):
            return pa.ExtensionArray.from_storage(type, self.build(type.storage_type, n, nullable))
        if pa.types.is_dictionary(type):
            distinct = self.build(type.value_type, 5, nullable)
            numbers = pa.array(self.rng.integers(0, 5, n), mask=self._nulls(n, nullable))
            return pa.DictionaryArray.from_arrays(numbers.cast(type.index_type), distinct, ordered=type.ordered)
        if pa.types.is_run_end_encoded(type):
            ends = np.unique(np.append(self.rng.integers(1, n + 1, n // 3), n)) if n else np.zeros(0, np.int64)
            values = self.build(type.value_type, len(ends), nullable)
            return pa.RunEndEncodedArray.from_arrays(pa.array(ends).cast(type.run_end_type), values, type)
        nulls = self._nulls(n, nullable)
        bitmap = None if not nulls.any() else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
        buffers, children = self._content(type, n)
        return pa.Array.from_buffers(type, n, [bitmap, *buffers], children=children or None)

    def _nulls(self, n: int, nullable: bool) -> np.ndarray[Any, Any]:
        return self.rng.random(n) < (self.null_rate if nullable else 0.0)

    def _content(self, type: pa.DataType, n: int) -> tuple[list[Any], list[pa.Array]]:
        is_, rng = pa.types, self.rng
        if is_.is_struct(type):
            return [], [self.build(type.field(at).type, n) for at in range(type.num_fields)]
        if is_.is_fixed_size_list(type):
            return [], [self.build(type.value_type, n * type.list_size)]
        sizes = rng.integers(0, 4, n)
        if is_.is_string_view(type) or is_.is_binary_view(type):
            words = [bytes(rng.integers(97, 123, int(size) * 9, dtype=np.uint8)) for size in sizes]
            return list(pa.array(words, pa.binary()).cast(type).buffers()[1:]), []
        starts = np.concatenate([[2], 2 + np.cumsum(sizes)])
        total = int(starts[-1])
        wide = "large" in str(type).split("<")[0]
        dtype = np.int64 if wide else np.int32
        if is_.is_string(type) or is_.is_binary(type) or (wide and not is_.is_nested(type)):
            letters = pa.py_buffer(rng.integers(97, 123, total, dtype=np.uint8))
            return [pa.py_buffer(starts.astype(dtype)), letters], []
        if is_.is_map(type):
            entries = type.field(0).type
            key, item = entries.field(0), entries.field(1)
            columns = [self.build(key.type, total, nullable=False), self.build(item.type, total)]
            child = pa.Array.from_buffers(entries, total, [None], children=columns)
            return [pa.py_buffer(starts.astype(dtype))], [child]
        if is_.is_list_view(type) or is_.is_large_list_view(type):
            order = rng.permutation(n)
            offsets, sizes = starts[:-1][order].astype(dtype), sizes[order].astype(dtype)
            return [pa.py_buffer(offsets), pa.py_buffer(sizes)], [self.build(type.value_type, total)]
        if is_.is_list(type) or is_.is_large_list(type):
            return [pa.py_buffer(starts.astype(dtype))], [self.build(type.value_type, total)]
        if is_.is_boolean(type):
            return [pa.py_buffer(rng.bytes(n // 8 + 1))], []
        width = type.bit_width // 8
        if type in SMALL_BITS:
            values = np.zeros((n, width), dtype=np.uint8)
            low = rng.integers(0, 9, n) * (86_400_000 if is_.is_date64(type) else 1)
            values[:, :4] = low.astype("<u4").view(np.uint8).reshape(n, 4)
            return [pa.py_buffer(values.tobytes())], []
        return [pa.py_buffer(rng.bytes(n * width))], []


def plain(array: pa.Array) -> list[Any]:
    """The array as Python values, fixed-width ones as bytes; slow, plain and independent of the codec."""
    type = array.type
    if isinstance(type, pa.BaseExtensionType):
        return plain(array.storage)
    if pa.types.is_dictionary(type):
        distinct = plain(array.dictionary)
        return [None if number is None else distinct[number] for number in array.indices.to_pylist()]
    if pa.types.is_run_end_encoded(type):
        values, ends = plain(array.values), array.run_ends.to_pylist()
        rows = range(array.offset, array.offset + len(array))
        return [next(v for v, end in zip(values, ends, strict=True) if row < end) for row in rows]
    if pa.types.is_null(type):
        return [None] * len(array)
    valid = array.is_valid().to_pylist()
    if pa.types.is_struct(type):
        columns = [plain(array.field(at)) for at in range(type.num_fields)]
        return [tuple(column[at] for column in columns) if ok else None for at, ok in enumerate(valid)]
    if pa.types.is_fixed_size_list(type):
        child, size = plain(array.values), type.list_size
        starts = [(array.offset + at) * size for at in range(len(array))]
        return [child[at : at + size] if ok else None for at, ok in zip(starts, valid, strict=True)]
    if pa.types.is_list_view(type) or pa.types.is_large_list_view(type):
        child = plain(array.values)
        spans = zip(array.offsets.to_pylist(), array.sizes.to_pylist(), valid, strict=True)
        return [child[at : at + size] if ok else None for at, size, ok in spans]
    if pa.types.is_nested(type):
        child, offsets = plain(array.values), array.offsets.to_pylist()
        return [child[offsets[at] : offsets[at + 1]] if ok else None for at, ok in enumerate(valid)]
    if pa.types.is_boolean(type):
        return array.to_pylist()
    try:
        width = type.bit_width // 8
    except ValueError:
        return array.cast(pa.large_binary()).to_pylist()
    data = array.buffers()[1].to_pybytes() if len(array) and width else b""
    places = [(array.offset + at) * width for at in range(len(array))]
    return [data[at : at + width] if ok else None for at, ok in zip(places, valid, strict=True)]


def assert_round_trip(array: pa.Array) -> pa.Array:
    blobs = encode_nested(array)
    blobs.validate(full=True)
    assert blobs.type == pa.binary()
    back = decode_nested(blobs, array.type)
    back.validate(full=True)
    assert back.type.equals(array.type, check_metadata=True)
    expected = plain(array)
    assert plain(back) == expected
    assert blobs.is_null().to_pylist() == [value is None for value in expected]
    # The layout of the input leaves no trace, so the decoded array gives the same bytes.
    assert encode_nested(back).equals(blobs)
    return blobs


class TestRoundTrip:
    @pytest.mark.parametrize("null_rate", [0.0, 0.2, 0.9])
    @pytest.mark.parametrize("leaf", LEAVES, ids=str)
    def test_every_leaf_under_every_parent(self, leaf: pa.DataType, null_rate: float) -> None:
        types = [leaf, structs_of(leaf, leaf), structs_of(structs_of(leaf)), *lists_of(leaf)]
        for seed, type in enumerate(types):
            assert supports_nested(type)
            for n in (0, 1, 40):
                assert_round_trip(Builder(seed, null_rate).build(type, n))

    @settings(max_examples=150, deadline=None)
    @given(TYPES, st.integers(0, 30), SEEDS)
    def test_random_types(self, type: pa.DataType, n: int, seed: int) -> None:
        assert_round_trip(Builder(seed).build(type, n))

    @settings(max_examples=60, deadline=None)
    @given(TYPES, SEEDS)
    def test_blobs_stand_alone(self, type: pa.DataType, seed: int) -> None:
        """Rows may be dropped, repeated, reordered and mixed with those of other batches."""
        builder = Builder(seed)
        first, second = builder.build(type, 7), builder.build(type, 9)
        mixed = pa.concat_arrays([encode_nested(first), encode_nested(second)])
        order = builder.rng.integers(0, 16, 20)
        rows = plain(first) + plain(second)
        picked = decode_nested(mixed.take(pa.array(order)), type)
        assert plain(picked) == [rows[at] for at in order]
        assert plain(decode_nested(mixed.slice(5, 6), type)) == rows[5:11]

    def test_blobs_may_have_bytes_beneath_a_null(self) -> None:
        blobs = encode_nested(pa.array([[1], [2], [3]]))
        bitmap = pa.py_buffer(b"\x05")
        hidden = pa.Array.from_buffers(pa.binary(), 3, [bitmap, *blobs.buffers()[1:]])
        assert decode_nested(hidden, pa.list_(pa.int64())).to_pylist() == [[1], None, [3]]

    def test_large_binary_blobs(self) -> None:
        blobs = encode_nested(pa.array([["a"], None])).cast(pa.large_binary())
        assert decode_nested(blobs, pa.list_(pa.string())).to_pylist() == [["a"], None]


class TestValues:
    def test_null_empty_and_missing_are_three_things(self) -> None:
        type = structs_of(pa.list_(pa.string()))
        rows = [None, {"f0": None}, {"f0": []}, {"f0": [None]}, {"f0": [""]}]
        array = pa.array(rows, type)
        assert decode_nested(assert_round_trip(array), type).to_pylist() == rows

    @pytest.mark.parametrize("wrap", [lambda t: t, lambda t: pa.dictionary(pa.int8(), t)], ids=["plain", "dict"])
    def test_float_bits(self, wrap: Any) -> None:
        bits = np.array([0x7FF8000000000001, 0x7FF0000000000002, 0xFFF8000000000000, 0, 1 << 63], np.uint64)
        floats = pa.array(bits).view(pa.float64())
        if wrap(pa.float64()) != pa.float64():
            floats = pa.DictionaryArray.from_arrays(pa.array(range(5), pa.int8()), floats)
        back = decode_nested(encode_nested(pa.StructArray.from_arrays([floats], ["x"])), structs_of(floats.type))
        column = back.field(0)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        assert column.view(pa.uint64()).to_pylist() == bits.tolist()

    def test_null_in_a_dictionary_is_a_null_row(self) -> None:
        array = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array([None, "a"]))
        assert encode_nested(array).is_null().to_pylist() == [True, False, True]

    def test_equal_rows_give_equal_blobs(self) -> None:
        lists = pa.array([["a", None, "b"]] * 3)
        words = lists.cast(pa.list_(pa.large_string()))
        dictionary = pa.ListArray.from_arrays(lists.offsets, lists.values.dictionary_encode())
        assert encode_nested(lists) == encode_nested(words) == encode_nested(dictionary)
        assert pc.count_distinct(encode_nested(lists)).as_py() == 1

    def test_a_null_costs_a_bit(self) -> None:
        type = pa.list_(structs_of(pa.decimal256(60, 2), pa.string()))
        assert len(encode_nested(pa.array([[None] * 8], type))[0].as_py()) == 4 + 1


class TestRefusals:
    @pytest.mark.parametrize("mode", ["dense", "sparse"])
    def test_union(self, mode: str) -> None:
        union = pa.union([pa.field("i", pa.int64()), pa.field("s", pa.string())], mode=mode)
        for type in (union, pa.list_(structs_of(pa.int8(), union)), pa.map_(pa.string(), union)):
            assert not supports_nested(type)
            with pytest.raises(SchemaError, match=rf"{mode}_union<.*select="):
                decode_nested(pa.array([], pa.binary()), type)
        with pytest.raises(SchemaError, match="union"):
            encode_nested(pa.nulls(2, pa.list_(union)))

    def test_dictionary_index_too_narrow_for_the_rows(self) -> None:
        type = structs_of(pa.dictionary(pa.int8(), pa.int64()))
        plain_type = structs_of(pa.int64())
        blobs = encode_nested(pa.array([{"f0": at} for at in range(129)], plain_type))
        assert len(decode_nested(blobs.slice(1), type).field(0).dictionary) == 128
        with pytest.raises(SchemaError, match="int8 ends at 127"):
            decode_nested(blobs, type)

    def test_run_end_too_narrow_for_the_rows(self) -> None:
        blobs = encode_nested(pa.array(np.zeros(40_000, np.int8)))
        with pytest.raises(SchemaError, match="int16 ends at 32767"):
            decode_nested(blobs, pa.run_end_encoded(pa.int16(), pa.int8()))

    def test_null_map_key(self) -> None:
        """Arrow looks for null keys itself, but not into their dictionary."""
        keys = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None]))
        with pytest.raises(SchemaError, match="null key"):
            encode_nested(pa.MapArray.from_arrays([0, 2], keys, pa.array([1, 2])))

    def test_more_bytes_than_an_array_holds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(nested, "_INT32_MAX", 99)
        rows = pa.array([["x" * 50]] * 2)
        blobs = encode_nested(rows.slice(1))
        with pytest.raises(SchemaError, match="smaller batches"):
            encode_nested(rows)
        with pytest.raises(SchemaError, match="large_ form"):
            decode_nested(pa.concat_arrays([blobs, blobs]), rows.type)

    def test_longer_value_than_a_length_holds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(nested, "_UINT32_MAX", 3)
        with pytest.raises(SchemaError, match="4 elements"):
            encode_nested(pa.array([[1, 2, 3], [1, 2, 3, 4]]))


class TestDamage:
    @settings(max_examples=60, deadline=None)
    @given(TYPES, SEEDS, st.floats(0, 1, exclude_max=True))
    def test_a_shortened_blob_is_noticed(self, type: pa.DataType, seed: int, share: float) -> None:
        for blob in encode_nested(Builder(seed).build(type, 4)).to_pylist():
            if blob:
                with pytest.raises(StoreError, match="does not match its type"):
                    decode_nested(pa.array([blob[: int(share * len(blob))]], pa.binary()), type)

    def test_a_value_of_null_type_is_noticed(self) -> None:
        type = pa.map_(pa.dictionary(pa.int8(), pa.null()), pa.int64())
        keys = pa.DictionaryArray.from_arrays(pa.array([], pa.int8()), pa.nulls(0))
        empty = pa.MapArray.from_arrays(pa.array([0, None, 0], pa.int32()), keys, pa.array([], pa.int64()))
        assert empty.type == type
        assert decode_nested(encode_nested(empty), type).to_pylist() == [[], None]
        with pytest.raises(StoreError):
            decode_nested(pa.array([b"\1\0\0\0\0"]), type)
        with pytest.raises(StoreError):
            decode_nested(pa.array([b""]), pa.null())

    def test_surplus_bytes_are_noticed(self) -> None:
        blob = encode_nested(pa.array([[1, 2]]))[0].as_py()
        with pytest.raises(StoreError, match="too late"):
            decode_nested(pa.array([blob + b"\0"]), pa.list_(pa.int64()))

    @settings(max_examples=100, deadline=None)
    @given(st.lists(st.binary(max_size=40), max_size=4))
    def test_random_bytes_never_read_out_of_bounds(self, blobs: list[bytes]) -> None:
        type = structs_of(pa.list_(pa.large_binary()), pa.list_(pa.bool_(), 3), pa.map_(pa.binary(), pa.int16()))
        try:
            array = decode_nested(pa.array(blobs, pa.binary()), type)
        except StoreError:
            return
        array.validate(full=True)
        assert len(array) == len(blobs)
