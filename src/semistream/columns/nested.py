"""Nested Arrow columns as one self-contained binary value per row, and back.

Operators keep, hash, spill and copy rows as flat bytes; a list or a struct is spread over many Arrow buffers.
This codec gives each row of a nested column a blob of its own, without a Python step per row.

A blob is a small column store of one row. A node of the type tree that occurs n times in the row writes

    bits      ceil(n / 8) bytes, which of the n values are valid  (left out where a null cannot be)
    then, for the v valid values only:
    fixed     v * width bytes                 bool    ceil(v / 8) bytes
    string    v u32 lengths, then the bytes   struct  each child in turn, v values each
    list, map v u32 sizes, then the child, sum(sizes) values    fixed-size list: the child, v * size values

so a run of one row is contiguous in the column's buffer, and both directions are one pass per node in which
run r moves between the buffer and row r (`kernels/blobs.py`):

    column buffer  |run 0|run 1|run 2|...          encode: run r goes to cursor r, cursor r advances
                      |     |     |                decode: the same walk over the type, backwards copy
    blobs       |...run 0...|...run 1...|...run 2...|

Lengths of a run follow from what the row has already said, so nothing but the type is needed to decode.
A null costs one bit, whatever its type. What Arrow buffers hold beneath a null never reaches the blob, and
dictionary and run-end values are written as plain values, so equal rows give equal blobs (floats go by their
bits).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.errors import SchemaError, StoreError
from semistream.kernels.blobs import gather_runs, pack_runs, scatter_runs, unpack_runs

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
# Rows of an Arrow array that take part: a slice as long as they are adjacent (no copy), else their numbers.
Positions = slice | Int64s

_INT32_MAX = 2**31 - 1
_UINT32_MAX = 2**32 - 1


class TooManyValuesError(SchemaError):
    """The rows do not fit one array of their type; fewer do."""


def supports_nested(type: pa.DataType) -> bool:
    """Whether `encode_nested` takes this type; true of flat types too, false of unions at any depth."""
    return _unsupported(type) is None


def encode_nested(array: pa.Array) -> pa.BinaryArray:
    """One blob per row; a null row is an Arrow null, not a blob.

    >>> blobs = encode_nested(pa.array([[1, None], None, []]))
    >>> decode_nested(blobs, pa.list_(pa.int64())).to_pylist()
    [[1, None], None, []]
    """
    _check(array.type)
    plain, positions, valid = _peel(array, slice(0, len(array)))
    bounds = np.arange(len(array) + 1, dtype=np.int64) if valid is None else bounds_of(valid)
    writer = _Writer(len(array))
    writer.put_present(plain, positions, bounds)
    return writer.finish(valid)


def decode_nested(blobs: pa.Array, type: pa.DataType) -> pa.Array:
    """Exact inverse of `encode_nested`: values and nulls at every level, and the type itself.

    Only the layout is new: dictionaries list their values in the order of first use (an `ordered`
    dictionary keeps the flag, its unused values and their order are not in the rows), and
    run-end columns have the longest possible runs.
    """
    _check(type)
    reader = _Reader(blobs)
    valid = reader.valid
    bounds = np.arange(len(blobs) + 1, dtype=np.int64) if valid is None else bounds_of(valid)
    array = reader.get(type, bounds, valid, required=True)
    reader.finish()
    return array


# --- types ------------------------------------------------------------


def _unsupported(type: pa.DataType) -> pa.DataType | None:
    """The first type in the tree that has no encoding."""
    inner = _wrapped(type)
    if inner is not None:
        return _unsupported(inner)
    if pa.types.is_nested(type):
        if pa.types.is_union(type):
            return type
        for at in range(type.num_fields):
            found = _unsupported(type.field(at).type)
            if found is not None:
                return found
        return None
    known = pa.types.is_null(type) or is_var(type) or is_view(type) or width_of(type) is not None
    return None if known else type


def _check(type: pa.DataType) -> None:
    found = _unsupported(type)
    if found is not None:
        raise SchemaError(
            f"a column of type {type} cannot be carried through the join: {found} has no row form; allowed "
            "are struct, list, map and flat types. Leave the column out with select=, or turn a union into a "
            "struct with one nullable field an alternative"
        )


def _wrapped(type: pa.DataType) -> pa.DataType | None:
    """The type of the values behind an extension, a dictionary or run ends."""
    if isinstance(type, pa.BaseExtensionType):
        return type.storage_type
    if pa.types.is_dictionary(type) or pa.types.is_run_end_encoded(type):
        return type.value_type
    return None


def _is_null(type: pa.DataType) -> bool:
    """Null type, also behind wrappers: there is nothing to write, not even bits."""
    inner = _wrapped(type)
    return bool(pa.types.is_null(type)) if inner is None else _is_null(inner)


def width_of(type: pa.DataType) -> int | None:
    """Bytes of a fixed-width value; bool counts as one (it travels as flags)."""
    try:
        return int(type.bit_width + 7) // 8
    except ValueError:
        return None


def is_var(type: pa.DataType) -> bool:
    is_ = pa.types
    return bool(is_.is_string(type) or is_.is_binary(type) or is_.is_large_string(type) or is_.is_large_binary(type))


def is_view(type: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(type) or pa.types.is_binary_view(type))


def is_list(type: pa.DataType) -> bool:
    return bool(pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_map(type))


def is_list_view(type: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(type) or pa.types.is_large_list_view(type))


def _offset_dtype(type: pa.DataType) -> npt.DTypeLike:
    is_ = pa.types
    large = is_.is_large_string(type) or is_.is_large_binary(type) or is_.is_large_list(type)
    return np.int64 if large or is_.is_large_list_view(type) else np.int32


# --- buffers ------------------------------------------------------------


def bounds_of(counts: npt.NDArray[Any]) -> Int64s:
    """Running totals with the leading zero."""
    bounds = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, dtype=np.int64, out=bounds[1:])
    return bounds


def _bit_bounds(bounds: Int64s) -> Int64s:
    """Bounds in bytes of runs of bits that each start on a byte of their own."""
    return bounds_of((np.diff(bounds) + 7) >> 3)


def _count(positions: Positions) -> int:
    return positions.stop - positions.start if isinstance(positions, slice) else len(positions)


def _shift(positions: Positions, by: int) -> Positions:
    if isinstance(positions, slice):
        return slice(positions.start + by, positions.stop + by)
    return positions + by


def _numbers(positions: Positions) -> Int64s:
    return np.arange(positions.start, positions.stop) if isinstance(positions, slice) else positions


def _view(buffer: pa.Buffer | None, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    if buffer is None or buffer.size == 0:
        return np.zeros(0, dtype=dtype)
    size = np.dtype(dtype).itemsize
    return np.frombuffer(buffer, dtype=dtype, count=buffer.size // size)


def _bits(buffer: pa.Buffer, positions: Positions) -> Flags:
    """Bits of a bitmap. Touches only the bytes asked for: a batch is often a thin slice of a large table."""
    packed = _view(buffer, np.uint8)
    if isinstance(positions, slice):
        first = positions.start >> 3
        flags = np.unpackbits(packed[first : (positions.stop + 7) >> 3], bitorder="little")
        return flags[positions.start - 8 * first : positions.stop - 8 * first].view(np.bool_)
    picked: Bytes = (packed[positions >> 3] >> (positions & 7).astype(np.uint8)) & 1
    return picked.view(np.bool_)


def _address(data: npt.NDArray[Any]) -> int:
    return int(data.ctypes.data)


def _bitmap(valid: Flags | None) -> pa.Buffer | None:
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _spread(dense: npt.NDArray[Any], valid: Flags | None) -> npt.NDArray[Any]:
    """Values of the valid slots into an array with all slots; the others are zero."""
    if valid is None:
        return dense
    full = np.zeros(len(valid), dtype=dense.dtype)
    full[valid] = dense
    return full


def _fill(valid: Flags | None, inner: Flags | None) -> Flags | None:
    """Flags over all slots, from flags over those slots that `valid` marks."""
    if valid is None or inner is None:
        return inner if valid is None else valid
    full = valid.copy()
    full[valid] = inner
    return full


# --- encode ------------------------------------------------------------


def _peel(array: pa.Array, positions: Positions) -> tuple[pa.Array, Positions, Flags | None]:
    """The plain array behind any wrappers, the positions there of the values that are valid, and which are.

    Null may be said by the wrapper (a null index) or by what it points to (a null in the dictionary).
    """
    valid: Flags | None = None
    while True:
        if pa.types.is_null(array.type):
            return array, slice(0, 0), _fill(valid, np.zeros(_count(positions), dtype=np.bool_))
        bitmap = array.buffers()[0]
        if bitmap is not None and not pa.types.is_run_end_encoded(array.type):
            flags = _bits(bitmap, _shift(positions, array.offset))
            if not flags.all():
                valid = _fill(valid, flags)
                positions = _numbers(positions)[flags]
        if isinstance(array.type, pa.BaseExtensionType):
            array = array.storage
        elif pa.types.is_dictionary(array.type):
            indices = array.indices
            rows = _view(indices.buffers()[1], indices.type.to_pandas_dtype())
            positions = rows[_shift(positions, indices.offset)].astype(np.int64)
            array = array.dictionary
        elif pa.types.is_run_end_encoded(array.type):
            logical = _numbers(_shift(positions, array.offset))
            positions = np.searchsorted(array.run_ends.to_numpy(), logical, side="right")
            array = array.values
        else:
            return array, positions, valid


class _Writer:
    """Collects the runs of all nodes in type order, then lays them out row by row."""

    def __init__(self, n_rows: int) -> None:
        self._n_rows = n_rows
        self._runs: list[tuple[Bytes, Int64s]] = []

    def put(self, array: pa.Array, positions: Positions, bounds: Int64s) -> None:
        """Values at `positions`, of which row r owns [bounds[r], bounds[r + 1])."""
        if _is_null(array.type):
            return
        plain, positions, valid = _peel(array, positions)
        if valid is None:
            self._put_flags(np.ones(int(bounds[-1]), dtype=np.bool_), bounds)
        else:
            self._put_flags(valid, bounds)
            bounds = bounds_of(valid)[bounds]
        self.put_present(plain, positions, bounds)

    def put_present(self, array: pa.Array, positions: Positions, bounds: Int64s) -> None:
        """The same for values known to be valid."""
        n = _count(positions)
        type = array.type
        if n == 0:
            return  # every run is empty, and Arrow may leave out the buffers of an empty array
        if pa.types.is_boolean(type):
            self._put_flags(_bits(array.buffers()[1], _shift(positions, array.offset)), bounds)
        elif pa.types.is_struct(type):
            for at in range(type.num_fields):
                self.put(array.field(at), positions, bounds)
        elif pa.types.is_fixed_size_list(type):
            size = type.list_size
            if isinstance(positions, slice):
                start = (array.offset + positions.start) * size
                inner: Positions = slice(start, start + n * size)
            else:
                inner = ((array.offset + positions)[:, None] * size + np.arange(size)).reshape(-1)
            self.put(array.values, inner, bounds * size)
        elif is_var(type):
            self._put_var(array, positions, bounds)
        elif is_view(type):
            low = positions.start if isinstance(positions, slice) else int(positions.min())
            high = positions.stop if isinstance(positions, slice) else int(positions.max()) + 1
            container = pa.large_string() if pa.types.is_string_view(type) else pa.large_binary()
            self._put_var(array.slice(low, high - low).cast(container), _shift(positions, -low), bounds)
        elif is_list(type) or is_list_view(type):
            starts, sizes = ranges_of(array, positions)
            inner_bounds = self._put_sizes(sizes, bounds)
            inner = _expand(starts, sizes)
            if pa.types.is_map(type):
                self._put_entries(array.values, inner, inner_bounds)
            else:
                self.put(array.values, inner, inner_bounds)
        else:
            width = width_of(type)
            if width:
                values = _view(array.buffers()[1], f"V{width}")[_shift(positions, array.offset)]
                self._append(values.view(np.uint8), bounds * width)

    def finish(self, valid: Flags | None) -> pa.BinaryArray:
        sizes = np.zeros(self._n_rows, dtype=np.int64)
        for _, bounds in self._runs:
            sizes += np.diff(bounds)
        offsets = bounds_of(sizes)
        total = int(offsets[-1])
        if total > _INT32_MAX:
            raise SchemaError(
                f"a batch of {self._n_rows} rows of a nested column takes {total} bytes as rows; at most "
                f"{_INT32_MAX} fit one Arrow binary array. Push smaller batches"
            )
        data = np.empty(total, dtype=np.uint8)
        cursor = offsets[:-1].copy()
        for source, bounds in self._runs:
            scatter_runs(_address(data), cursor, _address(source), bounds)
        buffers = [_bitmap(valid), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.binary(), self._n_rows, buffers)

    def _append(self, data: Bytes, bounds: Int64s) -> None:
        self._runs.append((np.ascontiguousarray(data), np.ascontiguousarray(bounds)))

    def _put_flags(self, flags: Flags, bounds: Int64s) -> None:
        packed_bounds = _bit_bounds(bounds)
        packed = np.zeros(int(packed_bounds[-1]), dtype=np.uint8)
        pack_runs(packed, packed_bounds, np.ascontiguousarray(flags).view(np.uint8), bounds)
        self._append(packed, packed_bounds)

    def _put_sizes(self, sizes: Int64s, bounds: Int64s) -> Int64s:
        """Writes the sizes; returns the bounds of what they measure."""
        largest = int(sizes.max())
        if largest > _UINT32_MAX:
            raise SchemaError(
                f"a nested column holds a value of {largest} elements; at most {_UINT32_MAX} fit a row. "
                "Split the value, or leave the column out with select="
            )
        self._append(sizes.astype(np.uint32).view(np.uint8), bounds * 4)
        return bounds_of(sizes)[bounds]

    def _put_var(self, array: pa.Array, positions: Positions, bounds: Int64s) -> None:
        starts, sizes = ranges_of(array, positions)
        byte_bounds = self._put_sizes(sizes, bounds)
        data = _view(array.buffers()[2], np.uint8)
        if _adjacent(starts, sizes):
            self._append(data[starts[0] : starts[-1] + sizes[-1]], byte_bounds)
        else:
            moved = np.empty(int(sizes.sum()), dtype=np.uint8)
            gather_runs(_address(moved), bounds_of(sizes), _address(data), starts.copy())
            self._append(moved, byte_bounds)

    def _put_entries(self, entries: pa.Array, positions: Positions, bounds: Int64s) -> None:
        """A map's entries and keys are never null, so they carry no bits."""
        keys, key_positions, valid = _peel(entries.field(0), positions)
        if valid is not None and not valid.all():
            raise SchemaError("a map column holds a null key, which Arrow does not allow; drop those entries")
        self.put_present(keys, key_positions, bounds)
        self.put(entries.field(1), positions, bounds)


