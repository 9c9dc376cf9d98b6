"""Files that tasks write: all types, divided rows, sizes, memory, and disks that are full."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from tests.arrow_types import ALL, REFUSED
from tests.lake.lakes import SCHEMA, VALUES, rows_of, write_files

from semistream.errors import SchemaError, StoreError
from semistream.lake.files import FileWriter, WrittenFile
from semistream.lake.partitions import folder_of
from semistream.lake.rows import stored_schema
from semistream.lake.target import Target

#: that Parquet has no form for, alone and in wrappers
NO_PARQUET = ("month_day_nano", "empty_binary")


def target_for(folder: Path, schema: pa.Schema, **options: object) -> Target:
    return Target(str(folder), stored_schema(schema).serialize().to_pybytes(), **options)  # type: ignore[arg-type]


def is_kept(name: str) -> bool:
    return not name.endswith(NO_PARQUET) and not name.removesuffix(">").endswith(NO_PARQUET)


@pytest.mark.parametrize("name", [name for name in ALL if is_kept(name)])
def test_every_type_comes_back(tmp_path: Path, name: str) -> None:
    values = ALL[name](60, True)
    batch = pa.record_batch({"c": values, "p": pa.array([i % 3 for i in range(60)])})
    for folder, by in (("plain", ()), ("divided", ("p",))):
        target = target_for(tmp_path / folder, batch.schema, partition_by=by, wants_stats=True, row_group_bytes=200)
        files = write_files(target, [batch.slice(0, 13), batch.slice(13, 0), batch.slice(13)], batch.schema)
        assert sum(file.rows for file in files) == 60
        found = {}
        for file in files:
            rows = pq.read_table(tmp_path / folder / file.path, partitioning=None).column("c").to_pylist()
            found[file.partition] = found.get(file.partition, []) + rows
        whole = values.to_pylist()
        if by:
            assert {key: repr(rows) for key, rows in found.items()} == {
                (("p", str(i)),): repr(whole[i::3]) for i in range(3)
            }
        else:
            assert repr(found[()]) == repr(whole)


@pytest.mark.parametrize("name", [*REFUSED, *(name for name in ALL if not is_kept(name))])
def test_types_without_a_form_are_refused(name: str) -> None:
    values = {**ALL, **REFUSED}[name](4, True)
    with pytest.raises(SchemaError, match=r"column 'c' of type .* cannot be kept in Parquet"):
        stored_schema(pa.schema([("c", values.type)]))


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 400), max_size=40), max_size=6),
    st.sampled_from([(), ("p",), ("q",), ("q", "p")]),
    st.booleans(),
    st.sampled_from([1, 300, 10_000]),
    st.sampled_from([1, 2, 64]),
)
def test_rows_are_divided_and_none_is_lost(
    tmp_path_factory: pytest.TempPathFactory,
    numbers: list[list[int]],
    by: tuple[str, ...],
    keeps: bool,
    size: int,
    files_open: int,
) -> None:
    folder = tmp_path_factory.mktemp("files")
    schema = pa.schema([("k", pa.int64()), ("p", pa.string()), ("q", pa.int16())])
    batches = [
        pa.record_batch(
            [ids, [VALUES[i % 6] for i in ids], [i % 3 or None for i in ids]],
            schema=schema,
        )
        for ids in numbers
    ]
    target = target_for(
        folder,
        schema,
        partition_by=by,
        keeps_partition_columns=keeps,
        row_group_bytes=size,
        file_bytes=size * 4,
        held_bytes=size * 2,
        open_files=files_open,
    )
    found = []
    for file in write_files(target, batches, schema):
        values = tuple(value for _, value in file.partition)
        assert file.path.rpartition("/")[0] == folder_of(by, values)
        assert (folder / file.path).stat().st_size == file.n_bytes
        table = pq.read_table(folder / file.path, partitioning=None)
        assert table.num_rows == file.rows
        assert table.schema.names == [name for name in schema.names if keeps or name not in by]
        texts = dict(zip(by, values, strict=True))
        for row in table.to_pylist():
            given_values = {name: row[name] if keeps or name not in by else texts[name] for name in schema.names}
            q = given_values["q"]
            found.append((row["k"], given_values["p"], None if q is None else int(q)))
            assert all((None if row[name] is None else str(row[name])) == texts[name] for name in by if keeps)
    want = [(i, VALUES[i % 6], i % 3 or None) for ids in numbers for i in ids]
    assert sorted(map(repr, found)) == sorted(map(repr, want))


def test_files_roll_and_row_groups_are_bounded(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    batch = pa.record_batch({"k": rng.integers(0, 2**62, 200_000), "v": rng.random(200_000)})
    target = target_for(tmp_path, batch.schema, row_group_bytes=100_000, file_bytes=500_000)
    files = write_files(target, [batch.slice(at, 700) for at in range(0, 200_000, 700)], batch.schema)
    assert len(files) == 7
    assert all(400_000 < file.n_bytes < 720_000 for file in files[:-1])
    for file in files:
        metadata = pq.read_metadata(tmp_path / file.path)
        sizes = [metadata.row_group(at).total_byte_size for at in range(metadata.num_row_groups)]
        assert all(90_000 < size < 120_000 for size in sizes[:-1])
    # One batch that is larger than a row group is cut.
    (file,) = write_files(target_for(tmp_path, batch.schema, row_group_bytes=100_000), [batch], batch.schema)
    assert pq.read_metadata(tmp_path / file.path).num_row_groups == 32


def test_memory_is_bounded_whatever_the_number_of_values(tmp_path: Path) -> None:
    schema = pa.schema([("p", pa.int64()), ("v", pa.int64())])
    target = target_for(
        tmp_path, schema, partition_by=("p",), row_group_bytes=20_000, held_bytes=40_000, open_files=8, file_bytes=10**6
    )
    before = pa.total_allocated_bytes()
    with FileWriter(target, schema) as writer:
        for turn in range(40):
            at = np.arange(1000) + turn * 1000
            writer.write(pa.record_batch([at % 500, at], schema=schema))
            held = sum(one.n_bytes for one in writer._held.values()) + writer._gathered.n_bytes
            assert held <= 40_000 + 20_000
            assert len(writer._open) <= 8
            # Row groups of one value that wait do not keep the rows of others.
            assert pa.total_allocated_bytes() - before < 400_000
        files = writer.finish()
    assert sum(file.rows for file in files) == 40_000
    assert len({file.partition for file in files}) == 500


def test_an_empty_file_where_it_is_wanted(tmp_path: Path) -> None:
    assert write_files(target_for(tmp_path, SCHEMA), []) == []
    (file,) = write_files(target_for(tmp_path, SCHEMA, writes_empty=True), [])
    assert file.rows == 0
    assert pq.read_table(tmp_path / file.path).schema.equals(SCHEMA)


def test_what_is_not_finished_is_removed(tmp_path: Path) -> None:
    target = target_for(tmp_path, SCHEMA, partition_by=("p",), row_group_bytes=1)
    with FileWriter(target, SCHEMA) as writer:
        writer.write(rows_of(0))
        assert list(tmp_path.rglob("*.parquet"))
    assert not list(tmp_path.rglob("*.parquet"))
    with pytest.raises(StoreError, match="finished or given up"):
        writer.write(rows_of(0))
    # Finished files stay, whatever comes after.
    with FileWriter(target, SCHEMA) as writer:
        writer.write(rows_of(0))
        files = writer.finish()
    writer.discard()
    assert len(list(tmp_path.rglob("*.parquet"))) == len(files) == 6


def test_rows_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="the rows have the columns k"):
        FileWriter(target_for(tmp_path, SCHEMA), pa.schema([("k", pa.int64())]))
    writer = FileWriter(target_for(tmp_path, SCHEMA), SCHEMA)
    with pytest.raises(SchemaError, match="a batch has the schema"):
        writer.write(pa.record_batch({"k": [1]}))
    narrow = pa.schema([("k", pa.int8()), *list(SCHEMA)[1:]])
    writer = FileWriter(target_for(tmp_path, narrow), SCHEMA)
    with pytest.raises(SchemaError, match="column 'k' of type int64 cannot be written as int8"):
        writer.write(rows_of(1))
    strict = pa.schema([SCHEMA.field("k"), SCHEMA.field("p").with_nullable(False), SCHEMA.field("v")])
    writer = FileWriter(target_for(tmp_path, strict), SCHEMA)
    with pytest.raises(SchemaError, match="column 'p' has a null"):
        writer.write(rows_of(1))
    assert not list(tmp_path.iterdir())


def test_names_of_folders_that_no_file_system_takes(tmp_path: Path) -> None:
    target = target_for(tmp_path, SCHEMA, partition_by=("p",))
    with pytest.raises(StoreError, match="File name too long"):
        write_files(target, [pa.record_batch([[1], ["x" * 300], [0.5]], schema=SCHEMA)])
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    """In a process of its own, that may not write files beyond a size."""
    program = f"""
