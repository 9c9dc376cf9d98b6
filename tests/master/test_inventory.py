"""What those who run a store can see and do: versions and who holds them, damage, and what can go."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from semistream.errors import ConfigError, StoreError
from semistream.master.build import build_pages
from semistream.master.format import CURRENT, MANIFEST, version_name, versions_in
from semistream.master.inventory import collect, list_versions, verify
from semistream.master.leases import QUERIES, pin
from semistream.master.pages import PageMaster


def publish(store: Path, rows: int = 40, frequency: str | None = None) -> PageMaster:
    table = pa.table({"k": np.arange(rows), "v": np.arange(rows)})
    return build_pages(table, store, on="k", page_rows=8, overwrite=True, keep_versions=99, frequency=frequency)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Four versions; a query uses the second."""
    store = tmp_path / "r"
    for version in range(4):
        publish(store, rows=40 + version).close()
        if version == 1:
            pin(store, "query", 7)
            pin(store, "query", 8)
    return store


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def age(store: Path, query: str, batch: int, days: float) -> None:
    then = time.time() - days * 86400
    os.utime(store / QUERIES / query / f"{batch}.json", (then, then))


def test_list(store: Path) -> None:
    age(store, "query", 7, days=2)
    found = list_versions(store)
    assert [v.version for v in found] == [1, 2, 3, 4]
    assert [v.rows for v in found] == [40, 41, 42, 43]
    assert [v.in_force for v in found] == [False, False, False, True]
    for version in found:
        master = PageMaster(store, version.version)
        assert version.identity == master.identity
        assert version.bytes == sum(file.stat().st_size for file in master.folder.iterdir())
    assert [len(v.pins) for v in found] == [0, 2, 0, 0]
    assert [(p.owner, p.batch) for p in found[1].pins] == [("query", 7), ("query", 8)]
    assert found[1].pins[0].since == pytest.approx(time.time() - 2 * 86400, abs=60)
    assert not any(v.leased or v.processes for v in found)


def test_list_says_which_process_has_a_version_open(store: Path) -> None:
    master = PageMaster(store, 3)
    assert [(v.leased, v.processes) for v in list_versions(store)][1:3] == [(False, []), (True, [os.getpid()])]
    master.close()
    assert not list_versions(store)[2].leased


def test_list_of_a_damaged_version(store: Path) -> None:
    flip(store / version_name(3) / MANIFEST, 20)
    found = list_versions(store)[2]
    assert (found.version, found.rows, found.identity) == (3, None, None)


@pytest.mark.parametrize("frequency", [None, "v"])
def test_verify_names_everything_that_is_damaged(tmp_path: Path, frequency: str | None) -> None:
    store = tmp_path / "r"
    for _ in range(3):
        master = publish(store, rows=9000, frequency=frequency)
    assert verify(store) == []
    with master.open([]) as reader:
        for page in (0, 500, 1124):
            flip(store / version_name(2) / "pages-00000.arrow", reader.page_offset(page) + 100)
    flip(store / version_name(3) / "index-00000.arrow", 300)
    if frequency is not None:
        flip(store / version_name(1) / "keys.bin", 5000)
        flip(store / version_name(1) / "keys.bin", 9000)
    wrong = verify(store)
    blocks = [line for line in wrong if "keys.bin" in line]
    assert [line.split(" of ")[0] for line in blocks] == ([] if frequency is None else ["block 1", "block 2"])
    rest = [line for line in wrong if line not in blocks]
    assert [line.split(" of ")[0] for line in rest[:3]] == ["page 0", "page 500", "page 1124"]
    assert "index-00000.arrow" in rest[3]
    assert len(rest) == 4
    assert verify(store, 2) == rest[:3]
    assert verify(store, 3) == rest[3:]
    with pytest.raises(StoreError, match="no page store"):
        verify(tmp_path)
    assert "no version 9" in verify(store, 9)[0]


def test_verify_of_what_names_versions(store: Path) -> None:
    flip(store / CURRENT, 3)
    flip(store / QUERIES / "query" / "8.json", 3)
    wrong = verify(store)
    assert [CURRENT in wrong[0], "batch 8 of 'query'" in wrong[1], len(wrong)] == [True, True, 2]
    assert verify(store, 1) == []


def test_collect_leaves_what_somebody_needs(store: Path) -> None:
    publish(store)
    master = PageMaster(store, 3)
    for dry_run in (True, False):
        removed = collect(store, dry_run=dry_run)
        assert (removed.versions, removed.kept) == ([1, 4], ["version 3: it is open"])
        assert (removed.queries, removed.leftovers) == ([], [])
        assert versions_in(store) == ([1, 2, 3, 4, 5] if dry_run else [2, 3, 5])
    master.close()
    assert collect(store).versions == [3]
    assert pin(store, "query", 7) == 2
    assert collect(store).versions == []


def test_collect_keeps_as_many_as_asked_for(store: Path) -> None:
    assert collect(store, keep=2).versions == [1]
    assert collect(store, keep=1).versions == []
    assert versions_in(store) == [2, 3, 4]


def test_collect_forgets_queries(store: Path) -> None:
    pin(store, "other", 1)
    with pytest.raises(ConfigError, match=r"'quary' has no pins .* known are other, query"):
        collect(store, forget=["quary"])
    assert collect(store, forget=["query"], dry_run=True).queries == ["query"]
    assert pin(store, "query", 7) == 2
    removed = collect(store, forget=["query"])
    assert (removed.queries, removed.versions) == (["query"], [1, 2, 3])
    assert [p.name for p in (store / QUERIES).iterdir()] == ["other"]


def test_collect_forgets_queries_by_their_newest_pin(store: Path) -> None:
    age(store, "query", 7, days=90)
    assert collect(store, pins_older_than=30 * 86400).queries == []
    age(store, "query", 8, days=31)
    removed = collect(store, pins_older_than=30 * 86400)
    assert (removed.queries, removed.versions) == (["query"], [2])


def test_collect_sweeps_up_after_crashed_builds(store: Path) -> None:
    (store / ".build-dead").mkdir()
    (store / ".build-dead" / "spool.arrow").write_text("x")
    shutil.copytree(store / version_name(4), store / version_name(5))
    for dry_run in (True, False):
        removed = collect(store, keep=9, dry_run=dry_run)
        assert (removed.versions, removed.leftovers) == ([5], [".build-dead"])
    assert sorted(p.name for p in store.iterdir())[:2] == [".lock", CURRENT]


def test_collect_keeps_all_that_an_unreadable_pin_may_mean(store: Path) -> None:
    flip(store / QUERIES / "query" / "8.json", 3)
    removed = collect(store)
    assert removed.versions == []
    assert "batch 8 of 'query' cannot be read" in removed.kept[0]
    assert collect(store, forget=["query"]).versions == [1, 2, 3]


def test_collect_without_a_version_in_force(store: Path) -> None:
    flip(store / CURRENT, 3)
    with pytest.raises(StoreError, match=CURRENT):
        collect(store)
    assert versions_in(store) == [1, 2, 3, 4]