def ranges_of(array: pa.Array, positions: Positions) -> tuple[Int64s, Int64s]:
    """Where each list or string at `positions` starts in the child or the bytes, and its size."""
    at = _shift(positions, array.offset)
    offsets = _view(array.buffers()[1], _offset_dtype(array.type))
    starts = offsets[at].astype(np.int64)
    if is_list_view(array.type):
        return starts, _view(array.buffers()[2], _offset_dtype(array.type))[at].astype(np.int64)
    return starts, offsets[_shift(at, 1)] - starts


def _adjacent(starts: Int64s, sizes: Int64s) -> bool:
    return bool(np.array_equal(starts[1:], starts[:-1] + sizes[:-1]))


def _expand(starts: Int64s, sizes: Int64s) -> Positions:
    """All positions of the ranges, in order."""
    if _adjacent(starts, sizes):
        return slice(int(starts[0]), int(starts[-1] + sizes[-1]))
    bounds = bounds_of(sizes)
    return np.repeat(starts - bounds[:-1], sizes) + np.arange(int(bounds[-1]), dtype=np.int64)


# --- decode ------------------------------------------------------------


class _Reader:
    """Walks the type as the writer did, with one cursor per row.

    Throughout, `bounds` says which values of a node row r owns, and `slots` where they go: a value beneath a
    null struct was never written but needs a slot in the child array. None: as many slots as values.
    """

    def __init__(self, blobs: pa.Array) -> None:
        bitmap = blobs.buffers()[0]
        rows = slice(blobs.offset, blobs.offset + len(blobs))
        flags = None if bitmap is None else _bits(bitmap, rows)
        self.valid: Flags | None = None if flags is None or flags.all() else flags
        offsets = np.zeros(1, dtype=np.int64)
        if len(blobs):
            offsets = _view(blobs.buffers()[1], _offset_dtype(blobs.type))[rows.start : rows.stop + 1]
        self._data: Bytes = _view(blobs.buffers()[2], np.uint8)
        self._cursor: Int64s = offsets[:-1].astype(np.int64)
        self._end: Int64s = offsets[1:].astype(np.int64)
        if self.valid is not None:
            self._end = np.where(self.valid, self._end, self._cursor)

    def finish(self) -> None:
        if not np.array_equal(self._cursor, self._end):
            raise _corrupt()

    def get(self, type: pa.DataType, bounds: Int64s, slots: Flags | None, required: bool = False) -> pa.Array:
        n = int(bounds[-1]) if slots is None else len(slots)
        inner = _wrapped(type)
        if pa.types.is_null(type):
            if required and bounds[-1]:
                raise _corrupt()
            return pa.nulls(n)
        if inner is not None:
            return _wrap(self.get(inner, bounds, slots, required), type)
        if not required:
            flags = self._take_flags(bounds)
            if not flags.all():
                slots = _fill(slots, flags)
                bounds = bounds_of(flags)[bounds]
        buffers = [_bitmap(slots)]
        children: list[pa.Array] | None = None
        if pa.types.is_boolean(type):
            buffers.append(_bitmap(_spread(self._take_flags(bounds), slots)))
        elif pa.types.is_struct(type):
            fields = [type.field(at) for at in range(type.num_fields)]
            children = [self.get(field.type, bounds, slots) for field in fields]
        elif pa.types.is_fixed_size_list(type):
            size = type.list_size
            inner_slots = None if slots is None else np.repeat(slots, size)
            children = [self.get(type.value_type, bounds * size, inner_slots)]
        elif is_var(type) or is_view(type):
            return self._get_var(type, n, bounds, slots)
        elif is_list(type) or is_list_view(type):
            sizes, inner_bounds = self._take_sizes(bounds)
            if pa.types.is_map(type):
                children = [self._get_entries(type.field(0).type, inner_bounds)]
            else:
                children = [self.get(type.value_type, inner_bounds, None)]
            full = _spread(sizes, slots)
            offsets = _offsets(bounds_of(full), type)
            if is_list_view(type):
                buffers += [pa.py_buffer(offsets[:-1].copy()), pa.py_buffer(full.astype(offsets.dtype))]
            else:
                buffers.append(pa.py_buffer(offsets))
        else:
            width = width_of(type) or 0
            data = self._take(bounds * width)
            if width:
                data = _spread(data.view(f"V{width}"), slots).view(np.uint8)
            buffers.append(pa.py_buffer(data))
        return pa.Array.from_buffers(type, n, buffers, children=children)

    def _get_var(self, type: pa.DataType, n: int, bounds: Int64s, slots: Flags | None) -> pa.Array:
        container = type
        if is_view(type):
            container = pa.large_string() if pa.types.is_string_view(type) else pa.large_binary()
        sizes, byte_bounds = self._take_sizes(bounds)
        data = self._take(byte_bounds)
        offsets = _offsets(bounds_of(_spread(sizes, slots)), container)
        array = pa.Array.from_buffers(container, n, [_bitmap(slots), pa.py_buffer(offsets), pa.py_buffer(data)])
        return array.cast(type) if is_view(type) else array

    def _get_entries(self, type: pa.DataType, bounds: Int64s) -> pa.Array:
        key, item = type.field(0), type.field(1)
        children = [self.get(key.type, bounds, None, required=True), self.get(item.type, bounds, None)]
        return pa.Array.from_buffers(type, int(bounds[-1]), [None], children=children)

    def _take(self, bounds: Int64s) -> Bytes:
        # Before anything is allocated or read: a damaged size must not send the kernel out of the buffer.
        if bool((np.diff(bounds) > self._end - self._cursor).any()):
            raise _corrupt()
        data = np.empty(int(bounds[-1]), dtype=np.uint8)
        gather_runs(_address(data), np.ascontiguousarray(bounds), _address(self._data), self._cursor)
        return data

    def _take_flags(self, bounds: Int64s) -> Flags:
        packed_bounds = _bit_bounds(bounds)
        packed = self._take(packed_bounds)
        flags = np.empty(int(bounds[-1]), dtype=np.uint8)
        unpack_runs(flags, np.ascontiguousarray(bounds), packed, packed_bounds)
        return flags.view(np.bool_)

    def _take_sizes(self, bounds: Int64s) -> tuple[Int64s, Int64s]:
        sizes = self._take(bounds * 4).view(np.uint32).astype(np.int64)
        return sizes, bounds_of(sizes)[bounds]


