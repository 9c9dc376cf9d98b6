"""R as a page store: what `build_pages` or a Spark job wrote, and what changes have made of it since.

Pages are Arrow record batches of equal length, numbered through all shards of the store. A shard is a file; only
its last page may be short, and no key stands in two shards. The reader (`page_reader.py`) moves bytes and hands out
addresses; pyarrow is not involved once the store is open.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from semistream.columns.keys import KeyCoder
from semistream.columns.stream_keys import Recoding, StreamCoder
from semistream.master.base import Int64s, Master, PageFile
from semistream.master.format import KEYS, Origin, Parts, load_manifest, shares_codes
from semistream.master.frequency import table_fences, table_keys
from semistream.master.leases import hold
from semistream.master.mapped import Shared
from semistream.master.page_index import PageIndex, load_codes, load_index
from semistream.master.page_reader import PageStoreReader


class PageMaster(Master):
    """A page store, in the version in force when it was opened (or the one asked for)."""

    def __init__(self, path: str | Path, version: int | None = None) -> None:
        self.path = Path(path)
        self._lease = hold(self.path, version)
        self.folder = self._lease.folder
        self.manifest = load_manifest(self.folder)
        manifest = self.manifest
        self.schema = manifest.logical
        self.on = tuple(manifest.on)
        self.n_rows = manifest.rows
        self.page_rows = manifest.page_rows
        self.order = manifest.order
        self.has_index = True
        self.coder = StreamCoder(KeyCoder.from_json(manifest.coder), self._recoding())
        self.version = manifest.version
        self.identity = str(manifest.identity)
        self.lineage = manifest.uuid
        self.row_bytes = manifest.row_bytes
        self.null_key_rows = manifest.null_key_rows
        self.shared = Shared()

    def _recoding(self) -> Recoding | None:
        manifest = self.manifest
        if not manifest.runs:
            return None
        about, folder = manifest.recoding, self.folder
        # Without a way back to this object, so that its lease ends when nobody refers to it.
        return Recoding(about["changed"], about["absent"], lambda: load_codes(folder, manifest))

    @property
    def parts(self) -> Parts:
        return self.manifest.parts

    @property
    def base_identity(self) -> str:
        """The version that the base was written with."""
        return self.parts.base

    @property
    def runs(self) -> tuple[str, ...]:
        """Names of the runs of changes behind the base, oldest first."""
        return self.parts.runs

    @property
    def reserved_from(self) -> int | None:
        """Codes from here on are for changes of R, and no row of the base has one; None where that is not known.

        Whoever keeps what he has found under codes for later versions takes none of them from the stream: what is not
        there today may get that code tomorrow.
        """
        manifest = self.manifest
        if manifest.runs:
            return manifest.recoding["absent"]
        return None if manifest.largest_code is None else code_after(manifest.largest_code)

    @property
    def dead_rows(self) -> int:
        """How many of the rows are those of keys that have changed since; no key leads to them."""
        return self.manifest.dead_rows

    @property
    def origin(self) -> Origin:
        """Where the rows come from, and how far that source had been read."""
        return Origin(**self.manifest.origin)

    @property
    def notice(self) -> str:
        """Why the last changes were not kept as a run, but all rows written anew; empty if they were."""
        return self.manifest.notice

    def may_be_followed_by(self, other: PageMaster) -> bool:
        """Whether another version has all pages of this one, under the same numbers, and perhaps some more."""
        return len(other.runs) >= len(self.runs) and shares_codes(self.parts, other.parts)

    def close(self) -> None:
        self.shared.mapped = None
        self._lease.close()

    @property
    def n_pages(self) -> int:
        return self.manifest.pages

    @cached_property
    def index(self) -> PageIndex:
        """Offsets, fences and checksums; read once and shared by all readers."""
        return load_index(self.folder, self.manifest)

    @cached_property
    def second_index(self) -> Int64s:
        """First code of every block of the second index (order "frequency")."""
        return table_fences(self.folder / KEYS, self.manifest.files[KEYS]["blocks"])

    def listed_keys(self, first_block: int = 0) -> tuple[Int64s, Int64s]:
        """Codes in the second index, and the first row of each (order "frequency")."""
        return table_keys(self.folder / KEYS, self.manifest.files[KEYS]["blocks"], first_block)

    @property
    def code_range(self) -> tuple[int, int] | None:
        """From the first code of every page, or of every block of the second index; the last one is as wide as most."""
        firsts = self.index.fences if self.order == "key" else self.second_index
        if not len(firsts):
            return None
        low, high = int(firsts[0]), int(firsts[-1])
        high += (high - low) // max(len(firsts) - 1, 1)
        # Codes that changes have given are side by side, from the end of the base's on.
        return low, max(high, self.manifest.recoding.get("next", high))

    @property
    def page_files(self) -> list[PageFile]:
        names = [shard["pages_file"] for shard in self.manifest.shards]
        return [PageFile(self.folder / name, int(self.manifest.files[name]["bytes"])) for name in names]

    def may_be_null(self, column: str) -> bool:
        return self.manifest.null_counts.get(column, 1) > 0

    def open(self, columns: Sequence[str], direct: bool = False, page_rows: int | None = None) -> PageStoreReader:
        return PageStoreReader(self, columns, direct)


def code_after(code: int | None) -> int:
    """The next larger code, if there is one; of none the first that is given."""
    return 0 if code is None else min(code + 1, np.iinfo(np.int64).max)
