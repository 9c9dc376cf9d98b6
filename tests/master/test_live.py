"""Rows of some codes: the same from mapped pages and from pages that are read past the page cache."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from semistream import build_pages, refresh_pages
from semistream.errors import ChecksumError, StoreError
from semistream.master import live
from semistream.master.live import LiveRows
from semistream.master.page_reader import PageStoreReader
from semistream.master.pages import PageMaster


@pytest.fixture(params=["key", "frequency"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Keys with one row to many pages of them, some of them changed."""
    keys = np.concatenate([np.arange(3000) * 2, np.repeat([100, 4000, 5998], [40, 700, 3])])
    table = pa.table({"k": keys, "n": np.arange(len(keys)), "text": [f"{i % 13}" * (i % 50) for i in range(len(keys))]})
    wanted = (pa.array(np.arange(0, 600, 6)), np.full(100, 5.0)) if request.param == "frequency" else None
    build_pages(table, tmp_path / "r", on="k", page_rows=16, order=request.param, frequency=wanted).close()
    changes = pa.table({"k": [8, 8, 10], "n": [-1, -2, -3], "text": ["a", None, "b"]})
    refresh_pages(tmp_path / "r", changes, compact="never").close()
    return tmp_path / "r"


def rows_of(path: Path, codes: np.ndarray, memory: int = 1 << 20) -> list[tuple[object, ...]]:
    with closing(PageMaster(path)) as master, LiveRows(master, memory) as rows:
        found = pa.Table.from_batches(rows.rows_of(codes), rows.schema)
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True), key=str)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """As if no page was in memory, with small buffers; lists which readers were opened."""
    monkeypatch.setattr(live, "_FEW", 64)
    monkeypatch.setattr(live, "_BUFFER", 1 << 16)
    monkeypatch.setattr(PageStoreReader, "in_memory", lambda self, pages: 0)
    made: list[bool] = []
    open_pages = PageMaster.open

    def noted(self: PageMaster, columns: list[str], direct: bool = False) -> PageStoreReader:
        made.append(direct)
        return open_pages(self, columns, direct)

    monkeypatch.setattr(PageMaster, "open", noted)
    return made


def test_what_is_not_in_memory_is_read_past_the_page_cache(store: Path, opened: list[bool]) -> None:
    codes = np.arange(-3, 6010, dtype=np.int64)
    found = rows_of(store, codes)
    assert opened == [False, True]
    expected = rows_of(store, codes, memory=1 << 18)
    assert opened[2:] == [False], "memory for buffers is short"
    assert found == expected
    assert len(found) == 3000 + 40 + 700 + 3 + 1


def test_a_file_system_that_refuses_is_read_through_the_page_cache(
    store: Path, opened: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_pages = PageMaster.open

    def refused(self: PageMaster, columns: list[str], direct: bool = False) -> PageStoreReader:
        if direct:
            raise StoreError("the file system refuses O_DIRECT")
        return open_pages(self, columns)

    monkeypatch.setattr(PageMaster, "open", refused)
    codes = np.arange(0, 6000, dtype=np.int64)
    assert len(rows_of(store, codes)) == 3000 + 40 + 700 + 3 + 1
    assert opened == [False]


def test_a_page_that_is_damaged_is_found(store: Path, opened: list[bool]) -> None:
    with closing(PageMaster(store)) as master, master.open(["n"]) as reader:
        at, file = reader.page_offset(70), master.page_files[0].path
    raw = bytearray(file.read_bytes())
    raw[at + 700] ^= 1
    file.write_bytes(raw)
    with pytest.raises(ChecksumError, match="page 70 "):
        rows_of(store, np.arange(0, 6000, dtype=np.int64))
    assert opened[1:] == [False, True]
