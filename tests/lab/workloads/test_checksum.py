"""The rows that a join must give are those of the reference join, and the checksum tells them from others."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from semistream.errors import ConfigError
from semistream.lab.workloads.checksum import checksum, expected_checksum, joined_rows
from semistream.lab.workloads.relation import KEY, SyntheticMaster, SyntheticStream
from semistream.testing import assert_same_rows, reference_join

MASTER, STREAM = SyntheticMaster(1_000, seed=3), SyntheticStream(1_000, 1.0, seed=5)


def test_rows_are_those_of_the_reference_join() -> None:
    batch = STREAM.rows(100, 700)
    found = pa.Table.from_batches([joined_rows(MASTER, STREAM, 100, 700)])
    expected = reference_join([batch], MASTER.table(), on=KEY, how="inner")
    assert_same_rows(found.cast(expected.schema), expected)


def test_neither_order_nor_pieces_change_the_checksum() -> None:
    rows = joined_rows(MASTER, STREAM, 0, 500)
    mixed = rows.take(pa.array(np.random.default_rng(1).permutation(500))).select(rows.schema.names[::-1])
    assert checksum(mixed) == checksum(rows)
    assert (checksum(rows.slice(0, 123)) + checksum(rows.slice(123))) % (1 << 64) == checksum(rows)
    assert expected_checksum(MASTER, STREAM, 500, piece=77) == checksum(rows)


def test_a_wrong_row_changes_the_checksum() -> None:
    rows = joined_rows(MASTER, STREAM, 0, 500)
    right = checksum(rows)
    place = rows.schema.get_field_index("m07")
    values = rows.column(place).to_numpy()
    # The values of two rows exchanged: every column still has the same sum.
    exchanged = values.copy()
    exchanged[[10, 20]] = values[[20, 10]]
    assert values[10] != values[20]
    assert checksum(rows.set_column(place, "m07", pa.array(exchanged))) != right
    assert checksum(rows.slice(1)) != right
    assert checksum(pa.Table.from_batches([rows, rows.slice(0, 1)]).combine_chunks().to_batches()[0]) != right


@pytest.mark.parametrize(
    ("master", "stream"),
    [
        (SyntheticMaster(100, repeat=True), SyntheticStream(100)),
        (SyntheticMaster(100, order="key"), SyntheticStream(100)),
        (SyntheticMaster(100), SyntheticStream(100, unmatched=0.5)),
        (SyntheticMaster(100), SyntheticStream(200)),
    ],
)
def test_relations_without_a_formula_are_refused(master: SyntheticMaster, stream: SyntheticStream) -> None:
    with pytest.raises(ConfigError, match="no formula"):
        joined_rows(master, stream, 0, 10)


@pytest.mark.parametrize("column", [pa.array([1, None]), pa.array(["a", "b"])])
def test_other_columns_are_refused(column: pa.Array) -> None:
    with pytest.raises(ConfigError, match="no checksum of 'x'"):
        checksum(pa.record_batch({"x": column}))
