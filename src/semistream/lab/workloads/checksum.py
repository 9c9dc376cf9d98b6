"""What a join of the synthetic relations must give, made without a join, and a number that stands for it.

A count of rows says little: a row of the wrong master tuple is counted like the right one. The generator knows the
master tuple of a key, so the joined rows can be made directly, and compared through a sum over their hashes that does
not depend on their order. So the result of a join is checked without being kept, whatever its size.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from semistream.errors import ConfigError
from semistream.lab.workloads.counter import gather, stream_seed, words_at
from semistream.lab.workloads.relation import KEY, MASTER_SCHEMA, SyntheticMaster, SyntheticStream

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)


def joined_rows(master: SyntheticMaster, stream: SyntheticStream, start: int, stop: int) -> pa.RecordBatch:
    """The rows of the inner join of stream tuples start .. stop - 1, stream columns before master columns.

    >>> rows = joined_rows(SyntheticMaster(100, seed=1), SyntheticStream(100, seed=2), 0, 10)
    >>> rows.num_rows, rows.num_columns
    (10, 17)
    """
    if master.repeat or master.order != "shuffled" or stream.unmatched or stream.n_keys > master.n_rows:
        raise ConfigError(
            f"the rows of {stream} joined with {master} have no formula; allowed are a master with unique keys in "
            "shuffled order and a stream whose tuples all match"
        )
    batch = stream.rows(start, stop)
    rows = gather(batch.column(KEY).to_numpy(), master.n_rows, stream_seed(master.seed, "master order"))
    names = [name for name in MASTER_SCHEMA.names if name != KEY]
    columns = [words_at(stream_seed(master.seed, f"master/{name}"), rows).view(np.int64) for name in names]
    return pa.RecordBatch.from_arrays([*batch.columns, *map(pa.array, columns)], names=[*batch.schema.names, *names])


def checksum(batch: pa.RecordBatch) -> int:
    """The sum of a 64-bit hash of each row: the sums of parts add up to that of the whole, modulo 2^64.

    Columns are integers without nulls; they are taken by name, so their order does not count either.
    """
    hashes = np.zeros(batch.num_rows, dtype=np.uint64)
    for name in sorted(batch.schema.names):
        column = batch.column(name)
        if column.null_count or not pa.types.is_integer(column.type):
            raise ConfigError(f"no checksum of {name!r}, {column.type}; allowed are integers without nulls")
        hashes ^= column.to_numpy().astype(np.int64).view(np.uint64)
        hashes *= _MULTIPLIER
        hashes ^= hashes >> _SHIFT
    return int(hashes.sum(dtype=np.uint64))


def expected_checksum(master: SyntheticMaster, stream: SyntheticStream, tuples: int, piece: int = 1 << 18) -> int:
    """Of the join of the first tuples of a stream."""
    starts = range(0, tuples, piece)
    sums = (checksum(joined_rows(master, stream, start, min(start + piece, tuples))) for start in starts)
    return sum(sums) % (1 << 64)
