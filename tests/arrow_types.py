"""One example of every Arrow type: flat, nested, and each of these in a dictionary, in run ends, in an extension."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pyarrow as pa

#: gives `count` different values of a type; with True some of them are null
Values = Callable[[int, bool], pa.Array]


def _of(kind: pa.DataType, value: Callable[[int], object]) -> Values:
    return lambda count, nulls: pa.array([None if nulls and i % 7 == 3 else value(i) for i in range(count)], kind)


def _text(i: int) -> str:
    """Short ones, which a view holds itself, long ones, which it points to, and the empty string."""
    return "" if i == 0 else f"{i}é" + "x" * (i % 3 * 15)


def _bytes(i: int) -> bytes:
    return _text(i).encode()


def _entries(i: int) -> list[tuple[str, int | None]]:
    return [(f"{i}-{at}", at or None) for at in range(i % 3)]


_WHOLE = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
_TIMES = [
    pa.date32(),
    pa.time32("s"),
    pa.time32("ms"),
    pa.time64("us"),
    pa.timestamp("s"),
    pa.timestamp("ms"),
    pa.timestamp("us", "UTC"),
    pa.duration("s"),
    pa.duration("ms"),
    pa.duration("us"),
]
_NANOS = [pa.time64("ns"), pa.timestamp("ns"), pa.duration("ns")]
_DECIMALS = [pa.decimal32(7, 2), pa.decimal64(15, 2), pa.decimal128(30, 2), pa.decimal256(60, 2)]

FLAT: dict[str, Values] = {
    "bool": _of(pa.bool_(), lambda i: i % 2 == 1),
    **{str(kind): _of(kind, lambda i: i + 1) for kind in (*_WHOLE, *_TIMES)},
    **{str(kind): _of(kind, lambda i: 1000 * i) for kind in _NANOS},
    **{str(kind): _of(kind, lambda i: Decimal(i - 20) / 4) for kind in _DECIMALS},
    "date64": _of(pa.date64(), lambda i: 86_400_000 * i),
    "float16": _of(pa.float16(), lambda i: np.float16(i / 4)),
    "float32": _of(pa.float32(), lambda i: i / 4 - 3),
    "float64": _of(pa.float64(), lambda i: i / 3 - 3),
    "month_day_nano": _of(pa.month_day_nano_interval(), lambda i: (i, -i, 1000 * i)),
    "string": _of(pa.string(), _text),
    "large_string": _of(pa.large_string(), _text),
    "string_view": _of(pa.string_view(), _text),
    "binary": _of(pa.binary(), _bytes),
    "large_binary": _of(pa.large_binary(), _bytes),
    "binary_view": _of(pa.binary_view(), _bytes),
    "fixed_binary": _of(pa.binary(3), lambda i: struct.pack(">i", i)[1:]),
    "empty_binary": _of(pa.binary(0), lambda i: b""),
}
#: that are no keys, although flat
NO_KEYS = {"month_day_nano"}

NESTED: dict[str, Values] = {
    "list": _of(pa.list_(pa.string()), lambda i: [_text(i), None][: i % 3]),
    "large_list": _of(pa.large_list(pa.int16()), lambda i: list(range(i % 4))),
    "list_view": _of(pa.list_view(pa.string()), lambda i: [_text(i)] * (i % 3)),
    "large_list_view": _of(pa.large_list_view(pa.int64()), lambda i: [i, None]),
    "fixed_size_list": _of(pa.list_(pa.int32(), 2), lambda i: [i, None]),
    "struct": _of(pa.struct([("a", pa.string_view()), ("b", pa.int8())]), lambda i: {"a": _text(i), "b": None}),
    "map": _of(pa.map_(pa.string(), pa.int64()), _entries),
    "list_of_dictionary": _of(pa.list_(pa.dictionary(pa.int8(), pa.string())), lambda i: [_text(i)] * (i % 3)),
    "list_of_struct": _of(pa.list_(pa.struct([("a", pa.large_string())])), lambda i: [{"a": _text(i)}]),
}

REFUSED: dict[str, Values] = {
    "dense_union": lambda count, nulls: pa.UnionArray.from_dense(
        pa.array([0] * count, pa.int8()), pa.array(range(count), pa.int32()), [pa.array(range(count)), pa.array(["a"])]
    ),
    "sparse_union": lambda count, nulls: pa.UnionArray.from_sparse(
        pa.array([0] * count, pa.int8()), [pa.array(range(count)), pa.array(["a"] * count)]
    ),
}


def _extended(kind: pa.DataType, storage: Values) -> Values:
    return lambda count, nulls: pa.ExtensionArray.from_storage(kind, storage(count, nulls).cast(kind.storage_type))


EXTENSIONS: dict[str, Values] = {
    "uuid": _extended(pa.uuid(), _of(pa.binary(16), lambda i: uuid.UUID(int=i).bytes)),
    "json": _extended(pa.json_(), _of(pa.string(), lambda i: f'{{"a": {i}}}')),
    "json_of_views": _extended(pa.json_(pa.string_view()), _of(pa.string(), lambda i: f'{{"a": {i}}}')),
    "bool8": _extended(pa.bool8(), _of(pa.int8(), lambda i: i % 2)),
    "opaque": _extended(pa.opaque(pa.int32(), "geometry", "vendor"), _of(pa.int32(), lambda i: i)),
    "tensor": _extended(pa.fixed_shape_tensor(pa.int8(), [2]), _of(pa.list_(pa.int8(), 2), lambda i: [i % 100, 1])),
}


def in_dictionary(values: Values, index: pa.DataType) -> Values:
    """The values as indices, backwards, into a dictionary that holds some more than are used.

    Null is said both ways: by an index, and by what an index points to.
    """

    def make(count: int, nulls: bool) -> pa.Array:
        places = np.arange(count)[::-1] + 1
        indices = pa.array(places.copy(), mask=(places % 5 == 0) & nulls).cast(index)
        return pa.DictionaryArray.from_arrays(indices, values(count + 2, nulls))

    return make


def in_runs(values: Values, run_end: pa.DataType) -> Values:
    """Runs of three equal values."""

    def make(count: int, nulls: bool) -> pa.Array:
        runs = values(-(-count // 3), nulls)
        ends = np.minimum(3 * (np.arange(len(runs)) + 1), max(count, 1))
        return pa.RunEndEncodedArray.from_arrays(pa.array(ends).cast(run_end), runs)

    return make


PLAIN = {**FLAT, **NESTED, **EXTENSIONS}
WRAPPED: dict[str, Values] = {
    **{f"dictionary<int8, {name}>": in_dictionary(values, pa.int8()) for name, values in PLAIN.items()},
    **{f"run_ends<int16, {name}>": in_runs(values, pa.int16()) for name, values in PLAIN.items()},
    "dictionary<uint64, string>": in_dictionary(FLAT["string"], pa.uint64()),
    "dictionary<int16, dictionary>": in_dictionary(in_dictionary(FLAT["string"], pa.int8()), pa.int16()),
    "run_ends<int64, dictionary>": in_runs(in_dictionary(FLAT["string_view"], pa.int8()), pa.int64()),
    "null": lambda count, nulls: pa.nulls(count),
    "dictionary<int8, null>": lambda count, nulls: pa.DictionaryArray.from_arrays(
        pa.array([0] * count, pa.int8()), pa.nulls(1)
    ),
}
ALL = {**PLAIN, **WRAPPED}


def is_key(name: str) -> bool:
    """Whether values of the type may be keys: flat ones, also in wrappers, if they are not intervals or null."""
    inner = name.partition(", ")[2].rstrip(">") if name.startswith(("dictionary<", "run_ends<")) else name
    flat = {**FLAT, **EXTENSIONS, "dictionary": FLAT["string"]}
    return inner in flat and inner not in NO_KEYS | {"tensor"}
