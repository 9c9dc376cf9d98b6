"""The many small files of a batch, merged before it is committed: readers pay for each file they open.

Only where it is cheap: files far below the usual size, several of one partition value, and not more bytes of them than
one file of the usual size holds. So a batch of large files is committed as it was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from semistream.errors import StoreError
from semistream.lake.files import FileWriter, WrittenFile
from semistream.lake.target import Target

#: files of less than this part of the usual size are small
_SMALL_PART = 32
#: so many small files of one partition value are worth merging
_LEAST_FILES = 4


def merged_small(target: Target, files: Sequence[WrittenFile]) -> tuple[list[WrittenFile], list[WrittenFile]]:
    """The files to commit, and those that are merged in them and no longer wanted."""
    groups = list(_groups(target, files))
    if not groups:
        return list(files), []
    gone = [file for group in groups for file in group]
    with FileWriter(target, target.arrow_schema()) as writer:
        for group in groups:
            values = tuple(value for _, value in group[0].partition)
            for rows in _rows(target, group):
                writer.write_file_rows(rows, values)
        merged = writer.finish()
    if sum(file.rows for file in merged) != sum(file.rows for file in gone):
        raise StoreError(f"small files in {target.folder} have other rows than were written: try the batch again")
    dropped = set(gone)
    return [file for file in files if file not in dropped] + merged, gone


def _groups(target: Target, files: Sequence[WrittenFile]) -> Iterator[list[WrittenFile]]:
    by_values: dict[tuple[tuple[str, str | None], ...], list[WrittenFile]] = {}
    for file in files:
        if file.n_bytes < target.file_bytes // _SMALL_PART:
            by_values.setdefault(file.partition, []).append(file)
    left = target.file_bytes
    # Those that gain most from it first.
    for group in sorted(by_values.values(), key=len, reverse=True):
        taken = []
        for file in sorted(group, key=lambda one: one.n_bytes):
            if file.n_bytes <= left:
                taken.append(file)
                left -= file.n_bytes
        if len(taken) >= _LEAST_FILES:
            yield taken
        else:
            left += sum(file.n_bytes for file in taken)


def _rows(target: Target, files: Iterable[WrittenFile]) -> Iterator[pa.Table]:
    schema = target.file_schema()
    for file in files:
        path = Path(target.folder) / file.path
        try:
            # Opened here, so that its name need not end as Parquet does.
            with pa.OSFile(str(path), "rb") as source, pq.ParquetFile(source) as parquet:
                for group in range(parquet.num_row_groups):
                    yield parquet.read_row_group(group, use_threads=False).cast(schema)
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"{path} was written and cannot be read ({error}): try the batch again") from error
