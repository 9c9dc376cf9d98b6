"""Parquet in place: the rows of the files in order, in pages of any size, whatever the row groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.master.decoding import assert_same_table, block_codes, block_table, every_type, read_all

from semistream.errors import ConfigError, IndexRequiredError, SchemaError, StoreError
from semistream.master.build import build_pages
from semistream.master.parquet import ParquetFiles, ParquetMaster

NO_BUFFER = np.empty(0, dtype=np.uint8)


@pytest.fixture
def table() -> pa.Table:
    return every_type(500)


@pytest.fixture
def folder(tmp_path: Path, table: pa.Table) -> Path:
    (tmp_path / "p").mkdir()
    for i, (start, size) in enumerate(((0, 170), (170, 0), (170, 1), (171, 329))):
        pq.write_table(table.slice(start, size), tmp_path / "p" / f"{i}.parquet", row_group_size=40 + 30 * i)
    return tmp_path / "p"


@pytest.mark.parametrize("page_rows", [1, 37, 128, 4096])
def test_rows_in_file_order(folder: Path, table: pa.Table, page_rows: int) -> None:
    master = ParquetMaster(folder, "k", page_rows)
    assert (master.n_rows, master.order, master.has_index) == (500, "none", False)
    found, codes = read_all(master, table.schema.names, n_pages=2)
    assert_same_table(found, table)
    assert codes == table["k"].to_pylist()


def test_single_file_and_dataset(folder: Path, table: pa.Table) -> None:
    assert_same_table(read_all(ParquetMaster(folder / "0.parquet", "k", 16), ["word"])[0], table.select(["word"])[:170])
    assert_same_table(read_all(ParquetMaster(ds.dataset(str(folder)), "k", 16), ["word"])[0], table.select(["word"]))


def test_null_keys_never_show(folder: Path, table: pa.Table) -> None:
    master = ParquetMaster(folder, ["k32", "word"], 64)
    found, codes = read_all(master, ["k", "list"])
    kept = table.filter(table["k32"].is_valid())
    assert_same_table(found, kept.select(["k", "list"]))
    assert len(codes) == len(kept) < 500


def test_cycles_and_jumps(folder: Path, table: pa.Table) -> None:
    with ParquetMaster(folder, "k", 4096).open(["word", "flag"], page_rows=9) as reader:
        assert reader.n_pages == 56
        for first in [0, 3, 6, 53, 0, 3, 40, 55, 18, 19, 20, 0]:
            block = reader.read(first, 3, NO_BUFFER)
            expected = table.select(["word", "flag"]).slice(9 * first, 27)
            assert_same_table(block_table(reader, block), expected)
            assert block_codes(block) == table["k"].to_pylist()[9 * first : 9 * first + 27]
        assert reader.held_bytes(2) > 0


def test_sequential_reads_do_not_seek(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    master = ParquetMaster(folder, "k", 16)
    starts = []
    batches = master.files.batches

    def counted(columns: list[str], first_row: int, batch_rows: int, threads: bool = False) -> object:
        starts.append(first_row)
        return batches(columns, first_row, batch_rows, threads)

    monkeypatch.setattr(master.files, "batches", counted)
    with master.open(["k"]) as reader:
        for _ in range(3):
            for first in range(0, reader.n_pages, 4):
                reader.read(first, 4, NO_BUFFER)
    assert starts == [0, 0, 0]


def test_path_columns_and_files_that_differ(tmp_path: Path) -> None:
    root = tmp_path / "p"
    for year, columns in (
        (2023, {"k": pa.array([1, 2])}),
        (2024, {"k": pa.array([3], pa.int32()), "v": ["x"]}),
    ):
        (root / f"year={year}").mkdir(parents=True)
        pq.write_table(pa.table(columns), root / f"year={year}" / "a.parquet")
    master = ParquetMaster(
        ds.dataset(
            root,
            partitioning="hive",
            schema=pa.schema({"k": pa.int64(), "v": pa.string(), "year": pa.int32()}),
        ),
        "k",
    )
    found, codes = read_all(master, ["year", "v", "k"])
    assert found.to_pylist() == [
        {"year": 2023, "v": None, "k": 1},
        {"year": 2023, "v": None, "k": 2},
        {"year": 2024, "v": "x", "k": 3},
    ]
    assert codes == [1, 2, 3]
    with pytest.raises(SchemaError, match=r"year=2024/a.parquet has the column 'k' as int32, but .* as int64"):
        ParquetMaster(root, "year")


GOOD = pa.table({"k": pa.array([5], pa.int64()), "v": ["x"]})
MIXED = {
    "type": (pa.table({"k": ["5"], "v": ["x"]}), r"b.parquet has the column 'k' as string, but .*a.parquet as int64"),
    "missing": (GOOD.select(["v"]), r"b.parquet has no column 'k', which .*a.parquet has.*add the column 'k'"),
    "extra": (GOOD.append_column("w", [[1.5]]), r"b.parquet has a column 'w', which .*a.parquet has not.*remove"),
}


@pytest.mark.parametrize("mixed", MIXED)
def test_files_of_a_folder_that_differ_are_refused(tmp_path: Path, mixed: str) -> None:
    other, message = MIXED[mixed]
    folder = tmp_path / "r"
    folder.mkdir()
    pq.write_table(GOOD, folder / "a.parquet")
    pq.write_table(other, folder / "b.parquet")
    with pytest.raises(SchemaError, match=message):
        ParquetMaster(folder, "k")
    with pytest.raises(SchemaError, match=message):
        build_pages(folder, tmp_path / "store", on="k")
    assert not (tmp_path / "store").exists()


def test_a_column_of_the_path_and_of_a_file_differ(tmp_path: Path) -> None:
    (tmp_path / "v=x").mkdir()
    pq.write_table(GOOD, tmp_path / "a.parquet")
    pq.write_table(GOOD.select(["k"]), tmp_path / "v=x" / "b.parquet")
    with pytest.raises(SchemaError, match=r"b.parquet has the column 'v' as a part of its path"):
        ParquetMaster(tmp_path, "k")


def test_files_of_a_folder_may_differ_in_order_and_in_nullability(tmp_path: Path) -> None:
    strict = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.string(), nullable=False)])
    pq.write_table(GOOD.cast(strict), tmp_path / "a.parquet")
    pq.write_table(pa.table({"v": pa.array([None, "z"], pa.string()), "k": [6, 7]}), tmp_path / "b.parquet")
    master = ParquetMaster(tmp_path, "k")
    assert master.schema.field("v").nullable
    found, codes = read_all(master, ["v", "k"])
    assert found.to_pylist() == [{"v": "x", "k": 5}, {"v": None, "k": 6}, {"v": "z", "k": 7}]
    assert codes == [5, 6, 7]


def test_batches_of_wide_rows_are_short(tmp_path: Path) -> None:
    narrow = pa.table({"k": np.arange(1000)})
    pq.write_table(narrow, tmp_path / "narrow.parquet")
    assert ParquetFiles(tmp_path / "narrow.parquet").rows_within(4000, 10_000) in range(400, 501)
    assert ParquetFiles(tmp_path / "narrow.parquet").rows_within(4000, 100) == 100
    for name, words in (
        ("dictionary", ["w" * 10_000] * 1000),
        ("later", ["w"] * 500 + [f"{i:09d}" * 1000 for i in range(500)]),
    ):
        pq.write_table(pa.table({"v": words}), tmp_path / f"{name}.parquet", use_dictionary=name == "dictionary")
        assert 1 <= ParquetFiles(tmp_path / f"{name}.parquet").rows_within(100_000, 10_000) <= 25


def test_empty(tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": pa.array([], pa.int64())}), tmp_path / "r.parquet")
    master = ParquetMaster(tmp_path / "r.parquet", "k")
    assert (master.n_rows, master.n_pages) == (0, 0)
    with master.open(["k"]) as reader:
        assert reader.read(0, 3, NO_BUFFER).n_rows == 0


def test_row_bytes_are_those_in_memory(tmp_path: Path) -> None:
    n = 10_000
    table = pa.table({"k": np.zeros(n, dtype=np.int64), "v": np.zeros(n)})
    pq.write_table(table, tmp_path / "r.parquet")
    assert ParquetMaster(tmp_path / "r.parquet", "k").row_bytes == pytest.approx(24, abs=0.5)


def test_refused(folder: Path, tmp_path: Path) -> None:
    master = ParquetMaster(folder, "k")
    with pytest.raises(ConfigError, match="build a page store"):
        master.open(["k"], direct=True)
    with pytest.raises(SchemaError, match="did you mean 'word'"):
        ParquetMaster(folder, "wrd")
    with master.open(["k"]) as reader:
        for call in (
            lambda: reader.map(np.array([0])),
            lambda: reader.locate(np.array([0])),
            lambda: reader.read_runs(np.array([0]), NO_BUFFER, 0),
        ):
            with pytest.raises(IndexRequiredError, match="build_pages"):
                call()
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 this is not it PAR1")
    (tmp_path / "cut.parquet").write_bytes((folder / "0.parquet").read_bytes()[:-100])
    for name in ("bad.parquet", "cut.parquet", "absent.parquet"):
        with pytest.raises(StoreError, match=name):
            ParquetMaster(tmp_path / name, "k")


def test_damage_inside_a_file(folder: Path) -> None:
    raw = bytearray((folder / "0.parquet").read_bytes())
    master = ParquetMaster(folder, "k")
    raw[4:2000] = b"\xff" * 1996
    (folder / "0.parquet").write_bytes(raw)
    with pytest.raises(StoreError, match=r"0\.parquet"):
        read_all(master, ["k", "word", "money"])
