"""R is known by what it is, not by the number of its version or the name of its file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from semistream.errors import StoreError
from semistream.master.base import aligned_buffer
from semistream.master.build import build_pages
from semistream.master.format import CURRENT, MANIFEST
from semistream.master.leases import QUERIES, pin
from semistream.master.memory import MemoryMaster
from semistream.master.open import open_master
from semistream.master.pages import PageMaster
from semistream.master.parquet import ParquetMaster
from semistream.testing import FaultyMaster

TABLE = pa.table({"k": [1, 2, 3], "v": ["a", "b", "c"]})


def names(path: Path, version: int | None = None) -> tuple[str, str]:
    master = open_master(path, "k", version=version)
    return master.identity, master.lineage


def test_versions_of_a_store_share_a_lineage(tmp_path: Path) -> None:
    store = tmp_path / "r"
    build_pages(TABLE, store, on="k")
    first = names(store)
    assert first == names(store), "it is on disk"
    build_pages(TABLE, store, on="k", overwrite=True)
    second = names(store)
    assert second[0] != first[0]
    assert second[1] == first[1]
    assert names(store, version=1) == first


def test_a_store_built_anew_is_another_one(tmp_path: Path) -> None:
    """Version 1 again, with the same rows."""
    store = tmp_path / "r"
    first = build_pages(TABLE, store, on="k")
    shutil.rmtree(store)
    second = build_pages(TABLE, store, on="k")
    assert first.version == second.version
    assert first.identity != second.identity
    assert first.lineage != second.lineage


def test_a_store_that_is_mended_stays_the_same_one(tmp_path: Path) -> None:
    store = tmp_path / "r"
    lineage = build_pages(TABLE, store, on="k").lineage
    (store / CURRENT).unlink()
    assert build_pages(TABLE, store, on="k", overwrite=True).lineage == lineage


def test_parquet_that_was_rewritten(tmp_path: Path) -> None:
    file = tmp_path / "r.parquet"
    pq.write_table(TABLE, file)
    first = names(file)
    assert first == names(file)
    os.utime(file, ns=(0, 5))
    touched = names(file)
    # The same length, and the time is set back: only the footer tells.
    size = file.stat().st_size
    pq.write_table(TABLE.set_column(0, "k", pa.array([4, 5, 6])), file)
    assert file.stat().st_size == size
    os.utime(file, ns=(0, 5))
    found = names(file)
    assert len({first[0], touched[0], found[0]}) == 3
    assert {first[1], touched[1], found[1]} == {first[1]}


def test_parquet_of_several_files(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    pq.write_table(TABLE, tmp_path / "r" / "a.parquet")
    first = names(tmp_path / "r")
    pq.write_table(TABLE, tmp_path / "r" / "b.parquet")
    second = names(tmp_path / "r")
    assert second[0] != first[0]
    assert second[1] == first[1]
    assert names(tmp_path / "r" / "a.parquet")[1] != first[1]
    dataset = ParquetMaster(ds.dataset(tmp_path / "r"), "k")
    assert dataset.identity == second[0], "the same files"


def test_parquet_that_changes_under_its_reader(tmp_path: Path) -> None:
    file = tmp_path / "r.parquet"
    pq.write_table(TABLE, file)
    master = ParquetMaster(file, "k")
    pq.write_table(TABLE.slice(0, 2), tmp_path / "new.parquet")
    (tmp_path / "new.parquet").replace(file)
    with pytest.raises(StoreError, match="changed while it was in use: open the master data again"):
        master.open(["v"]).read(0, 1, aligned_buffer(0))


def test_parquet_that_is_cut_under_its_reader(tmp_path: Path) -> None:
    """Data pages past the end of the file: an error, where a mapping would be a signal."""
    file = tmp_path / "r.parquet"
    rows = 200_000
    pq.write_table(pa.table({"k": np.random.default_rng(1).permutation(rows)}), file, use_dictionary=False)
    reader = ParquetMaster(file, "k").open(["k"])
    reader.read(0, 1, aligned_buffer(0))
    with file.open("r+b") as opened:
        opened.truncate(4096)
    with pytest.raises(StoreError, match=r"r\.parquet"):
        reader.read(1, rows // reader.page_rows, aligned_buffer(0))


def test_tables_are_known_by_their_object() -> None:
    first, second = MemoryMaster(TABLE, "k"), MemoryMaster(TABLE, "k")
    assert first.identity == first.lineage != second.identity
    assert FaultyMaster(first, 1).identity == first.identity


@pytest.mark.parametrize("name", [MANIFEST, CURRENT, "pin"])
def test_every_flipped_bit_of_a_sealed_file(tmp_path: Path, name: str) -> None:
    store = tmp_path / "r"
    for _ in range(3):
        build_pages(TABLE, store, on="k", overwrite=True, keep_versions=9)
    pin(store, "query", 0)
    check: Callable[[], object] = lambda: PageMaster(store)  # noqa: E731
    path = store / CURRENT if name == CURRENT else PageMaster(store).folder / MANIFEST
    if name == "pin":
        path = store / QUERIES / "query" / "0.json"
        check = lambda: pin(store, "query", 0)  # noqa: E731
    whole = path.read_bytes()
    for at in range(len(whole)):
        for bit in (at % 8, 5):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            path.write_bytes(damaged)
            with pytest.raises(StoreError):
                check()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(StoreError):
            check()
    path.write_bytes(whole)
    check()
