"""Key codes: one int64 for the key of a tuple, whatever columns the key is made of.

Tables, indexes and page orders then know integers only. The code of a single number-like column *is* the key
(exact); any other key is coded as Spark's `xxhash64` of its columns, so that Spark may lay pages out and read
them with the same codes, and matches are confirmed with `equal_keys`.

The master data decides: its types fix the code, and a stream column of another, compatible type is coded as
if it had been cast. A stream value that the master's type cannot hold matches nothing: it is marked like a
null.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semistream.columns.physical import PhysicalSchema
from semistream.columns.plain import to_plain
from semistream.errors import ConfigError, KeyTypeError, SchemaError, StoreError
from semistream.kernels import hashing

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_INT64 = np.iinfo(np.int64)
_MS_PER_DAY = 86_400_000
_NS_PER_UNIT = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_ALLOWED = "allowed are integers, floats, booleans, decimals, dates, times, timestamps, durations, strings and binaries"


def plain_key_type(kind: pa.DataType) -> pa.DataType | None:
    """The plain type under which keys of a type are coded; None when it cannot be a key."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_key_type(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain_key_type(kind.value_type)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_interval(kind) or not (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_temporal(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_fixed_size_binary(kind)
    ):
        return None
    return kind


def _require_key_type(name: str, kind: pa.DataType) -> pa.DataType:
    plain = plain_key_type(kind)
    if plain is None:
        raise KeyTypeError(
            f"key column {name!r} has type {kind}, which cannot be a key; {_ALLOWED}: "
            "cast the column, or take its parts as several key columns"
        )
    return plain


def _plain_array(array: pa.Array, plain: pa.DataType) -> pa.Array:
    """Takes extension, dictionary, run-end, large and view encodings off."""
    array = to_plain(array)
    return array if array.type == plain else array.cast(plain)


def _is_exact(plain: pa.DataType) -> bool:
    """Whether a value fits its code."""
    return not (
        pa.types.is_string(plain)
        or pa.types.is_binary(plain)
        or pa.types.is_fixed_size_binary(plain)
        or pa.types.is_decimal(plain)
    )


def _family(plain: pa.DataType) -> tuple[object, ...]:
    """What two key types must share to be compared."""
    if pa.types.is_integer(plain):
        return ("integer",)
    if pa.types.is_decimal(plain):
        return ("decimal", plain.precision, plain.scale)
    if pa.types.is_binary(plain) or pa.types.is_fixed_size_binary(plain):
        return ("binary",)
    if pa.types.is_timestamp(plain):
        return ("timestamp", plain.unit, plain.tz is not None)
    return (str(plain),)


def _disagreement(stream: pa.DataType, master: pa.DataType) -> str | None:
    """Why two plain key types cannot be joined and what to do, or None if they can."""
    if _family(stream) == _family(master):
        if pa.types.is_integer(stream) and pa.uint64() in (stream, master):
            other = master if stream == pa.uint64() else stream
            if pa.types.is_signed_integer(other):
                return "uint64 and signed integers have no common 64-bit type: cast both to decimal(20, 0)"
        return None
    if pa.types.is_timestamp(stream) and pa.types.is_timestamp(master):
        if (stream.tz is None) != (master.tz is None):
            return "one has a time zone and the other has none: cast the stream column to the master's type"
        return "their units differ: cast the stream column to the master's unit"
    if pa.types.is_decimal(stream) and pa.types.is_decimal(master):
        return "precision and scale must be the same: cast the stream column to the master's type"
    return "the types must be the same (integer widths may differ): cast the stream column to the master's type"


