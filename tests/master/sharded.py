"""Stores of several shards, as a Spark job writes them, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from semistream.master.build import Feed
from semistream.master.pages import PageMaster
from semistream.master.publish import publish, scratch_folder
from semistream.master.shards import ShardWriter, column_order, describe, shard_files


def build_shards(
    table: pa.Table,
    path: Path,
    on: str | Sequence[str],
    page_rows: int,
    shards: int = 4,
    code_mask: int | None = None,
) -> PageMaster:
    """Cut a table at borders between keys, as evenly as they allow, and write each part as a shard of its own."""
    keys = (on,) if isinstance(on, str) else tuple(on)
    feed = Feed(table.schema, keys, code_mask)
    batch = table.combine_chunks().to_batches()
    physical, codes, _ = feed.take(batch[0] if batch else pa.RecordBatch.from_pylist([], table.schema))
    order = np.argsort(codes, kind="stable")
    physical, codes = physical.take(pa.array(order)), codes[order]
    heads = np.flatnonzero(np.append(True, codes[1:] != codes[:-1])) if len(codes) else np.zeros(1, dtype=np.int64)
    wanted = np.linspace(0, len(codes), shards + 1).astype(np.int64)[1:-1]
    cuts = np.unique([0, *heads[np.searchsorted(heads, wanted, side="right") - 1], len(codes)])
    nullable = {name for name, count in feed.null_counts.items() if count}
    names = column_order(feed.columns.columns, feed.code_column, nullable)
    schema = pa.schema([feed.physical.field(name) for name in names])
    written = []
    with scratch_folder(path) as scratch:
        folder = scratch / "version"
        folder.mkdir()
        for low, high in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            with ShardWriter(folder, shard_files(len(written)), schema, feed.code_column, page_rows) as writer:
                writer.write(physical.slice(low, high - low))
                shard = writer.finish()
            assert shard is not None
            written.append(shard)
        manifest = describe(
            table.schema,
            keys,
            feed.coder,
            names,
            feed.code_column,
            written,
            page_rows=page_rows,
            null_key_rows=feed.null_key_rows,
        )
        publish(path, scratch, folder, manifest, 1)
    return PageMaster(path)
