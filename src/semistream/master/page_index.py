"""What is held in memory of a store's files: where every page is, its first code and its checksum; the changed codes.

All of it is read once per version, proven by the checksums in the manifest, and shared by all readers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.errors import ChecksumError, StoreError
from semistream.kernels.hashing import xxhash64_bytes
from semistream.kernels.pages import CHECKSUM_SEED
from semistream.master.base import Bools, Bytes, Int64s
from semistream.master.format import CODES, DAMAGED, Manifest, write_synced

_NO_CODES = np.empty(0, dtype=np.int64)
_NO_FLAGS = np.empty(0, dtype=np.bool_)


@dataclass(frozen=True)
class PageIndex:
    """What is held in memory of every page, and of every file: its pages are borders[f] to borders[f + 1] - 1.

    `fences` and `continues` are those of all pages in a store by key. A store by frequency has a second index for its
    base, so there they are those of the pages from `fenced` on, which its changes have.
    """

    starts: Int64s
    fences: Int64s
    continues: Bools
    sums: npt.NDArray[np.uint64]
    borders: Int64s
    shifts: Int64s
    fenced: int = 0

    @property
    def n_pages(self) -> int:
        return len(self.starts) - 1

    @property
    def nbytes(self) -> int:
        pages = self.starts.nbytes + self.fences.nbytes + self.continues.nbytes + self.sums.nbytes
        return int(pages + self.borders.nbytes + self.shifts.nbytes)


def first_buffers(columns: Sequence[pa.Field]) -> Int64s:
    """Number of each column's first buffer in a record batch message; -1 for null columns: they have none."""
    first = np.empty(len(columns), dtype=np.int64)
    count = 0
    for i, column in enumerate(columns):
        first[i] = -1 if pa.types.is_null(column.type) else count
        var = pa.types.is_string(column.type) or pa.types.is_binary(column.type)
        count += 0 if pa.types.is_null(column.type) else 3 if var else 2
    return first


def load_index(folder: Path, manifest: Manifest) -> PageIndex:
    """Offsets, fences and checksums of all shards of a version."""
    shards, count = manifest.shards, manifest.pages
    starts = np.zeros(count + 1, dtype=np.int64)
    fences, sums = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.uint64)
    continues = np.empty(count, dtype=np.bool_)
    borders = np.cumsum([0, *(shard["pages"] for shard in shards)], dtype=np.int64)
    shifts = np.empty(len(shards), dtype=np.int64)
    for i, shard in enumerate(shards):
        low, high = int(borders[i]), int(borders[i + 1])
        table = _index_table(folder, manifest, shard)
        offsets, lengths, fences[low:high], continues[low:high], sums[low:high] = (
            column.to_numpy() for column in table.columns
        )
        shifts[i] = starts[low] - offsets[0]
        starts[low + 1 : high + 1] = starts[low] + np.cumsum(lengths)
    fenced = 0 if manifest.order == "key" else manifest.base_pages
    if fenced:
        # A copy, so that what is not needed is not held.
        fences, continues = fences[fenced:].copy(), continues[fenced:].copy()
    return PageIndex(starts, fences, continues, sums, borders, shifts, fenced)


def _index_table(folder: Path, manifest: Manifest, shard: dict[str, Any]) -> pa.Table:
    path = folder / shard["index_file"]
    table = pa.ipc.open_file(pa.py_buffer(_proven(path, manifest))).read_all()
    offsets, lengths = table["offset"].to_numpy(), table["length"].to_numpy()
    size = manifest.files[shard["pages_file"]]["bytes"]
    end_to_end = (lengths > 0).all() and (offsets[1:] == (offsets + lengths)[:-1]).all()
    if len(table) != shard["pages"] or offsets[0] < 0 or offsets[-1] + lengths[-1] > size or not end_to_end:
        raise StoreError(f"{path} does not fit the manifest beside it: {DAMAGED}")
    return table


def load_codes(folder: Path, manifest: Manifest) -> tuple[Int64s, Int64s]:
    """Changed codes of a version, sorted, and the new code of each."""
    if not manifest.runs:
        return _NO_CODES, _NO_CODES
    pairs = _proven(folder / CODES, manifest).view(np.int64).reshape(2, -1)
    return pairs[0], pairs[1]


def save_codes(folder: Path, codes: Int64s, fresh: Int64s) -> dict[str, Any]:
    """Write such a file; gives what the manifest must know of it."""
    content = np.concatenate([codes, fresh]).astype(np.int64)
    write_synced(folder / CODES, content.tobytes())
    return {"bytes": content.nbytes, "xxhash64": _sum_of(content.view(np.uint8))}


def _proven(path: Path, manifest: Manifest) -> Bytes:
    """The bytes of a file that the manifest has a checksum of."""
    try:
        content = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror}); {DAMAGED}") from error
    found, expected = _sum_of(content), manifest.files[path.name].get("xxhash64")
    if found != expected:
        raise ChecksumError(f"{path} has the checksum {found}, {expected} was written: {DAMAGED}")
    return content


def _sum_of(content: Bytes) -> str:
    return f"{int(xxhash64_bytes(content.ctypes.data, len(content), CHECKSUM_SEED)):016x}"