def _corrupt() -> StoreError:
    return StoreError(
        "a row of a nested column does not match its type: its bytes end too early or too late. It was "
        "damaged, or written for another type; write the master data again with build_pages"
    )


def _offsets(bounds: Int64s, type: pa.DataType) -> npt.NDArray[Any]:
    dtype = _offset_dtype(type)
    if dtype is np.int32 and int(bounds[-1]) > _INT32_MAX:
        raise TooManyValuesError(
            f"{int(bounds[-1])} elements or bytes in one array of type {type}; at most {_INT32_MAX} fit. "
            "Use the large_ form of the type, or smaller batches"
        )
    return bounds.astype(dtype)


def _wrap(values: pa.Array, type: pa.DataType) -> pa.Array:
    """Plain values into the extension, dictionary or run-end form of `type`."""
    if isinstance(type, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type, values)
    # Blobs tell values apart by their bits at any depth; Arrow's hashing folds NaNs and refuses nested types.
    codes = encode_nested(values).dictionary_encode()
    return from_codes(codes, type, lambda blobs: decode_nested(blobs, type.value_type))


def from_codes(codes: pa.DictionaryArray, type: pa.DataType, decode: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """The dictionary or run-end form of values that stand in `codes`, whose distinct ones `decode` restores."""
    if pa.types.is_dictionary(type):
        _check_codes(len(codes.dictionary) - 1, type.index_type, type)
        indices = codes.indices.cast(type.index_type)
        return pa.DictionaryArray.from_arrays(indices, decode(codes.dictionary), ordered=type.ordered)
    _check_codes(len(codes), type.run_end_type, type)
    numbers = codes.indices.fill_null(-1).to_numpy()
    last = np.flatnonzero(np.append(numbers[1:] != numbers[:-1], len(numbers) > 0))
    run_ends = pa.array(last + 1).cast(type.run_end_type)
    runs = decode(codes.dictionary.take(codes.indices.take(pa.array(last))))
    return pa.RunEndEncodedArray.from_arrays(run_ends, runs, type)


def _check_codes(largest: int, integer: pa.DataType, type: pa.DataType) -> None:
    allowed = int(np.iinfo(integer.to_pandas_dtype()).max)
    if largest > allowed:
        raise TooManyValuesError(
            f"a batch of type {type} needs the number {largest}, but {integer} ends at {allowed}. Cast the "
            "column to a wider index or run-end type, or to its plain value type"
        )
