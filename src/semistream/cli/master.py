"""What the command line opens as master data: the path it was given, or a page store made of it.

Parquet has no index. For an operator that needs one the data is copied once into a page store in the user's
cache folder; the store's name tells what it was made of, so it is used again until the Parquet files change.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from rich.console import Console

from semistream.algorithms.registry import ALGORITHMS
from semistream.cli.store_cache import Origin, note_use
from semistream.cli.streams import Stream, expected_rows
from semistream.columns.keys import check_key_types
from semistream.columns.validity import check_times
from semistream.errors import StoreError
from semistream.master.base import require_columns
from semistream.master.format import CURRENT, is_store
from semistream.master.inventory import remove_store
from semistream.master.parquet import ParquetFiles, ParquetMaster
from semistream.spec import JoinRequest

#: Stream tuples counted for a layout by access frequency: enough to know the hot keys.
SAMPLE_ROWS = 1_000_000
SAMPLE_BATCH_ROWS = 65_536
#: A build needs room for the sorted runs and for the store.
_BUILD_SPACE = 2.2


def prepare_master(request: JoinRequest, master: Path, stream: Path, stream_files: Stream, notes: Console) -> Path:
    """The path to open as R. A copy is sorted within the budget of the join."""
    if is_store(master) or not (request.is_auto or ALGORITHMS[request.algorithm].needs_index):
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
    spec = request.spec
    if spec.as_of is not None and spec.valid is not None:
        require_columns(stream_files.schema, [spec.as_of], "the stream")
        require_columns(files.schema, spec.valid, "master data")
        check_times(stream_files.schema.field(spec.as_of), [files.schema.field(name) for name in spec.valid])
    by_frequency = not request.is_auto and ALGORITHMS[algorithm].wants_frequency_order
    origin = Origin(str(master.absolute()), list(keys.values()))
    if by_frequency:
        origin = replace(origin, stream=str(stream.absolute()), stream_on=list(keys))
    place = origin.place()
    needs = "auto may use an index" if request.is_auto else f"{algorithm} needs an index"
    if (place / CURRENT).exists():
        note_use(place, origin)
        notes.print(f"master data: {needs}; using the page store {place}")
        return place
    if request.is_auto and not _store_pays(request, master, stream_files, place, notes):
        return master
    from semistream.master.build import build_pages

    notes.print(f"master data: {needs}; building the page store {place}")
    started = time.perf_counter()
    frequency = sampled(stream_files, keys) if by_frequency else None
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
    note_use(place, origin)
    for stale in origin.older(place):
        # One that somebody still reads stays until `semistream cache prune`.
        with contextlib.suppress(OSError, StoreError):
            remove_store(stale)
    notes.print(f"master data: {files.n_rows:,} rows stored in {time.perf_counter() - started:.1f} s")
    return place


def _store_pays(request: JoinRequest, master: Path, stream: Stream, place: Path, notes: Console) -> bool:
    """Whether `auto` should have an index; says why. It stays with R as it is where the disk has no room for both."""
    from semistream.planner.policy import Policy
    from semistream.planner.store import worth_of_store

    sample = next(stream.batches(stream.schema.names, 0, SAMPLE_BATCH_ROWS), None)
    if sample is None or not sample.num_rows:
        return False
    expected = expected_rows(stream)
    policy = Policy() if expected is None else Policy(horizon=max(expected, 1))
    with contextlib.closing(ParquetMaster(master, request.spec.master_on)) as r:
        worth = worth_of_store(r, request.spec, sample, request.memory_bytes, policy=policy)
        needed = int(_BUILD_SPACE * r.n_rows * r.row_bytes)
    if not worth.pays:
        return False
    free = _free_bytes(place)
    if free < needed:
        notes.print(
            f"auto: a page store would pay, but {place.parent} has {free:,} bytes free and the build takes {needed:,}; "
            "set SEMISTREAM_CACHE to a folder with more room"
        )
        return False
    notes.print(
        f"auto: a page store pays: about {worth.build_s:.1f} s to build it once and {worth.indexed_s:.1f} s for "
        f"{worth.indexed}, instead of {worth.in_place_s:.1f} s for {worth.in_place} on Parquet in place"
        if worth.in_place
        else f"auto: a page store is needed: {request.memory_bytes:,} bytes are too few to scan Parquet in place"
    )
    return True


def _free_bytes(place: Path) -> int:
    """Free bytes of the disk that a folder, there or not, is on."""
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def sampled(stream: Stream, keys: dict[str, str]) -> tuple[pa.Table, npt.NDArray[np.int64]] | None:
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
