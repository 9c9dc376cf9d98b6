"""Contestants on Spark are told apart by name, and what they wrote is compared with the join itself."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from semistream.lab.contest.spark_entries import DELTA, PARQUET, Entry, read_back
from semistream.lab.workloads.checksum import expected_checksum, joined_rows
from semistream.lab.workloads.relation import SyntheticMaster, SyntheticStream

TUPLES = 2_000
MASTER, STREAM = SyntheticMaster(500, seed=1), SyntheticStream(500, seed=2)


def test_every_contestant_has_a_name_of_its_own() -> None:
    entries = [Entry("transport")]
    for how in ("inner", "left"):
        entries += [Entry("enrich", how), Entry("enrich", how, reads="direct"), Entry("enrich", how, PARQUET)]
        entries += [Entry("write", how, PARQUET), Entry("write", how, DELTA)]
        entries += [Entry("native", how, sink, cached=cached) for sink in ("noop", PARQUET) for cached in (False, True)]
    assert len({entry.name for entry in entries}) == len(entries)
    assert Entry("native", "inner", PARQUET, cached=True).name == "native inner cached, Spark's parquet"
    assert Entry("write", "left", DELTA).name == "write left, delta"


@pytest.mark.parametrize("sink", [PARQUET, DELTA])
def test_rows_on_disk_are_those_of_the_join(sink: str, tmp_path: Path) -> None:
    parts = [pa.Table.from_batches([joined_rows(MASTER, STREAM, at, at + 1_000)]) for at in (1_000, 0)]
    _write(parts, tmp_path, sink)
    found = read_back(tmp_path, sink)
    assert (found.rows, found.checksum) == (TUPLES, expected_checksum(MASTER, STREAM, TUPLES))
    assert found.n_bytes > 50_000


@pytest.mark.parametrize("sink", [PARQUET, DELTA])
def test_a_row_of_another_tuple_is_noticed(sink: str, tmp_path: Path) -> None:
    rows = pa.Table.from_batches([joined_rows(MASTER, STREAM, 0, TUPLES)])
    shifted = [*rows["m01"].to_pylist()[1:], rows["m01"][0].as_py()]
    _write([rows.set_column(rows.schema.get_field_index("m01"), "m01", pa.array(shifted))], tmp_path, sink)
    found = read_back(tmp_path, sink)
    assert found.rows == TUPLES
    assert found.checksum != expected_checksum(MASTER, STREAM, TUPLES)


def _write(parts: list[pa.Table], folder: Path, sink: str) -> None:
    for number, part in enumerate(parts):
        if sink == DELTA:
            write_deltalake(folder, part, mode="append")
        else:
            pq.write_table(part, folder / f"part-{number}.parquet")
    # What no reader is to see: a file that was never committed.
    pq.write_table(parts[0], folder / ".part-9.parquet")
