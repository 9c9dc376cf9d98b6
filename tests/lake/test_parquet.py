"""The plain folder: what it refuses, what its log holds, and commits that were cut short."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.faults.harness import Verdict, compare, flip_every_byte
from tests.lake.lakes import READERS_OF, SCHEMA, expected, found_by, open_lake, rows_of, write_batch, write_files

from semistream.errors import ConfigError, SchemaError, StoreError
from semistream.lake.parquet import ParquetFolder
from semistream.lake.table import fresh_app

APP = "query-1"


def prepared(folder: Path, by: tuple[str, ...] = ()) -> ParquetFolder:
    table = open_lake(folder, "parquet")
    assert isinstance(table, ParquetFolder)
    table.prepare(SCHEMA, by)
    return table


def test_nothing_but_data_is_in_the_folder(tmp_path: Path) -> None:
    table = prepared(tmp_path, ("p",))
    write_batch(table, APP, 0)
    write_files(table.target(APP, 1), [rows_of(1)])
    assert all(path.suffix == ".parquet" for path in (tmp_path / "t").rglob("*") if path.is_file())
    # Nor does a reader of the folder above take what is staged for data.
    assert sorted(tmp_path.rglob("*.parquet")) == sorted((tmp_path / "t").rglob("*.parquet"))


def test_a_commit_that_was_cut_short_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for way in ("done", "prepare", "clean"):
        folder = tmp_path / way
        folder.mkdir()
        table = prepared(folder, ("p",))
        write_batch(table, APP, 0)
        renamed: list[Path] = []
        plain = os.rename

        def fails_half_way(old: Path, new: Path, renamed: list[Path] = renamed, plain: object = plain) -> None:
            if len(renamed) == 2:
                raise OSError(5, "Input/output error")
            plain(old, new)  # type: ignore[operator]
            renamed.append(new)

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", fails_half_way)
            with pytest.raises(StoreError, match="the next start completes it"):
                write_batch(table, APP, 1)
        assert len(renamed) == 2
        if way == "done":
            assert table.done(APP, 1)
        elif way == "prepare":
            prepared(folder, ("p",))
        else:
            assert open_lake(folder, "parquet").clean(3600) == []
        assert found_by("pyarrow", folder, "parquet") == expected([0, 1])
        assert write_batch(table, APP, 1).skipped
        assert found_by("pyarrow", folder, "parquet") == expected([0, 1])


def test_a_committed_file_that_is_gone_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = prepared(tmp_path)

    def fails(old: Path, new: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fails)
        with pytest.raises(StoreError, match="is committed"):
            write_batch(table, APP, 0, tasks=1)
    (staged,) = tmp_path.glob(".t.semistream/staged/*/*/*.staged")
    staged.unlink()
    with pytest.raises(StoreError, match="is missing, a file of batch 0 that is committed"):
        prepared(tmp_path)


def test_the_log_stays_small(tmp_path: Path) -> None:
    table = prepared(tmp_path)
    for number in range(25):
        table.target(APP, number)
        table.commit(APP, number, [])
    for number in range(3):
        app = fresh_app()
        table.commit(app, 0, write_files(table.target(app, 0), [rows_of(number)]))
    entries = sorted(path.name for path in tmp_path.glob(".t.semistream/log/*/*"))
    assert entries == [f"{number:012d}.batch" for number in range(15, 25)]
    assert all(table.done(APP, number) for number in (0, 14, 24))
    assert not list(tmp_path.glob(".t.semistream/staged/*/*"))
    assert found_by("pyarrow", tmp_path, "parquet") == expected([0, 1, 2])


def test_a_lost_log_is_noticed(tmp_path: Path) -> None:
    write_batch(prepared(tmp_path), APP, 0)
    shutil.rmtree(tmp_path / ".t.semistream")
    table = prepared(tmp_path)
    with pytest.raises(StoreError, match=r"was written by this query, and its log in .* is missing"):
        table.done(APP, 0)
    assert not table.done("another", 0)


def test_damage_of_the_log_is_noticed(tmp_path: Path) -> None:
    write_batch(prepared(tmp_path), APP, 0)

    def read() -> Verdict:
        table = prepared(tmp_path)
        assert table.done(APP, 0)
        return compare(found_by("pyarrow", tmp_path, "parquet"), expected([0]))

    for path in [*tmp_path.glob(".t.semistream/log/*/*"), tmp_path / ".t.semistream/table"]:
        result = flip_every_byte(path, read, step=61)
        assert result.flips > 4
        assert result.is_right, result.failures


def test_a_folder_that_was_removed_may_begin_anew(tmp_path: Path) -> None:
    write_batch(prepared(tmp_path), APP, 0)
    with pytest.raises(SchemaError, match="divided by no column"):
        prepared(tmp_path, ("p",))
    shutil.rmtree(tmp_path / "t")
    table = prepared(tmp_path, ("p",))
    assert table.done(APP, 0)
    write_batch(table, "another", 0)
    assert found_by("pyarrow", tmp_path, "parquet") == expected([0])


def test_folders_of_others_are_refused(tmp_path: Path) -> None:
    for name, inside, words in [
        ("spark", "_spark_metadata/0", "written by Spark's file sink"),
        ("delta", "_delta_log/0.json", "is a Delta table; write it with format='delta'"),
        ("iceberg", "metadata/v1.metadata.json", "is an Iceberg table"),
    ]:
        path = tmp_path / name / inside
        path.parent.mkdir(parents=True)
        path.touch()
        with pytest.raises(ConfigError, match=words):
            open_lake(tmp_path, "parquet", name).prepare(SCHEMA)
        assert not (tmp_path / f".{name}.semistream").exists()


def test_a_folder_of_fitting_files_is_taken_on(tmp_path: Path) -> None:
    (tmp_path / "t/p=a").mkdir(parents=True)
    files = pa.schema([SCHEMA.field("v"), pa.field("k", pa.int64(), nullable=False)])
    pq.write_table(pa.table([[0.5], [77]], schema=files), tmp_path / "t/p=a/x.parquet", store_schema=False)
    (tmp_path / "t/_SUCCESS").touch()
    table = prepared(tmp_path, ("p",))
    write_batch(table, APP, 0)
    for reader in READERS_OF["parquet"]:
        if reader != "polars, every file below":
            assert found_by(reader, tmp_path, "parquet") == sorted([*expected([0]), (77, "a", 0.5)]), reader


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"k": ["text"], "p": ["a"], "v": [0.5]}), tmp_path / "t/x.parquet")
    with pytest.raises(SchemaError, match=r"x.parquet has column 'k' as string, not int64"):
        prepared(tmp_path)
    with pytest.raises(SchemaError, match="divided by no column, and partition_by asks for a division by p"):
        prepared(tmp_path, ("p",))
    (tmp_path / "t/x.parquet").write_bytes(b"no Parquet")
    with pytest.raises(ConfigError, match="cannot be read"):
        prepared(tmp_path)


@pytest.mark.parametrize("name", ["_p", ".p"])
def test_columns_that_would_hide_their_folders_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SchemaError, match="readers leave out folders"):
        open_lake(tmp_path, "parquet").prepare(pa.schema([(name, pa.int64()), ("v", pa.int64())]), [name])


def test_a_table_is_prepared_first(tmp_path: Path) -> None:
    table = open_lake(tmp_path, "parquet")
    with pytest.raises(ConfigError, match="not prepared"):
        table.target(APP, 0)
    with pytest.raises(StoreError, match="call prepare first"):
        table.done(APP, 0)
    with pytest.raises(ConfigError, match="not a table that semistream has written"):
        table.clean(0)
    table.prepare(SCHEMA)
    with pytest.raises(ConfigError, match="has no target"):
        table.commit(APP, 0, [])
