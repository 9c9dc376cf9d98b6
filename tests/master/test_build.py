"""Building: any source, any size, any order, and all or nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.master.decoding import assert_same_table, block_codes, every_type, read_all, sorted_by_code

from semistream.errors import ConfigError, SchemaError, StoreError
from semistream.master.build import build_pages
from semistream.master.format import versions_in
from semistream.master.pages import PageMaster
from semistream.master.sorting import RowSorter, int64_view


def test_every_kind_of_source(tmp_path: Path) -> None:
    table = every_type(500)
    pq.write_table(table, tmp_path / "r.parquet", row_group_size=70)
    expected, codes = sorted_by_code(table, ["k"])
    sources = {
        "table": table,
        "batch": table.combine_chunks().to_batches()[0],
        "reader": table.to_reader(max_chunksize=33),
        "batches": table.to_batches(max_chunksize=33),
        "generator": (batch for batch in table.to_batches(max_chunksize=1)),
        "dataset": ds.dataset(str(tmp_path / "r.parquet")),
        "path": tmp_path / "r.parquet",
        "text": str(tmp_path / "r.parquet"),
    }
    for name, source in sources.items():
        seen: list[int] = []
        master = build_pages(source, tmp_path / name, on="k", page_rows=32, progress=seen.append)
        found, found_codes = read_all(master, table.schema.names)
        assert_same_table(found, expected)
        assert found_codes == codes
        assert seen[-1] == 500


def test_a_source_that_is_none(tmp_path: Path) -> None:
    for source, error in ((3, StoreError), ([], SchemaError), (tmp_path / "absent", StoreError)):
        with pytest.raises(error):
            build_pages(source, tmp_path / "r", on="k")  # type: ignore[arg-type]
        assert not (tmp_path / "r").exists()
    empty = build_pages([], tmp_path / "r", on="k", schema=pa.schema({"k": pa.int64()}))
    assert empty.n_rows == 0


def test_batches_of_two_schemas(tmp_path: Path) -> None:
    batches = [pa.record_batch({"k": pa.array([1], t)}) for t in (pa.int64(), pa.int32())]
    with pytest.raises(SchemaError, match="int32"):
        build_pages(batches, tmp_path / "r", on="k")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("key", ["k", "word"])
def test_external_sort_gives_the_same_store(tmp_path: Path, key: str) -> None:
    table = every_type(6000, seed=3)
    large = build_pages(table, tmp_path / "large", on=key, page_rows=100)
    small = build_pages(table, tmp_path / "small", on=key, page_rows=100, memory_limit=1 << 16)
    assert_same_table(read_all(small, table.schema.names)[0], read_all(large, table.schema.names)[0])
    with large.open([]) as one, small.open([]) as other:
        assert one.fences.tolist() == other.fences.tolist()
        assert one.continues.tolist() == other.continues.tolist()
    assert sorted(p.name for p in (tmp_path / "small").iterdir()) == [".lock", "CURRENT", "v000001"]


@pytest.mark.parametrize("distinct", [1, 2, 50, 10**9])
def test_row_sorter_is_stable_and_bounded(tmp_path: Path, distinct: int) -> None:
    values = np.random.default_rng(0).integers(0, distinct, 40_000)
    table = pa.table({"v": values, "i": np.arange(40_000)})
    sorter = RowSorter(table.schema, "v", tmp_path, 1 << 17)
    for batch in table.to_batches(max_chunksize=1000):
        sorter.add(batch)
    batches = list(sorter.sorted())
    assert sorter.runs > 5
    assert max(batch.nbytes for batch in batches) <= 1 << 16
    order = np.argsort(values, kind="stable")
    assert np.concatenate([int64_view(batch.column(1)) for batch in batches]).tolist() == order.tolist()


def test_external_sort_with_one_heavy_key(tmp_path: Path) -> None:
    keys = np.where(np.arange(30_000) % 10 == 0, np.arange(30_000), 777)
    table = pa.table({"k": keys, "v": np.arange(30_000)})
    master = build_pages(table, tmp_path / "r", on="k", memory_limit=1 << 16)
    expected, _ = sorted_by_code(table, ["k"])
    assert_same_table(read_all(master, ["k", "v"])[0], expected)


class Broken(Exception):
    pass


def _breaks(table: pa.Table) -> Iterator[pa.RecordBatch]:
    yield from table.to_batches(max_chunksize=1000)
    raise Broken


@pytest.mark.parametrize("order", ["key", "frequency"])
def test_a_source_that_fails_leaves_nothing(tmp_path: Path, order: str) -> None:
    table = every_type(6000)
    frequency = "k" if order == "frequency" else None
    for limit in (1 << 16, 1 << 28):
        with pytest.raises(Broken):
            build_pages(
                _breaks(table),
                tmp_path / "deep" / "r",
                on="k",
                order=order,
                frequency=frequency,
                memory_limit=limit,
            )
        assert not (tmp_path / "deep" / "r").exists()


def test_a_failed_new_version_leaves_the_old_one(tmp_path: Path) -> None:
    table = every_type(300)
    build_pages(table, tmp_path / "r", on="k")
    with pytest.raises(Broken):
        build_pages(_breaks(table), tmp_path / "r", on="k", overwrite=True)
    assert sorted(p.name for p in (tmp_path / "r").iterdir()) == [".lock", "CURRENT", "v000001"]
    assert PageMaster(tmp_path / "r").n_rows == 300


def test_a_crash_before_the_switch_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_pages(every_type(300), tmp_path / "r", on="k")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StoreError, match=r"could not be built .*No space"):
        build_pages(every_type(10), tmp_path / "r", on="k", overwrite=True)
    assert sorted(p.name for p in (tmp_path / "r").iterdir()) == [".lock", "CURRENT", "v000001"]
    with pytest.raises(StoreError, match=r"could not be built .*No space"):
        build_pages(every_type(10), tmp_path / "new", on="k")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(5, "Input/output error")])
@pytest.mark.parametrize("existed", [True, False])
def test_an_interrupt_after_the_switch_leaves_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existed: bool, error: BaseException
) -> None:
    if existed:
        build_pages(every_type(300), tmp_path / "r", on="k")
    switch = os.replace

    def interrupted(source: Path, target: Path) -> None:
        switch(source, target)
        raise error

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises((KeyboardInterrupt, StoreError)):
        build_pages(every_type(10), tmp_path / "r", on="k", overwrite=True)
    master = PageMaster(tmp_path / "r")
    assert read_all(master, ["k"])[0].num_rows == 10
    monkeypatch.undo()
    assert build_pages(every_type(20), tmp_path / "r", on="k", overwrite=True).lineage == master.lineage


def test_what_takes_force_was_synced_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file and folder of a version is on disk before CURRENT names it, and CURRENT before the build returns."""
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_sync(handle: int) -> None:
        fsync(handle)
        done.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)

    def note_switch(source: Path, target: Path) -> None:
        replace(source, target)
        done.append("switch")

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_switch)
    master = build_pages(every_type(300), tmp_path / "above" / "r", on="k", frequency="k")
    switched = done.index("switch")
    wanted = {"above", tmp_path.name, "r", "version", "CURRENT", "manifest.json", *master.manifest.files}
    assert set(done[:switched]) >= wanted
    assert "keys.bin" in wanted
    assert done[switched + 1 :] == ["r"]

    assert not (tmp_path / "new").exists()


