"""Every format: each batch once, whoever reads, whatever happens between."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.lake.lakes import (
    FORMATS,
    READERS_OF,
    SCHEMA,
    expected,
    found_by,
    open_lake,
    rows_of,
    write_batch,
    write_files,
)

from semistream.errors import ConfigError, SchemaError
from semistream.lake.table import fresh_app, open_table

each_format = pytest.mark.parametrize("format", FORMATS)
APP = "query-1"


@each_format
@pytest.mark.parametrize("by", [(), ("p",)], ids=["plain", "divided"])
def test_readers_see_committed_rows_once(tmp_path: Path, format: str, by: tuple[str, ...]) -> None:
    table = open_lake(tmp_path, format)
    table.prepare(SCHEMA, by)
    assert not table.done(APP, 0)
    assert write_batch(table, APP, 0).rows == 24
    assert table.done(APP, 0)
    # An attempt that came to nothing, one that is still being made, and a batch that is replayed.
    write_files(table.target(APP, 1), [rows_of(1)])
    assert not table.done(APP, 1)
    again = write_batch(table, APP, 0)
    assert again.skipped
    assert again.rows == 0
    for reader in READERS_OF[format]:
        assert found_by(reader, tmp_path, format) == expected([0]), reader
    assert write_batch(table, APP, 1).rows == 24
    assert write_batch(table, "query-2", 0).rows == 24
    for reader in READERS_OF[format]:
        assert found_by(reader, tmp_path, format) == sorted(expected([0, 0, 1])), reader


@each_format
def test_a_table_is_opened_again(tmp_path: Path, format: str) -> None:
    table = open_lake(tmp_path, format)
    table.prepare(SCHEMA)
    write_batch(table, APP, 3)
    table = open_lake(tmp_path, format)
    table.prepare(pa.schema(list(SCHEMA)[::-1]))
    assert [table.done(APP, number) for number in (0, 3, 4)] == [True, True, False]
    assert write_batch(table, APP, 4).rows == 24
    assert found_by(READERS_OF[format][0], tmp_path, format) == expected([3, 4])


@each_format
def test_an_empty_batch_is_done(tmp_path: Path, format: str) -> None:
    table = open_lake(tmp_path, format)
    table.prepare(SCHEMA)
    write_batch(table, APP, 0)
    table.target(APP, 1)
    assert table.commit(APP, 1, []).files == 0
    table = open_lake(tmp_path, format)
    table.prepare(SCHEMA)
    assert table.done(APP, 1)
    assert found_by(READERS_OF[format][0], tmp_path, format) == expected([0])


@each_format
def test_jobs_of_one_batch_do_not_know_each_other(tmp_path: Path, format: str) -> None:
    table = open_lake(tmp_path, format)
    table.prepare(SCHEMA)
    for number in range(2):
        app = fresh_app()
        assert not table.done(app, 0)
        target = table.target(app, 0)
        assert not table.commit(app, 0, write_files(target, [rows_of(number)])).skipped
    assert found_by(READERS_OF[format][0], tmp_path, format) == expected([0, 1])


@each_format
def test_two_tables_with_one_query_commit_a_batch_once(tmp_path: Path, format: str) -> None:
    """A driver that was given up for dead, and the one that replaced it."""
    old, new = open_lake(tmp_path, format), open_lake(tmp_path, format)
    for table in (old, new):
        table.prepare(SCHEMA)
        assert not table.done(APP, 0)
    files = [(table, write_files(table.target(APP, 0), [rows_of(0)])) for table in (old, new)]
    assert [table.commit(APP, 0, written).skipped for table, written in files] == [False, True]
    assert found_by(READERS_OF[format][0], tmp_path, format) == expected([0])
    assert old.done(APP, 0)
    assert new.done(APP, 0)


@each_format
def test_many_small_files_are_merged(tmp_path: Path, format: str) -> None:
    table = open_lake(tmp_path, format)
    table.prepare(SCHEMA, ["p"])
    done = write_batch(table, APP, 0, tasks=6)
    assert done.files == 6
    assert done.rows == 24
    for reader in READERS_OF[format]:
        assert found_by(reader, tmp_path, format) == expected([0]), reader
    apart = open_lake(tmp_path, format, name="apart", compact=False)
    apart.prepare(SCHEMA, ["p"])
    assert write_batch(apart, APP, 0, tasks=6).files > 6


@each_format
def test_files_of_a_task_that_was_given_up_are_left_out(tmp_path: Path, format: str) -> None:
    table = open_lake(tmp_path, format)
    table.prepare(SCHEMA)
    target = table.target(APP, 0)
    write_files(target, [rows_of(7)], part=0)
    table.commit(APP, 0, write_files(target, [rows_of(0)], part=0))
    assert found_by(READERS_OF[format][0], tmp_path, format) == expected([0])


@each_format
def test_orphans_are_cleaned_up(tmp_path: Path, format: str) -> None:
    table = open_lake(tmp_path, format)
    table.prepare(SCHEMA, ["p"])
    write_batch(table, APP, 0)
    orphans = write_files(table.target(APP, 1), [rows_of(1)])
    assert table.clean(3600) == []
    said = table.clean(0, dry_run=True)
    assert {Path(path).name for path in said} == {Path(file.path).name for file in orphans}
    assert all(Path(path).exists() for path in said)
    assert table.clean(0) == said
    assert not any(Path(path).exists() for path in said)
    assert table.clean(0) == []
    assert found_by(READERS_OF[format][0], tmp_path, format) == expected([0])
    write_batch(table, APP, 1)
    assert found_by(READERS_OF[format][0], tmp_path, format) == expected([0, 1])


@each_format
def test_other_columns_are_refused(tmp_path: Path, format: str) -> None:
    open_lake(tmp_path, format).prepare(SCHEMA)
    for schema, words in [
        (pa.schema([SCHEMA.field("k"), SCHEMA.field("p")]), "a column 'v' that the rows have not"),
        (SCHEMA.append(pa.field("w", pa.int64())), "no column 'w'"),
        (SCHEMA.set(0, pa.field("k", pa.string())), "column 'k' as int64, not string"),
    ]:
        with pytest.raises(SchemaError, match=words):
            open_lake(tmp_path, format).prepare(schema)
    with pytest.raises(SchemaError, match="divided by no column, and partition_by asks for a division by p"):
        open_lake(tmp_path, format).prepare(SCHEMA, ["p"])


@each_format
@pytest.mark.parametrize(
    ("by", "words"),
    [
        (["p", "p"], "twice"),
        (["q"], "no column; there are k, p, v"),
        (["v"], "of type double; allowed are whole numbers"),
        (["k", "p", "w"], "all columns"),
    ],
)
def test_columns_that_cannot_divide_are_refused(tmp_path: Path, format: str, by: list[str], words: str) -> None:
    schema = SCHEMA if by != ["k", "p", "w"] else pa.schema([(name, pa.string()) for name in by])
    with pytest.raises(SchemaError, match=words):
        open_lake(tmp_path, format).prepare(schema, by)
    assert not list(tmp_path.glob("t"))


@each_format
def test_a_lost_file_is_noticed_before_the_commit(tmp_path: Path, format: str) -> None:
    table = open_lake(tmp_path, format)
    table.prepare(SCHEMA)
    target = table.target(APP, 0)
    (file,) = write_files(target, [rows_of(0)])
    (Path(target.folder) / file.path).unlink()
    with pytest.raises(ConfigError.__base__, match=r"is gone|cannot be read"):
        table.commit(APP, 0, [file])
    assert not table.done(APP, 0)
    assert write_batch(table, APP, 0).rows == 24
    assert found_by(READERS_OF[format][0], tmp_path, format) == expected([0])


def test_words_that_open_no_table(tmp_path: Path) -> None:
    for path, format, options, words in [
        ("t", "orc", {}, "allowed are parquet, delta, iceberg"),
        ("t", "delta", {"file_bytes": 1}, "no option of this table; allowed are file_size"),
        ("t", "parquet", {"compact": "yes"}, "neither True nor False"),
        ("t", "parquet", {"file_size": "many"}, "file_size='many' is not a size"),
        ("s3://bucket/t", "parquet", {}, "mounted"),
        ("", "parquet", {}, "is empty"),
        ("ns.t", "iceberg", {}, "needs the option catalog"),
        ("t", "iceberg", {"catalog": "none"}, "write 'namespace.table'"),
        ("ns.t", "iceberg", {"catalog": "no-such-catalog"}, "cannot be opened"),
    ]:
        with pytest.raises(ConfigError, match=words):
            open_table(path, format, options)
