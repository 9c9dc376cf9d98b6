"""Record batches from outside are checked here, once, before a kernel follows an address in them.

Kernels trust offsets, indices and lengths: checking them for every tuple would cost more than the join. So whatever
comes from a file, a socket or another library passes here first. Strings and binaries, the usual case, need one quick
pass over their offsets; everything with children (lists, dictionaries, run ends, views) is validated by Arrow in full,
which costs less than unwrapping it afterwards.

Values are not judged: text that is no UTF-8 harms nobody and passes, unless Arrow's full check meets it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from semistream.errors import DamagedBatchError, SchemaError

#: types that are bytes behind offsets, by the width of these
_OFFSETS = {
    pa.string().id: np.int32,
    pa.binary().id: np.int32,
    pa.large_string().id: np.int64,
    pa.large_binary().id: np.int64,
}


def check_batch(batch: pa.RecordBatch, owner: str) -> None:
    """Refuses a batch that would lead a kernel out of its buffers; `owner` is whose batch it is, for the message."""
    check_arrays(names_of(batch.schema, owner), batch.columns, owner)
    for column, array in zip(batch.schema, batch.columns, strict=True):
        if array.null_count and not column.nullable:
            raise SchemaError(
                f"column {column.name!r} of {owner} is declared as not null and holds {array.null_count} nulls: "
                "declare it nullable, or leave these rows out"
            )


def check_arrays(names: Sequence[str], arrays: Sequence[pa.Array], owner: str) -> None:
    """The same for the columns one by one."""
    for name, array in zip(names, arrays, strict=True):
        wrong = _wrong(array)
        if wrong is None and len(array) != len(arrays[0]):
            wrong = f"it has {len(array)} values where the first column has {len(arrays[0])}"
        if wrong is not None:
            raise DamagedBatchError(
                f"column {name!r} of {owner} is not a valid Arrow array: {wrong}. It was damaged on its way, or made "
                "by a faulty writer: read or write the batch again (batch.validate(full=True) says the same)"
            )


def check_table(table: pa.Table, owner: str) -> None:
    """The same for all chunks of a table."""
    for name, column in zip(names_of(table.schema, owner), table.columns, strict=True):
        for chunk in column.chunks:
            check_arrays([name], [chunk], owner)


def check_written(schema: pa.Schema, owner: str) -> None:
    """Refuses columns whose type Arrow writes but cannot read again, as a dictionary of an extension type."""
    for column in schema:
        alone = pa.schema([column.remove_metadata()])
        try:
            kept = pa.ipc.read_schema(alone.serialize()).equals(alone)
        except pa.ArrowException:
            kept = False
        if not kept:
            raise SchemaError(
                f"column {column.name!r} of {owner} has type {column.type}, which Arrow cannot read back from a file: "
                "cast it to a plain type, or leave it out"
            )


def names_of(schema: pa.Schema, owner: str) -> list[str]:
    """The column names, if they can be read at all."""
    try:
        return list(schema.names)
    except UnicodeDecodeError as error:
        raise DamagedBatchError(f"a column name of {owner} is no UTF-8 ({error}): rename the column") from error


def _wrong(array: pa.Array) -> str | None:
    """What is wrong with an array; None if kernels may have it."""
    kind = array.type
    width = _OFFSETS.get(kind.id)
    try:
        if width is None and _has_parts(kind):
            str(kind)  # names of fields and time zones stand in it
            array.validate(full=True)
        else:
            array.validate()
    except (pa.ArrowException, UnicodeDecodeError) as error:
        return str(error).partition("\n")[0] or type(error).__name__
    if width is None or not len(array):
        return None
    _, starts, data = array.buffers()
    offsets = np.frombuffer(starts, dtype=width, count=array.offset + len(array) + 1)[array.offset :]
    size = 0 if data is None else data.size
    if offsets[0] < 0 or offsets[-1] > size or bool((offsets[1:] < offsets[:-1]).any()):
        return f"its offsets fall, or leave its {size} bytes of data"
    return None


def _has_parts(kind: pa.DataType) -> bool:
    """Whether a value is found through another array or buffer, or the type has names in it."""
    try:
        named = isinstance(kind, pa.BaseExtensionType | pa.DictionaryType | pa.TimestampType)
        return kind.bit_width < 0 or named or kind.num_fields > 0
    except ValueError:
        return True