def test_what_a_crash_left_is_swept_away(tmp_path: Path) -> None:
    build_pages(every_type(10), tmp_path / "r", on="k")
    left = tmp_path / "r" / ".build-dead"
    left.mkdir()
    (left / "run-00000.arrow").write_bytes(b"x")
    build_pages(every_type(10), tmp_path / "r", on="k", overwrite=True)
    assert not left.exists()


def test_versions(tmp_path: Path) -> None:
    sizes = [100, 200, 300]
    assert [build_pages(every_type(n), tmp_path / "r", on="k", overwrite=True).version for n in sizes] == [1, 2, 3]
    assert PageMaster(tmp_path / "r").n_rows == 300
    assert PageMaster(tmp_path / "r", version=2).n_rows == 200
    with pytest.raises(StoreError, match=r"no version 1; it keeps \[2, 3\]"):
        PageMaster(tmp_path / "r", version=1)


def test_a_reader_outlives_its_version(tmp_path: Path) -> None:
    table = every_type(300)
    master = build_pages(table, tmp_path / "r", on="k")
    with master.open(["tiny"]) as reader:
        for _ in range(2):
            build_pages(every_type(5), tmp_path / "r", on="k", overwrite=True, keep_versions=0)
        block = reader.map(np.array([0, 1]))
        assert block_codes(block) == sorted_by_code(table, ["k"])[1]
        assert versions_in(tmp_path / "r") == [1, 3]


def test_targets_that_are_refused(tmp_path: Path) -> None:
    table = every_type(10)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").write_text("mine")
    build_pages(table, tmp_path / "store", on="k")
    for name, words in (("file", "is a file"), ("folder", "no page store"), ("store", "overwrite=True")):
        with pytest.raises(StoreError, match=words):
            build_pages(table, tmp_path / name, on="k")
    for name in ("file", "folder"):
        with pytest.raises(StoreError):
            build_pages(table, tmp_path / name, on="k", overwrite=True)
    assert (tmp_path / "folder" / "mine").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    assert build_pages(table, tmp_path / "empty", on="k").n_rows == 10


def test_options_that_are_refused(tmp_path: Path) -> None:
    table = every_type(10)
    for options, error, words in (
        ({"on": "kk"}, SchemaError, "did you mean"),
        ({"on": "k", "order": "random"}, ConfigError, "'key' and 'frequency'"),
        ({"on": "k", "order": "frequency"}, ConfigError, "go together"),
        ({"on": "k", "page_rows": 0}, ConfigError, "page_rows=0"),
        ({"on": "k", "memory_limit": 1}, ConfigError, "memory_limit=1"),
        ({"on": "k", "frequency": "word"}, SchemaError, "must be a number"),
        ({"on": "k", "frequency": (np.arange(3), [1])}, ConfigError, "3 keys and 1 counts"),
    ):
        with pytest.raises(error, match=words):
            build_pages(table, tmp_path / "r", **options)  # type: ignore[arg-type]
        assert not (tmp_path / "r").exists()
    with pytest.raises(SchemaError, match="reserved"):
        build_pages(table.rename_columns(["__code", *table.schema.names[1:]]), tmp_path / "r", on="k32")
    with pytest.raises(SchemaError, match="2 columns named 'k'"):
        build_pages(pa.table([table["k"], table["k"]], names=["k", "k"]), tmp_path / "r", on="k")
