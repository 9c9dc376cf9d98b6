"""A store of several files is read as one; short pages inside it are as good as any."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.master.decoding import assert_same_table, block_codes, block_table, every_type, read_all, sorted_by_code
from tests.master.sharded import build_shards

from semistream.errors import ChecksumError, StoreError
from semistream.master.base import aligned_buffer, gaps_between
from semistream.master.build import build_pages
from semistream.master.pages import PageMaster
from semistream.parts.disk_buffer import DiskBuffer


@pytest.fixture
def table() -> pa.Table:
    return every_type(700)


@pytest.fixture
def store(table: pa.Table, tmp_path: Path) -> PageMaster:
    return build_shards(table, tmp_path / "r", "k", page_rows=16, shards=6)


def page_rows_of(master: PageMaster) -> list[int]:
    """Rows of every page, from the shards' own counts."""
    rows = []
    for shard in master.manifest.shards:
        rows += [16] * (shard["rows"] // 16) + ([shard["rows"] % 16] if shard["rows"] % 16 else [])
    return rows


def test_the_shards_are_one_store(store: PageMaster, table: pa.Table) -> None:
    rows = page_rows_of(store)
    assert len(store.manifest.shards) == 6
    assert (store.n_rows, store.n_pages) == (700, len(rows))
    assert sum(n < 16 for n in rows[:-1]) > 2, "no short page inside: the case tests nothing"
    expected, codes = sorted_by_code(table, ["k"])
    for n_pages in (1, 2, 3, 7, store.n_pages, 1000):
        for direct in (False, True):
            found, found_codes = read_all(store, table.schema.names, n_pages, direct)
            assert found_codes == codes
            assert_same_table(found, expected)
    with store.open(["tiny"]) as reader:
        every = np.arange(store.n_pages)
        block = reader.map(every)
        assert block.rows.tolist() == rows
        assert block.n_rows == 700
        assert block_codes(block) == codes
        # Blocks that were mapped stay valid when the reader is closed.
    assert_same_table(block_table(reader, block), expected.select(["tiny"]))


@pytest.mark.parametrize("columns", [["tiny", "plain_flag"], ["word", "list", "tiny"]])
@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("gap_bytes", [0, 1 << 30])
def test_no_read_crosses_a_file(
    store: PageMaster, table: pa.Table, columns: list[str], direct: bool, gap_bytes: int
) -> None:
    expected, _ = sorted_by_code(table, ["k"])
    rows, starts = page_rows_of(store), np.cumsum([0, *page_rows_of(store)])
    wanted = np.unique(np.random.default_rng(3).integers(0, store.n_pages, 30))
    shards = np.cumsum([shard["pages"] for shard in store.manifest.shards])
    with store.open(columns, direct) as reader:
        buffer = aligned_buffer(reader.buffer_bytes(store.n_pages))
        run = reader.read_runs(wanted, buffer, gap_bytes)
        assert reader.fitting(wanted, buffer.nbytes, gap_bytes) == run.pages
        assert run.pages == len(wanted)
        ids = np.concatenate([np.arange(starts[p], starts[p] + rows[p]) for p in wanted])
        assert_same_table(block_table(reader, run.block), expected.select(columns).take(ids))
        if gap_bytes:
            assert run.reads == len(np.unique(np.searchsorted(shards, wanted, side="right")))
        # Every page alone, in any order and more than once.
        pages = np.random.default_rng(4).permutation(np.repeat(wanted, 2))
        each = reader.read_each(np.arange(len(pages)), pages, aligned_buffer(len(pages) * reader.buffer_bytes(1)))
        assert (each.pages, each.reads) == (len(pages), len(pages))
        ids = np.concatenate([np.arange(starts[p], starts[p] + rows[p]) for p in pages])
        assert_same_table(block_table(reader, each.block), expected.select(columns).take(ids))


def test_a_buffer_of_the_stated_size_is_enough(store: PageMaster) -> None:
    """Also where every page is a file: each read is aligned by itself."""
    for direct in (False, True):
        with store.open(["word"], direct) as reader:
            for n_pages in range(1, store.n_pages + 1):
                buffer = aligned_buffer(reader.buffer_bytes(n_pages))
                for first in range(store.n_pages):
                    assert len(reader.read(first, n_pages, buffer).pages) == min(n_pages, store.n_pages - first)


def test_rows_side_by_side_and_their_ids(store: PageMaster, table: pa.Table) -> None:
    _, codes = sorted_by_code(table, ["k"])
    with store.open(["k"]) as reader:
        for first, n_pages in ((0, store.n_pages), (3, 20), (5, 1), (0, 2)):
            disk = DiskBuffer(reader, n_pages)
            block = disk.load(first, n_pages)
            ids = block.row_ids(np.arange(block.n_rows))
            expected = [p * 16 + r for p, count in enumerate(block.rows.tolist()) for r in range(count)]
            assert ids.tolist() == expected
            taken = block_table(reader, block)["k"].to_pylist()
            assert disk.codes[: block.n_rows].tolist() == taken
            if first == 0 and n_pages == store.n_pages:
                assert taken == codes


@pytest.mark.parametrize(
    ("rows", "until", "shift"),
    [
        ([], None, None),
        ([4], None, None),
        ([2], None, None),
        ([4, 4, 1], None, None),
        ([1, 4], [1], [0, 3]),
        ([4, 2, 4, 4, 3, 1], [6, 17], [0, 2, 3]),
    ],
)
def test_gaps_between_pages(rows: list[int], until: list[int] | None, shift: list[int] | None) -> None:
    gaps = gaps_between(np.array(rows, dtype=np.int32), 4)
    assert (None if gaps is None else [a.tolist() for a in gaps]) == (None if until is None else [until, shift])


@pytest.mark.parametrize("page_rows", [1, 3, 8, 64])
def test_locate_finds_whole_runs(tmp_path: Path, page_rows: int) -> None:
    keys = np.repeat([-5, 0, 2, 3, 9, 10], [1, 30, 8, 1, 17, 3])
    master = build_shards(pa.table({"k": keys}), tmp_path / "r", "k", page_rows, shards=5)
    assert len(master.manifest.shards) > 2
    with master.open([]) as reader:
        first, last = reader.locate(np.arange(-8, 14))
        for code, low, high in zip(range(-8, 14), first.tolist(), last.tolist(), strict=True):
            found = block_codes(reader.map(np.arange(low, high + 1)))
            assert found.count(code) == (keys == code).sum()
        begins = np.cumsum([0, *(shard["pages"] for shard in master.manifest.shards)])[:-1]
        assert not reader.continues[begins].any(), "a key stands in two shards"


def test_what_the_index_holds_does_not_grow_with_pages(store: PageMaster, table: pa.Table, tmp_path: Path) -> None:
    shards, pages = len(store.manifest.shards), store.n_pages
    with store.open(["k"]) as reader:
        assert reader.index_bytes == (pages + 1) * 8 + pages * 17 + (pages + 7) // 8 + (2 * shards + 1) * 8


def test_full_pages_share_their_layout(store: PageMaster) -> None:
    with store.open(["tiny", "plain_flag"]) as reader:
        assert reader.map(np.arange(store.n_pages)).kind.max() == 6
        assert reader.map(np.array([0, 1])).kind.tolist() == [0, 0]


def test_shards_that_disagree_about_places(tmp_path: Path) -> None:
    """A column may have nulls in one shard only; then it and those behind it have no common place."""
    n = 4000
    keys = np.arange(n)
    early = pa.array(np.where(keys < n // 2, keys, 0), mask=keys < 100)
    table = pa.table({"k": keys, "early": early, "late": pa.array(keys * 2), "flag": keys % 3 == 0})
    master = build_shards(table, tmp_path / "r", "k", 32, shards=4)
    assert master.manifest.fixed_layout == ["k", "late", "flag"]
    for columns in (["late"], ["early", "late"], ["early"]):
        assert_same_table(read_all(master, columns, 5)[0], table.select(columns))


def test_damage_names_the_shard(store: PageMaster) -> None:
    shard = store.folder / store.manifest.shards[3]["pages_file"]
    page = sum(s["pages"] for s in store.manifest.shards[:3]) + 1
    with store.open(["tiny"]) as reader:
        at = reader.page_offset(page)
        raw = bytearray(shard.read_bytes())
        raw[at + 300] ^= 4
        shard.write_bytes(raw)
        with pytest.raises(ChecksumError, match=rf"page {page} of .*{shard.name} \(bytes {at} to"):
            reader.read(page, 1, aligned_buffer(reader.buffer_bytes(1)))
        with shard.open("r+b") as file:
            file.truncate(at)
        with pytest.raises(StoreError, match=rf"{shard.name} ends too early .* truncated"):
            reader.read(page, 1, aligned_buffer(reader.buffer_bytes(1)))
    with pytest.raises(StoreError, match=rf"{shard.name} has .* truncated"):
        PageMaster(store.path)
    shard.unlink()
    with pytest.raises(StoreError, match=rf"{shard.name} cannot be read"):
        PageMaster(store.path)


def test_one_shard_is_what_build_pages_writes(table: pa.Table, tmp_path: Path) -> None:
    whole = build_pages(table, tmp_path / "whole", on="k", page_rows=16)
    single = build_shards(table, tmp_path / "single", "k", 16, shards=1)
    for name in whole.manifest.files:
        assert (whole.folder / name).read_bytes() == (single.folder / name).read_bytes(), name


def test_more_shards_than_files_may_be_open(tmp_path: Path) -> None:
    """The limit of a login shell is raised as far as the system lets a process do that itself."""
    build_shards(pa.table({"k": np.arange(400)}), tmp_path / "r", "k", 4, shards=80)
    script = (
        "import resource, sys; from semistream.master.pages import PageMaster\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))\n"
        "with PageMaster(sys.argv[1]).open(['k']) as reader: print(len(reader.map(reader._last_pages).pages))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "r")], capture_output=True, text=True, check=True
    )
    assert done.stdout == "80\n"
