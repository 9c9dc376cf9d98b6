"""The papers' synthetic relations: master tuples of 120 bytes, stream tuples of 20 bytes, 64-bit keys.

Payload values are incompressible, so a row costs its full width in any file format and no reader gains from
an encoding that real data would not have.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from semistream.workloads.counter import below, scatter, stream_seed, words
from semistream.workloads.zipf import zipf_keys

KEY = "k"
MASTER_SCHEMA = pa.schema([pa.field(KEY, pa.int64())] + [pa.field(f"m{i:02d}", pa.int64()) for i in range(1, 15)])
_STREAM_COLUMNS = ((KEY, pa.int64()), ("seq", pa.int64()), ("qty", pa.int32()))
STREAM_SCHEMA = pa.schema([pa.field(name, kind, nullable=False) for name, kind in _STREAM_COLUMNS])
MASTER_ROW_BYTES = 120
STREAM_ROW_BYTES = 20


def master_keys(
    n_rows: int, seed: int, start: int, count: int, *, repeat: bool = False, shuffled: bool = True
) -> np.ndarray:
    """Keys of the master rows start .. start + count - 1, int64 in [0, n_rows).

    `repeat` draws them with repetition, as seed 000 does: e^-1, about 37 %, of the domain is absent, the
    other keys have one tuple or several. Otherwise every key has one tuple, in a shuffled order or, with
    `shuffled=False`, in key order.
    """
    if repeat:
        return below(n_rows, stream_seed(seed, "master keys"), start, count)
    rows = np.arange(start, start + count, dtype=np.int64)
    return scatter(rows, n_rows, stream_seed(seed, "master order")) if shuffled else rows


def master_table(
    n_rows: int,
    seed: int,
    start: int = 0,
    count: int | None = None,
    repeat: bool = False,
    *,
    shuffled: bool = True,
) -> pa.Table:
    """Rows start .. start + count - 1 of a master relation of n_rows: a key and fourteen int64 columns.

    >>> table = master_table(1000, seed=1)
    >>> table.num_rows, table.nbytes // table.num_rows
    (1000, 120)
    """
    size = n_rows - start if count is None else count
    if not 0 <= start <= start + size <= n_rows:
        raise ValueError(f"rows {start} + {size} are not in a relation of {n_rows} rows")
    columns = [pa.array(master_keys(n_rows, seed, start, size, repeat=repeat, shuffled=shuffled))]
    columns += [
        pa.array(words(stream_seed(seed, f"master/{name}"), start, size).view(np.int64))
        for name in MASTER_SCHEMA.names[1:]
    ]
    return pa.table(columns, schema=MASTER_SCHEMA)


def master_batches(
    n_rows: int, seed: int, *, batch_rows: int = 262_144, repeat: bool = False, shuffled: bool = True
) -> Iterator[pa.RecordBatch]:
    """The whole master relation, one bounded piece after another."""
    for start in range(0, n_rows, batch_rows):
        count = min(batch_rows, n_rows - start)
        table = master_table(n_rows, seed, start, count, repeat, shuffled=shuffled)
        yield from table.to_batches()


def stream_batches(
    n: int,
    n_keys: int,
    exponent: float = 1.0,
    seed: int = 0,
    *,
    start: int = 0,
    batch_rows: int = 100_000,
    hot_seed: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Rows start .. start + n - 1 of a stream over [0, n_keys): key, sequence number, a small quantity."""
    quantity_seed = stream_seed(seed, "stream/qty")
    for first in range(start, start + n, batch_rows):
        count = min(batch_rows, start + n - first)
        yield pa.record_batch(
            [
                pa.array(zipf_keys(n_keys, exponent, seed, first, count, hot_seed=hot_seed)),
                pa.array(np.arange(first, first + count, dtype=np.int64)),
                pa.array(below(100, quantity_seed, first, count).astype(np.int32)),
            ],
            schema=STREAM_SCHEMA,
        )
