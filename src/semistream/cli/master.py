"""What the command line opens as master data: the path it was given, or a page store made of it.

Parquet has no index. For an operator that needs one the data is copied once into a page store in the user's
cache folder; the store's name tells what it was made of, so it is used again until the Parquet files change.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from rich.console import Console

from semistream.algorithms.registry import ALGORITHMS
from semistream.columns.keys import check_key_types
from semistream.master.base import require_columns
from semistream.master.build import build_pages
from semistream.master.format import CURRENT, FORMAT_VERSION, is_store
from semistream.master.parquet import ParquetFiles
from semistream.spec import JoinRequest

#: Stream tuples counted for a layout by access frequency: enough to know the hot keys.
SAMPLE_ROWS = 1_000_000
SAMPLE_BATCH_ROWS = 65_536


def prepare_master(
    request: JoinRequest, master: Path, stream: Path, stream_files: ParquetFiles, notes: Console
) -> Path:
    """The path to open as R. A copy is sorted within the budget of the join."""
    if is_store(master) or request.is_auto or not ALGORITHMS[request.algorithm].needs_index:
        # A planner ("auto") takes R as it is: whether it has an index is part of its choice.
        return master
    algorithm, keys = request.algorithm, dict(request.spec.pairs)
    files = ParquetFiles(master)
    # Asked before the copy is made, for it may take minutes.
    require_columns(stream_files.schema, keys, "the stream")
    require_columns(files.schema, keys.values(), "master data")
    check_key_types(
        [stream_files.schema.field(name) for name in keys],
        [files.schema.field(name) for name in keys.values()],
    )
    by_frequency = ALGORITHMS[algorithm].wants_frequency_order
    origin: list[object] = [str(master.resolve()), list(keys.values())]
    state: list[object] = [FORMAT_VERSION, *_state(master)]
    if by_frequency:
        origin.append(list(keys))
        state += _state(stream)
    family = f"{master.stem}-{_digest(origin)}"
    place = cache_folder() / f"{family}-{_digest(state)}"
    if (place / CURRENT).exists():
        notes.print(f"master data: {algorithm} needs an index; using the page store {place}")
        return place
    notes.print(f"master data: {algorithm} needs an index; building the page store {place}")
    started = time.perf_counter()
    frequency = _sampled(stream_files, keys) if by_frequency else None
    place.parent.mkdir(parents=True, exist_ok=True)
    # A build that was cut short left no version in force; the next one clears its remains away.
    build_pages(
        master,
        place,
        on=list(keys.values()),
        frequency=frequency,
        overwrite=True,
        memory_limit=max(request.memory_bytes, 1 << 20),
    )
    for stale in place.parent.glob(f"{glob.escape(family)}-*"):
        if stale != place:
            shutil.rmtree(stale, ignore_errors=True)
    notes.print(f"master data: {files.n_rows:,} rows stored in {time.perf_counter() - started:.1f} s")
    return place


def cache_folder() -> Path:
    """Where such stores are kept: $SEMISTREAM_CACHE, or the user's cache folder."""
    own = os.environ.get("SEMISTREAM_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "semistream"


def _sampled(stream: ParquetFiles, keys: dict[str, str]) -> tuple[pa.Table, npt.NDArray[np.int64]] | None:
    """The keys of the stream's first batches, under the master's names, and how often each occurs there."""
    taken: list[pa.RecordBatch] = []
    rows = 0
    for batch in stream.batches(list(keys), 0, SAMPLE_BATCH_ROWS, threads=True):
        taken.append(batch)
        rows += batch.num_rows
        if rows >= SAMPLE_ROWS:
            break
    if not rows:
        return None
    counted = pa.Table.from_batches(taken).group_by(list(keys)).aggregate([([], "count_all")])
    counts = counted.column("count_all").to_numpy()
    named = counted.select(list(keys)).rename_columns(list(keys.values()))
    return named, counts


def _state(path: Path) -> list[object]:
    """What changes when the data does: names, sizes, times of the last change."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return [[str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def _digest(what: object) -> str:
    return hashlib.blake2b(json.dumps(what).encode(), digest_size=8).hexdigest()
