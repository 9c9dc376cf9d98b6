"""From a batch of the stream to chunks: cut, encoded, null keys set aside.

batch -> parts of at most a chunk of rows -> key codes -> Chunk
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.physical import PhysicalSchema
from semistream.columns.plain import cut_rows, with_plain_dictionary
from semistream.columns.rows import BatchColumns, RowLayout
from semistream.engine.chunk import Chunk
from semistream.engine.stream_shape import StreamShape
from semistream.errors import StoreError
from semistream.master.base import Master
from semistream.spec import JoinSpec

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


_NONE = np.empty(0, dtype=np.bool_)


@dataclass(frozen=True)
class Encoded:
    """Tuples as key codes and physical columns; `valid` says which keys are not null (None: all)."""

    codes: Int64s
    arrays: list[pa.Array]
    valid: Bools | None = None
    #: whether the columns are those of the batch itself, and not made of them
    in_place: bool = False

    @property
    def nulls(self) -> int:
        """Tuples with a null key."""
        return 0 if self.valid is None else int(len(self.valid) - self.valid.sum())

    def with_keys(self) -> Encoded:
        """The tuples that have a key."""
        assert self.valid is not None
        keep = pa.array(self.valid)
        return Encoded(self.codes[self.valid], [array.filter(keep) for array in self.arrays])

    def without_keys(self) -> list[pa.Array]:
        """The columns of the other tuples."""
        assert self.valid is not None
        alone = pa.array(~self.valid)
        return [array.filter(alone) for array in self.arrays]

    def take(self, ids: Int64s) -> Encoded:
        """Some of the tuples."""
        indices = pa.array(ids)
        return Encoded(self.codes[ids], [array.take(indices) for array in self.arrays])


class Intake:
    """Reads the stream; its schema is fixed."""

    def __init__(
        self,
        schema: pa.Schema,
        spec: JoinSpec,
        master: Master,
        chunk_rows: int,
        piece_bytes: int,
        *,
        follows: bool = False,
    ) -> None:
        self.schema, self.physical = schema, PhysicalSchema(schema)
        #: what every batch must look like
        self.shape = StreamShape(schema)
        self.key_at = [schema.get_field_index(name) for name in spec.stream_on]
        self._time_at = None if spec.as_of is None else schema.get_field_index(spec.as_of)
        self.chunk_rows, self.piece_bytes = chunk_rows, piece_bytes
        #: bytes that a tuple became lately, where all rows of a part are built at once; parts are shorter then
        self.joined_bytes = 0.0
        self._how = spec.how
        self._key_types = [schema.field(name).type for name in spec.stream_on]
        self._coder = master.coder.for_stream(self._key_types)
        #: codes from here on are for changes of R to come
        self._reserved = master.reserved_from if follows and self._coder.recoding is None else None

    def follow(self, master: Master) -> None:
        """Code the keys as another version of R wants them; only if no tuple waits under the codes of this one."""
        self._coder = master.coder.for_stream(self._key_types)
        self._reserved = None if self._coder.recoding is not None else self._reserved

    def layout(self, header: int, *, counter: bool = False, with_key: bool = False) -> RowLayout:
        """Packed form of a waiting tuple; a key that is its own code is stored once, unless `with_key` is asked for."""
        aliases: list[int] = []
        kind = self.physical.columns[self.key_at[0]]
        if self._coder.is_key and self._reserved is None and not with_key and not pa.types.is_floating(kind.physical):
            aliases = [self.key_at[0]]
        nullable = [column.nullable for column in self.schema]
        flag = with_key or self._how != "inner"
        return RowLayout(self.physical, header, nullable, aliases, flag=flag, counter=counter)

    def parts(self, rows: pa.RecordBatch | pa.Table) -> Iterator[pa.RecordBatch]:
        """All rows in their order, at most a chunk at once, and no more than a piece of bytes in plain form."""
        for batch in rows.to_batches() if isinstance(rows, pa.Table) else [rows]:
            columns = [with_plain_dictionary(array) for array in batch.columns]
            loose = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
            varying = [columns[i] for i in self.physical.var_columns]
            for start, count in cut_rows(varying, batch.num_rows, self.chunk_rows, self.piece_bytes):
                end = start + count
                while start < end:
                    most = max(int(self.piece_bytes / self.joined_bytes), 1) if self.joined_bytes > 1.0 else count
                    yield loose.slice(start, min(most, end - start))
                    start += most

    def encoded(self, part: pa.RecordBatch) -> Encoded:
        """A part of the stream in the form that kernels take."""
        codes, valid = self._coder.codes([part.column(i) for i in self.key_at])
        if self._reserved is not None:
            # No row has such a code; what is found to be absent must not stay so when a change gives it to one.
            np.minimum(codes, self._reserved, out=codes)
        arrays = self.physical.encode(part.columns)
        if self._time_at is not None and arrays[self._time_at].null_count:
            # Without a time a tuple matches nothing, as without a key.
            timed = arrays[self._time_at].is_valid().to_numpy(zero_copy_only=False)
            valid = timed if valid is None else valid & timed
        return Encoded(codes, arrays, valid, in_place=self.physical.is_plain)

    def chunk(self, tuples: Encoded, *, held: bool = False) -> Chunk:
        """A chunk of tuples, none of them matched; `held`: the batch that they are of is there until they are done."""
        rows = len(tuples.codes)
        columns = BatchColumns(self.physical, tuples.arrays, rows)
        matched = np.zeros(rows if self._how != "inner" else 0, dtype=np.bool_)
        null = _NONE if tuples.valid is None else ~tuples.valid
        return Chunk(rows, tuples.codes, columns, matched, null, kept=held and tuples.in_place)

    def waiting(self, tuples: pa.Table, null_keys: bool = False) -> Iterator[Chunk]:
        """Chunks of tuples that wait already: nobody waits with a null key unless `null_keys` says so."""
        for part in self.parts(tuples):
            encoded = self.encoded(part)
            if encoded.valid is not None and not null_keys:
                raise StoreError(
                    "a tuple with a null key waits in the snapshot: it was damaged, or made for another join"
                )
            yield self.chunk(encoded)
