"""Which columns get a dictionary, and which are compressed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.lake.lakes import write_files

from semistream.lake.encoding import SAMPLE_ROWS, choose_encoding, distinct_in, expected_distinct, total_distinct
from semistream.lake.target import Target

ROWS = 20_000
_RNG = np.random.default_rng(5)
COLUMNS = {
    "random": pa.array(_RNG.integers(-(2**63), 2**63 - 1, ROWS)),
    "noise": pa.array(_RNG.random(ROWS)),
    "small": pa.array(_RNG.integers(0, 1000, ROWS)),
    "key": pa.array(_RNG.integers(0, 10_000_000, ROWS)),
    "word": pa.array([("gold", "silver", "bronze")[i] for i in _RNG.integers(0, 3, ROWS)]),
    "id": pa.array([f"customer number {i:09d}" for i in range(ROWS)]),
    "yes": pa.array(_RNG.integers(0, 2, ROWS) == 1),
    "list": pa.array([[1, 2]] * ROWS),
    "a.b, c": pa.array(["same text"] * ROWS),
    "none": pa.nulls(ROWS, pa.int64()),
}


def test_what_repeats_gets_a_dictionary_and_what_shrinks_is_compressed() -> None:
    chosen = choose_encoding(pa.table(COLUMNS), 100_000)
    assert chosen.dictionary == ("small", "word", "list", "a.b, c", "none")
    assert set(chosen.compressed) == {*chosen.dictionary, "key", "id"}


def test_files_are_written_as_chosen(tmp_path: Path) -> None:
    batch = pa.record_batch(COLUMNS)
    (file,) = write_files(Target(str(tmp_path), batch.schema.serialize().to_pybytes()), [batch], batch.schema)
    metadata = pq.read_metadata(tmp_path / file.path)
    columns = {
        metadata.row_group(0).column(at).path_in_schema: metadata.row_group(0).column(at)
        for at in range(metadata.num_columns)
    }
    with_dictionary = {name for name, column in columns.items() if column.has_dictionary_page}
    assert with_dictionary == {"small", "word", "list.list.element", "a.b, c", "none"}
    compressed = {name for name, column in columns.items() if column.compression != "UNCOMPRESSED"}
    assert compressed == {*with_dictionary, "key", "id"}
    assert pq.read_table(tmp_path / file.path).equals(pa.Table.from_batches([batch]))


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_few_rows_are_enough(rows: int) -> None:
    choose_encoding(pa.table(COLUMNS).slice(0, rows), 1000)


@pytest.mark.parametrize("distinct", [10, 1000, 5000, 20_000])
def test_distinct_values_are_estimated_from_a_sample(distinct: int) -> None:
    sample = np.random.default_rng(distinct).integers(0, distinct, SAMPLE_ROWS)
    estimate = total_distinct(len(np.unique(sample)), SAMPLE_ROWS)
    assert estimate == pytest.approx(distinct, rel=0.15)
    assert expected_distinct(estimate, 10**9) == pytest.approx(distinct, rel=0.15)


def test_hot_values_in_front_do_not_hide_the_rare_ones() -> None:
    """Joined rows begin with what the cache had: a dictionary would be given up half-way, having cost its time."""
    hot, all_of_them = _RNG.integers(0, 50, 4 * SAMPLE_ROWS), _RNG.zipf(1.2, 120_000) * 2_654_435_761
    rows = pa.table({"hot first": np.concatenate([hot, all_of_them]), "few": np.resize(hot, len(hot) + 120_000)})
    assert choose_encoding(rows, rows.num_rows).dictionary == ("few",)


@pytest.mark.parametrize("exponent", [1.1, 1.3, 1.6])
def test_new_values_keep_coming_where_few_are_frequent(exponent: float) -> None:
    """Within a factor of two of what a row group really has, where equal frequencies would guess far too few."""
    rows = _RNG.zipf(exponent, 120_000)
    sample = rows[:SAMPLE_ROWS]
    found, fewer = len(np.unique(sample)), len(np.unique(sample[: SAMPLE_ROWS // 4]))
    truth = len(np.unique(rows))
    assert truth / 2 < distinct_in(len(rows), found, SAMPLE_ROWS, fewer) < 2 * truth


def test_values_that_have_run_out_are_counted_as_they_are() -> None:
    assert distinct_in(120_000, 100, 4096, 100) == pytest.approx(100)


def test_the_codec_of_a_target_is_used_where_it_saves(tmp_path: Path) -> None:
    batch = pa.record_batch({name: COLUMNS[name] for name in ("random", "id")})
    target = Target(str(tmp_path), batch.schema.serialize().to_pybytes(), codec="snappy")
    (file,) = write_files(target, [batch], batch.schema)
    group = pq.read_metadata(tmp_path / file.path).row_group(0)
    assert [group.column(i).compression for i in range(2)] == ["UNCOMPRESSED", "SNAPPY"]