def check_key_types(stream_fields: Sequence[pa.Field], master_fields: Sequence[pa.Field]) -> None:
    """Refuses key columns that cannot be compared, before any data is read."""
    if len(stream_fields) != len(master_fields) or not stream_fields:
        stream_names = ", ".join(repr(column.name) for column in stream_fields) or "none"
        master_names = ", ".join(repr(column.name) for column in master_fields) or "none"
        raise SchemaError(
            f"the key columns of the stream are {stream_names} and those of the master data {master_names}: "
            "name at least one, and as many on both sides"
        )
    for stream, master in zip(stream_fields, master_fields, strict=True):
        why = _disagreement(_require_key_type(stream.name, stream.type), _require_key_type(master.name, master.type))
        if why is not None:
            raise KeyTypeError(
                f"key column {stream.name!r} of the stream has type {stream.type} and {master.name!r} of the "
                f"master data has type {master.type}; {why}"
            )


@dataclass(frozen=True)
class _Step:
    """A kernel and what it must know of its column beyond the addresses."""

    kernel: Callable[..., int]
    arguments: tuple[Any, ...] = ()
    by_offsets: bool = False


def _ticks(plain: pa.DataType) -> tuple[int, int, int]:
    """Factor, divisor and hash form that bring a temporal column to what Spark holds.

    Days for dates, microseconds for timestamps and day-time intervals, nanoseconds for times. Finer
    timestamps lose digits here, which only makes their hashes collide.
    """
    if pa.types.is_date32(plain):
        return 1, 1, hashing.AS_INT
    if pa.types.is_date64(plain):
        return 1, _MS_PER_DAY, hashing.AS_INT
    factor = _NS_PER_UNIT[plain.unit]
    if pa.types.is_time(plain):
        return factor, 1, hashing.AS_LONG
    return max(factor // 1_000, 1), 1_000 if factor == 1 else 1, hashing.AS_LONG


def _integer_step(read: pa.DataType, master: pa.DataType) -> _Step:
    """Integers are hashed as Spark would after reading the master's column from Parquet.

    There uint8 becomes short, uint16 int, uint32 long and uint64 decimal(20, 0).
    """
    bits = master.bit_width
    signed = pa.types.is_signed_integer(master)
    if signed:
        low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        form = hashing.AS_LONG if bits == 64 else hashing.AS_INT
    elif bits == 64:
        # Unsigned on both sides (check_key_types), so every bit pattern is in range.
        low, high, form = _INT64.min, _INT64.max, hashing.AS_BIG
    else:
        low, high = 0, (1 << bits) - 1
        form = hashing.AS_LONG if bits == 32 else hashing.AS_INT
    return _Step(
        hashing.hash_ints,
        (read.bit_width // 8, pa.types.is_signed_integer(read), int(low), int(high), 1, 1, form),
    )


def _hash_step(read: pa.DataType, master: pa.DataType) -> _Step:
    """How a column of plain type `read` is folded into hashes coded for plain type `master`."""
    if pa.types.is_boolean(read):
        return _Step(hashing.hash_bools)
    if pa.types.is_integer(read):
        return _integer_step(read, master)
    if pa.types.is_floating(read):
        return _Step(hashing.hash_floats, (read.bit_width // 8,))
    if pa.types.is_temporal(read):
        times, per, form = _ticks(read)
        return _Step(
            hashing.hash_ints,
            (read.bit_width // 8, True, int(_INT64.min), int(_INT64.max), times, per, form),
        )
    if pa.types.is_decimal(read):
        form = hashing.AS_LONG if read.precision <= 18 else hashing.AS_BIG
        return _Step(hashing.hash_decimals, (read.byte_width, form))
    if pa.types.is_fixed_size_binary(read):
        return _Step(hashing.hash_blocks, (read.byte_width,))
    return _Step(hashing.hash_runs, by_offsets=True)


def _exact_step(read: pa.DataType) -> _Step:
    if pa.types.is_boolean(read):
        return _Step(hashing.code_bools)
    if pa.types.is_floating(read):
        return _Step(hashing.code_floats, (read.bit_width // 8,))
    return _Step(hashing.code_ints, (read.bit_width // 8, not pa.types.is_unsigned_integer(read)))


class KeyCoder:
    """Codes the key columns of record batches.

    `types` are the master's key types. `exact` tells that equal codes mean equal keys; otherwise a match must
    be confirmed with `equal_keys`. `mask`, if set, is and-ed to hashed codes (exact ones are left alone): it
    exists to force collisions in tests, and both sides of a join must use the same.

    >>> coder = KeyCoder([pa.int32()])
    >>> codes, valid = coder.codes([pa.array([7, None, -1], pa.int32())])
    >>> coder.exact, codes.tolist(), valid.tolist()
    (True, [7, 0, -1], [True, False, True])
    >>> codes, valid = KeyCoder([pa.string()]).codes([pa.array(["Spark"])])
    >>> codes.tolist(), valid is None
    ([-4294468057691064905], True)
    """

    def __init__(
        self,
        types: Sequence[pa.DataType],
        mask: int | None = None,
        *,
        names: Sequence[str] | None = None,
        read_types: Sequence[pa.DataType] | None = None,
    ) -> None:
        """`read_types` are those of the columns to code, where they are not the master's (`for_stream`)."""
        if not types:
            raise SchemaError("a key needs at least one column: none was given")
        if mask is not None and not 0 <= mask <= _INT64.max:
            raise ConfigError(f"mask {mask} is refused: it must lie between 0 and 2**63 - 1, or be None")
        self.types = tuple(types)
        self.mask = mask
        self._names = tuple(names) if names is not None else tuple(f"key {i + 1}" for i in range(len(types)))
        master = [_require_key_type(name, kind) for name, kind in zip(self._names, types, strict=True)]
        self._read = master
        if read_types is not None:
            named = zip(self._names, read_types, strict=True)
            self._read = [_require_key_type(name, kind) for name, kind in named]
        self.exact = len(master) == 1 and _is_exact(master[0])
        if self.exact:
            self._steps = [_exact_step(self._read[0])]
        else:
            self._steps = [_hash_step(*pair) for pair in zip(self._read, master, strict=True)]
        self._physical = PhysicalSchema(pa.schema([pa.field(f"{i}", kind) for i, kind in enumerate(self._read)]))

    @classmethod
    def for_stream(
        cls,
        stream_types: Sequence[pa.DataType],
        master_types: Sequence[pa.DataType],
        mask: int | None = None,
    ) -> KeyCoder:
        """A coder of stream columns that gives the codes of the master's types."""
        check_key_types(
            [pa.field(f"key {i + 1}", kind) for i, kind in enumerate(stream_types)],
            [pa.field(f"key {i + 1}", kind) for i, kind in enumerate(master_types)],
        )
        return cls(master_types, mask, read_types=stream_types)

    def __repr__(self) -> str:
        return f"KeyCoder([{', '.join(map(str, self.types))}], mask={self.mask})"

    def codes(self, columns: Sequence[pa.Array]) -> tuple[Int64s, Bools | None]:
        """Codes of a batch, and which of them can match at all (None: every one).

        The arrays are the caller's own: no memory is shared with the batch. Where `valid` is false the code
        is 0 if exact, else the hash of the other columns.
        """
        arrays = self._plain(columns)
        view = self._physical.view(arrays)
        codes = np.full(view.n_rows, hashing.SPARK_SEED, dtype=np.int64)
        valid = np.ones(view.n_rows, dtype=np.bool_)
        dropped = 0
        for i, step in enumerate(self._steps):
            starts = (view.offs[i], view.data[i]) if step.by_offsets else (view.data[i],)
            dropped += step.kernel(*starts, *step.arguments, view.valid[i], view.bit[i], codes, valid)
        if self.mask is not None and not self.exact:
            codes &= np.int64(self.mask)
        return codes, (valid if dropped else None)

    def _plain(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Kernels trust the types and lengths they are given, so both are checked here, on every batch."""
        if len(columns) != len(self._read):
            raise SchemaError(f"{len(columns)} key columns were given where {len(self._read)} are expected")
        arrays = []
        for name, plain, column in zip(self._names, self._read, columns, strict=True):
            if plain_key_type(column.type) != plain:
                raise KeyTypeError(
                    f"key column {name!r} has type {column.type} in this batch where {plain} is expected: "
                    "cast the batch to the schema the join was opened with"
                )
            if len(column) != len(columns[0]):
                raise SchemaError(
                    f"key column {name!r} has {len(column)} values where the first has {len(columns[0])}: "
                    "give the columns of one record batch"
                )
            arrays.append(_plain_array(column, plain))
        return arrays

    def to_json(self) -> dict[str, Any]:
        """What a manifest keeps, as JSON values: the types in words and as an Arrow schema, and the mask."""
        schema = pa.schema([pa.field(f"{i}", kind) for i, kind in enumerate(self.types)])
        return {
            "types": [str(kind) for kind in self.types],
            "schema": base64.b64encode(schema.serialize().to_pybytes()).decode("ascii"),
            "mask": self.mask,
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> KeyCoder:
        """The coder that `to_json` described."""
        try:
            raw = base64.b64decode(saved["schema"], validate=True)
            types = pa.ipc.read_schema(pa.py_buffer(raw)).types
            mask = saved["mask"]
            if not (mask is None or isinstance(mask, int)):
                raise TypeError(f"mask {mask!r}")
            return cls(types, mask)
        except (
            KeyError,
            TypeError,
            binascii.Error,
            pa.ArrowException,
            OSError,
            ConfigError,
            SchemaError,
        ) as error:
            raise StoreError(
                f"the key types in the manifest cannot be read ({error!r}): build the store again"
            ) from error


def equal_keys(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Bools:
    """Whether row i of `left` and row i of `right` are the same key; a null is equal to nothing.

    The columns may differ as far as `check_key_types` lets stream and master differ.
    """
    if len(left) != len(right) or not left:
        raise SchemaError(f"keys of {len(left)} and {len(right)} columns cannot be compared: give as many of each")
    equal: Bools = np.ones(len(left[0]), dtype=np.bool_)
    for i, (ours, theirs) in enumerate(zip(left, right, strict=True)):
        if not len(ours) == len(theirs) == len(equal):
            raise SchemaError(
                f"key {i + 1} has {len(ours)} and {len(theirs)} rows where {len(equal)} are expected: "
                "take both sides by the same matches"
            )
        equal &= _equal_column(f"key {i + 1}", ours, theirs)
    return equal


@lru_cache(maxsize=64)
def _column_coder(plain: pa.DataType) -> KeyCoder:
    """Kept, because a join confirms matches after every probe and making a coder costs more than using it."""
    return KeyCoder([plain])


def _equal_column(name: str, left: pa.Array, right: pa.Array) -> Bools:
    one, two = _require_key_type(name, left.type), _require_key_type(name, right.type)
    why = _disagreement(one, two)
    if why is not None:
        raise KeyTypeError(f"{name} has type {left.type} on one side and {right.type} on the other; {why}")
    if _is_exact(one):
        # The codes are the values, with one NaN and one zero: no casts, and the same rule as when probing.
        ours, ours_valid = _column_coder(one).codes([left])
        theirs, theirs_valid = _column_coder(two).codes([right])
        same: Bools = ours == theirs
        for valid in (ours_valid, theirs_valid):
            if valid is not None:
                same &= valid
        return same
    left, right = _plain_array(left, one), _plain_array(right, two)
    if one != two:
        common = pa.binary() if not pa.types.is_decimal(one) else pa.decimal256(one.precision, one.scale)
        left, right = left.cast(common), right.cast(common)
    result: Bools = pc.fill_null(pc.equal(left, right), False).to_numpy(zero_copy_only=False)
    return result
