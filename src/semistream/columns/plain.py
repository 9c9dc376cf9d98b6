"""Flat values out of their wrappers and back: extensions, dictionaries, run ends, large offsets, views.

A wrapper says how values are kept, not what they are, and Arrow's own functions know only some of them (nothing can be
taken from a view, a dictionary of views cannot be decoded). So wrappers come off at the border and are put on again
when rows leave. A dictionary is made anew for every array that leaves: an array that needs more values than its index
type holds is refused with `TooManyValuesError`, and whoever builds the array asks for fewer rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.nested import (
    bounds_of,
    from_codes,
    is_list,
    is_list_view,
    is_var,
    is_view,
    ranges_of,
    width_of,
)

Int64s = npt.NDArray[np.int64]


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The plain type that carries the same values as a wrapped one."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    return kind


def to_plain(array: pa.Array) -> pa.Array:
    """Flat values without wrappers.

    >>> views = pa.array(["a", None]).cast(pa.string_view())
    >>> to_plain(pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), views)).to_pylist()
    ['a', None, None]
    """
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return to_plain(array.storage)
    if pa.types.is_dictionary(kind):
        return to_plain(array.dictionary).take(array.indices)
    if pa.types.is_run_end_encoded(kind):
        return to_plain(array.values).take(pa.array(_runs(array)))
    plain = plain_type(kind)
    return array if kind == plain else array.cast(plain)


def from_plain(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Plain flat values in the wrappers of a type."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, from_plain(array, kind.storage_type))
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        if pa.types.is_decimal32(array.type) or pa.types.is_decimal64(array.type):
            # Arrow hashes these as the bytes they are, not as numbers.
            codes = array.view(pa.binary(array.type.byte_width)).dictionary_encode()
        else:
            codes = array.dictionary_encode()
        return from_codes(codes, kind, lambda values: from_plain(values.view(array.type), kind.value_type))
    return array if array.type == kind else array.cast(kind)


def plain_bytes(array: pa.Array) -> Int64s:
    """Bytes that the values of each row take without wrappers, at any depth; lengths and bitmaps apart."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return plain_bytes(array.storage)
    if pa.types.is_dictionary(kind):
        # The zero behind the last value is what a null takes.
        sizes = np.append(plain_bytes(array.dictionary), 0)
        indices: Int64s = array.indices.cast(pa.int64()).fill_null(len(sizes) - 1).to_numpy(zero_copy_only=False)
        return sizes[indices]
    if pa.types.is_run_end_encoded(kind):
        return plain_bytes(array.values)[_runs(array)]
    if not len(array):
        return np.zeros(0, dtype=np.int64)
    everything = slice(0, len(array))
    if is_var(kind):
        return ranges_of(array, everything)[1]
    if is_view(kind):
        count = 4 * (array.offset + len(array))
        views = np.frombuffer(array.buffers()[1], dtype=np.int32, count=count)[4 * array.offset :: 4]
        return np.where(array.is_valid().to_numpy(zero_copy_only=False), views, 0).astype(np.int64)
    if pa.types.is_struct(kind):
        return sum((plain_bytes(array.field(i)) for i in range(kind.num_fields)), np.zeros(len(array), dtype=np.int64))
    if is_list(kind) or is_list_view(kind):
        starts, sizes = ranges_of(array, everything)
        bounds = bounds_of(plain_bytes(array.values))
        inner: Int64s = bounds[starts + sizes] - bounds[starts]
        return inner
    if pa.types.is_fixed_size_list(kind):
        starts = (array.offset + np.arange(len(array) + 1)) * kind.list_size
        ends: Int64s = bounds_of(plain_bytes(array.values))[starts]
        return ends[1:] - ends[:-1]
    return np.full(len(array), width_of(kind) or 0, dtype=np.int64)


def cut_rows(arrays: Sequence[pa.Array], rows: int, most_rows: int, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Where to cut `rows` rows: first row and number of rows of each piece.

    A piece has at most `most_rows` rows, and in plain form the values of `arrays` (columns of varying width) take at
    most `most_bytes` in it, unless it is a single row.
    """
    if all(is_var(array.type) for array in arrays) and sum(array.nbytes for array in arrays) <= most_bytes:
        for start in range(0, rows, most_rows):
            yield start, min(most_rows, rows - start)
        return
    ends = np.cumsum(sum(plain_bytes(array) for array in arrays))
    start = 0
    while start < rows:
        before = int(ends[start - 1]) if start else 0
        stop = min(int(np.searchsorted(ends, before + most_bytes, side="right")), start + most_rows, rows)
        stop = max(stop, start + 1)
        yield start, stop - start
        start = stop


def with_plain_dictionary(array: pa.Array) -> pa.Array:
    """The same values, with a dictionary that rows can be taken from: made once, whatever is cut from the array."""
    kind = array.type
    if not pa.types.is_dictionary(kind) or pa.types.is_nested(plain_type(kind)) or kind.value_type == plain_type(kind):
        return array
    return pa.DictionaryArray.from_arrays(array.indices, to_plain(array.dictionary))


def _runs(array: pa.RunEndEncodedArray) -> Int64s:
    """For every row the run it stands in."""
    rows = np.arange(array.offset, array.offset + len(array), dtype=np.int64)
    return np.searchsorted(array.run_ends.to_numpy(), rows, side="right").astype(np.int64)
