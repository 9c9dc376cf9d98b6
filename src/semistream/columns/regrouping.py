"""Batches cut anew. Whoever hands rows over cuts them where that suits the transport or the file.

A join does some things once per chunk, so its chunks should be as long as its work arrays are.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa


def regrouped(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of `rows`, the last one apart."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count >= rows:
            whole = pa.concat_batches(held) if len(held) > 1 else batch
            cut = count - count % rows
            yield from (whole.slice(at, rows) for at in range(0, cut, rows))
            count -= cut
            held = [whole.slice(cut)] if count else []
    if count:
        yield pa.concat_batches(held) if len(held) > 1 else held[0]