import resource, signal, sys
import numpy as np, pyarrow as pa
from semistream.errors import StoreError
from semistream.lake.files import FileWriter
from semistream.lake.target import Target
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
batch = pa.record_batch({{"k": np.random.default_rng(0).integers(0, 2**62, 20_000)}})
target = Target({str(tmp_path)!r}, batch.schema.serialize().to_pybytes(), row_group_bytes=100_000)
writer = FileWriter(target, batch.schema)
try:
    for _ in range(10):
        writer.write(batch)
    writer.finish()
except StoreError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "cannot be written (File too large): see to the disk" in done.stdout, done
    assert not list(tmp_path.iterdir())


def test_statistics_bound_the_values(tmp_path: Path) -> None:
    import datetime as dt
    from decimal import Decimal

    long = "é" * 40
    columns = {
        "i": pa.array([3, None, -1], pa.int32()),
        "f": pa.array([1.5, -0.0, 2.5]),
        "nan": pa.array([1.0, float("nan"), 2.0]),
        "inf": pa.array([1.0, float("inf"), None]),
        "s": pa.array(["b", long, None]),
        "last": pa.array(["a", "z" * 32 + "\U0010ffff" + "b", None]),
        "d": pa.array([dt.date(2024, 1, 2), dt.date(1, 1, 1), None]),
        "far": pa.array([4_000_000, 0, None], pa.int32()).cast(pa.date32()),
        "ts": pa.array([dt.datetime(2024, 1, 1, 0, 0, 0, 7), None, None], pa.timestamp("us", "UTC")),
        "ntz": pa.array([dt.datetime(2024, 1, 1), None, None], pa.timestamp("us")),
        "dec": pa.array([Decimal("1.10"), Decimal("-2.25"), None], pa.decimal128(9, 2)),
        "wide": pa.array([Decimal("12345678901234567890.5"), None, None], pa.decimal128(30, 1)),
        "b": pa.array([True, None, False]),
        "x": pa.array([b"1", None, b"2"]),
        "none": pa.array([None, None, None], pa.int64()),
        "l": pa.array([[1], None, []]),
        "a.b c": pa.array([1, 2, None]),
    }
    batch = pa.record_batch(columns)
    target = target_for(tmp_path, batch.schema, wants_stats=True, row_group_bytes=60)
    (file,) = write_files(target, [batch.slice(0, 2), batch.slice(2)], batch.schema)
    stats = json.loads(file.stats)
    assert stats["numRecords"] == 3
    assert stats["minValues"] == {
        "i": -1, "f": -0.0, "inf": 1.0, "s": "b", "last": "a", "d": "0001-01-01", "ts": "2024-01-01T00:00:00.000007Z",
        "ntz": "2024-01-01T00:00:00.000000", "dec": -2.25, "a.b c": 1,
    }  # fmt: skip
    assert stats["maxValues"] == {
        "i": 3, "f": 2.5, "s": "é" * 32 + "\U0010ffff", "d": "2024-01-02", "ts": "2024-01-01T00:00:00.000007Z",
        "ntz": "2024-01-01T00:00:00.000000", "dec": 1.1, "a.b c": 2,
    }  # fmt: skip
    assert stats["nullCount"] == {name: values.null_count for name, values in columns.items() if name != "l"}
    assert WrittenFile.from_json(file.to_json()) == file


def test_bytes_are_on_their_way_to_the_disk_before_the_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advise, asked = os.posix_fadvise, []

    def noted(handle: int, start: int, length: int, advice: int) -> None:
        asked.append((start, length))
        advise(handle, start, length, advice)

    monkeypatch.setattr(os, "posix_fadvise", noted)
    rows = pa.record_batch({"v": np.random.default_rng(1).integers(0, 1 << 62, 2_000_000)})
    batches = [rows.slice(at, 100_000) for at in range(0, rows.num_rows, 100_000)]
    (file,) = write_files(target_for(tmp_path, rows.schema, row_group_bytes=6 << 20), batches, rows.schema)
    ends = [start + length for start, length in asked]
    # Every byte is named once: a page that is on disk already would be dropped from memory.
    assert [start for start, _ in asked] == [0, *ends[:-1]]
    assert file.n_bytes / 2 < ends[-1] <= file.n_bytes
    assert pq.read_table(tmp_path / file.path).equals(pa.Table.from_batches([rows]))
    asked.clear()
    write_files(target_for(tmp_path, rows.schema, row_group_bytes=6 << 20, durable=False), batches, rows.schema)
    assert asked == []
