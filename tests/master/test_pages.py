"""A page store gives back what was put in, page borders and all, by every way of reading."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.master.decoding import (
    assert_same_table,
    block_codes,
    block_table,
    every_type,
    read_all,
    sorted_by_code,
)

from semistream.errors import ConfigError
from semistream.master.base import aligned_buffer
from semistream.master.build import build_pages
from semistream.master.memory import MemoryMaster
from semistream.master.pages import PageMaster

KEYS = (["k"], ["k32"], ["word"], ["money"], ["day"], ["at"], ["flag"], ["ratio"], ["k32", "word"], ["coded"])


@pytest.mark.parametrize("page_rows", [1, 7, 256])
@pytest.mark.parametrize("on", KEYS, ids="+".join)
def test_round_trip(tmp_path: Path, on: list[str], page_rows: int) -> None:
    table = every_type(300)
    master = build_pages(table, tmp_path / "r", on=on, page_rows=page_rows)
    expected, codes = sorted_by_code(table, on)
    assert master.schema.equals(table.schema)
    assert (master.n_rows, master.null_key_rows) == (len(expected), 300 - len(expected))
    found, found_codes = read_all(master, table.schema.names)
    assert_same_table(found, expected)
    assert found_codes == codes


@pytest.mark.parametrize("n_rows", [0, 1, 255, 256, 257, 512])
def test_sizes_around_a_page(tmp_path: Path, n_rows: int) -> None:
    table = every_type(n_rows)
    master = build_pages(table, tmp_path / "r", on="k")
    assert (master.n_rows, master.n_pages) == (n_rows, -(-n_rows // 256))
    expected, codes = sorted_by_code(table, ["k"])
    for columns in (table.schema.names, ["k", "tiny"], []):
        found, found_codes = read_all(master, columns)
        assert_same_table(found, expected.select(columns))
        assert found_codes == codes


def test_columns_in_any_order_and_number(tmp_path: Path) -> None:
    table = every_type(100)
    master = build_pages(table, tmp_path / "r", on="word", page_rows=16)
    expected, _ = sorted_by_code(table, ["word"])
    for columns in (["struct", "k", "flag"], ["ratio"], ["nothing"], ["plain_word", "k32"]):
        assert_same_table(read_all(master, columns)[0], expected.select(columns))


def test_two_layouts_do_for_columns_that_never_move(tmp_path: Path) -> None:
    table = every_type(100)
    master = build_pages(table, tmp_path / "r", on="k", page_rows=16)
    buffer = aligned_buffer(1 << 20)
    with master.open(["tiny", "plain_flag", "nothing"]) as reader:
        assert reader.read(0, 7, buffer).data.shape[0] == 2
        assert reader.held_bytes(10) <= 320
    with master.open(["tiny", "flag"]) as reader:
        assert reader.read(0, 7, buffer).data.shape[0] == 7


def test_the_key_is_its_own_code_column(tmp_path: Path) -> None:
    table = every_type(50)
    for key, own in (("k", True), ("at", True), ("k32", False), ("ratio", False), ("word", False)):
        manifest = build_pages(table, tmp_path / key, on=key).manifest
        assert manifest.code_column == (key if own else "__code"), key


def test_the_file_is_plain_arrow(tmp_path: Path) -> None:
    table = every_type(50)
    master = build_pages(table, tmp_path / "r", on="k", page_rows=16)
    with pa.ipc.open_file(master.folder / "pages-00000.arrow") as file:
        assert [file.get_batch(i).num_rows for i in range(file.num_record_batches)] == [16, 16, 16, 2]
        assert set(file.schema.names) == set(table.schema.names)


def test_direct_reads_equal_buffered_ones(tmp_path: Path) -> None:
    table = every_type(700)
    master = build_pages(table, tmp_path / "r", on="k", page_rows=13)
    buffered = read_all(master, table.schema.names, 5)
    direct = read_all(master, table.schema.names, 5, direct=True)
    assert_same_table(direct[0], buffered[0])
    assert direct[1] == buffered[1]


def test_direct_refuses_what_cannot_work(tmp_path: Path) -> None:
    master = build_pages(every_type(100), tmp_path / "r", on="k")
    with master.open(["tiny"], direct=True) as reader:
        with pytest.raises(ConfigError, match="direct"):
            reader.map(np.array([0]))
        with pytest.raises(ConfigError, match="aligned_buffer"):
            reader.read(0, 1, aligned_buffer(1 << 20)[8:])


def test_a_small_buffer_is_refused(tmp_path: Path) -> None:
    master = build_pages(every_type(1000), tmp_path / "r", on="k")
    with master.open(["tiny"]) as reader:
        with pytest.raises(ConfigError, match="too small"):
            reader.read(0, 2, aligned_buffer(reader.buffer_bytes(1) // 2))
        with pytest.raises(ConfigError, match="too small"):
            reader.read_runs(np.array([1]), aligned_buffer(100), 0)


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("gap_bytes", [0, 1 << 14, 1 << 30])
def test_read_runs_takes_what_fits(tmp_path: Path, direct: bool, gap_bytes: int) -> None:
    table = every_type(2000)
    master = build_pages(table, tmp_path / "r", on="k", page_rows=16)
    expected, codes = sorted_by_code(table, ["k"])
    wanted = np.unique(np.random.default_rng(1).integers(0, master.n_pages, 60))
    columns = ["word", "k", "list"]
    with master.open(columns, direct) as reader:
        buffer = aligned_buffer(4 * reader.buffer_bytes(1))
        done, sweeps, reads = 0, 0, 0
        while done < len(wanted):
            run = reader.read_runs(wanted[done:], buffer, gap_bytes)
            assert reader.fitting(wanted[done:], buffer.nbytes, gap_bytes) == run.pages
            pages = wanted[done : done + run.pages]
            assert run.block.pages.tolist() == pages.tolist()
            rows = np.concatenate([np.arange(16 * p, min(16 * p + 16, 2000)) for p in pages])
            assert_same_table(block_table(reader, run.block), expected.select(columns).take(rows))
            assert block_codes(run.block) == [codes[r] for r in rows]
            assert run.bytes <= buffer.nbytes
            done += run.pages
            sweeps += 1
            reads += run.reads
        assert sweeps > 1
        assert sweeps <= reads <= len(wanted)
        if gap_bytes:
            assert reads < len(wanted) / 2


def test_pages_that_are_not_there(tmp_path: Path) -> None:
    table = every_type(100)
    for master in (build_pages(table, tmp_path / "r", on="k", page_rows=16), MemoryMaster(table, "k", 16)):
        with master.open(["k"]) as reader:
            buffer = aligned_buffer(reader.buffer_bytes(7))
            for pages in (np.array([-1, 2]), np.array([2, 7])):
                with pytest.raises(ConfigError, match="R has 7 pages"):
                    reader.map(pages)
                with pytest.raises(ConfigError, match="R has 7 pages"):
                    reader.read_runs(pages, buffer, 0)


def test_contiguous_pages_are_one_read(tmp_path: Path) -> None:
    master = build_pages(every_type(2000), tmp_path / "r", on="k", page_rows=16)
    with master.open(["k"]) as reader:
        run = reader.read_runs(np.arange(5, 20), aligned_buffer(reader.buffer_bytes(15)), 0)
        assert (run.pages, run.reads) == (15, 1)


def test_map_scattered_pages(tmp_path: Path) -> None:
    table = every_type(1000)
    master = build_pages(table, tmp_path / "r", on="k", page_rows=16)
    expected, _ = sorted_by_code(table, ["k"])
    with master.open(["word", "tiny"]) as reader:
        pages = np.array([0, 3, 4, 40, master.n_pages - 1])
        block = reader.map(pages)
        rows = np.concatenate([np.arange(16 * p, min(16 * p + 16, 1000)) for p in pages])
        assert_same_table(block_table(reader, block), expected.select(["word", "tiny"]).take(rows))
        assert block.rows.tolist() == [16, 16, 16, 16, 8]
    assert_same_table(block_table(reader, block), expected.select(["word", "tiny"]).take(rows))


@pytest.mark.parametrize("page_rows", [1, 3, 8, 64])
def test_locate_finds_whole_runs(tmp_path: Path, page_rows: int) -> None:
    keys = np.repeat([-5, 0, 2, 3, 9, 10], [1, 30, 8, 1, 17, 3])
    master = build_pages(pa.table({"k": keys}), tmp_path / "r", on="k", page_rows=page_rows)
    codes = np.arange(-8, 14)
    with master.open([]) as reader:
        first, last = reader.locate(codes)
        shuffled = np.random.default_rng(0).permutation(codes)
        again = reader.locate(shuffled)
    assert again[0].tolist() == first[shuffled + 8].tolist()
    assert again[1].tolist() == last[shuffled + 8].tolist()
    for code, low, high in zip(codes, first, last, strict=True):
        rows = np.flatnonzero(keys == code)
        assert 0 <= low <= high < master.n_pages
        if len(rows):
            assert (low, high) == (rows[0] // page_rows, rows[-1] // page_rows)
        else:
            # The page where it would be: everything before is smaller, everything after greater.
            assert low == high
            assert (keys[: low * page_rows] < code).all()
            assert (keys[(high + 1) * page_rows :] > code).all()


def test_locate_in_an_empty_store(tmp_path: Path) -> None:
    master = build_pages(pa.table({"k": pa.array([], pa.int64())}), tmp_path / "r", on="k")
    with master.open(["k"]) as reader:
        assert [a.tolist() for a in reader.locate(np.array([1, 2]))] == [[-1, -1], [-1, -1]]
        assert reader.read(0, 4, aligned_buffer(reader.buffer_bytes(4))).n_rows == 0
        assert reader.map(np.empty(0, dtype=np.int64)).n_rows == 0


def test_forced_collisions_share_a_run(tmp_path: Path) -> None:
    table = every_type(300)
    build_pages(table, tmp_path / "r", on="word", page_rows=16, code_mask=3)
    master = PageMaster(tmp_path / "r")
    assert master.coder.rows.mask == 3
    expected, codes = sorted_by_code(table, ["word"], mask=3)
    assert len(set(codes)) <= 4
    found, found_codes = read_all(master, table.schema.names)
    assert_same_table(found, expected)
    assert found_codes == codes


def test_index_bytes_are_the_arrays_held(tmp_path: Path) -> None:
    master = build_pages(every_type(1000), tmp_path / "r", on="k", page_rows=10)
    with master.open(["k"]) as reader:
        assert reader.index_bytes == 101 * 8 + 100 * (8 + 1 + 8) + 13 + 24
        assert reader.fences.tolist() == sorted(reader.fences.tolist())


@pytest.mark.parametrize("page_rows", [1, 7, 16, 256])
@pytest.mark.parametrize("n_rows", [20, 500, 512, 513, 600, 1024, 1100, 5000])
def test_plain_columns_keep_their_place_at_any_size(tmp_path: Path, n_rows: int, page_rows: int) -> None:
    values = np.random.default_rng(0).permutation(n_rows)
    table = pa.table({"k": values, "flag": values % 2 == 0, "tiny": values.astype(np.int8)})
    for limit in (1 << 16, 1 << 28):
        master = build_pages(table, tmp_path / str(limit), on="k", page_rows=page_rows, memory_limit=limit)
        assert master.manifest.fixed_layout == ["k", "flag", "tiny"]
        assert_same_table(read_all(master, table.schema.names, 4)[0], sorted_by_code(table, ["k"])[0])
