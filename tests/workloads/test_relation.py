"""Widths, keys and partition independence of the generated relations."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from semistream.workloads.relation import (
    MASTER_ROW_BYTES,
    STREAM_ROW_BYTES,
    STREAM_SCHEMA,
    master_batches,
    master_keys,
    master_table,
    stream_batches,
)


def test_rows_have_the_papers_widths() -> None:
    assert master_table(500, 1).nbytes == 500 * MASTER_ROW_BYTES
    (batch,) = stream_batches(500, 1000, batch_rows=500)
    assert batch.nbytes == 500 * STREAM_ROW_BYTES


@pytest.mark.parametrize("shuffled", [True, False])
def test_unique_keys_are_each_there_once(shuffled: bool) -> None:
    keys = master_keys(5000, 3, 0, 5000, shuffled=shuffled)
    assert np.array_equal(np.sort(keys), np.arange(5000))
    assert bool((np.diff(keys) == 1).all()) is not shuffled


def test_repetition_leaves_a_third_of_the_domain_absent() -> None:
    n = 200_000
    counts = np.bincount(master_keys(n, 3, 0, n, repeat=True), minlength=n)
    # Poisson(1): e^-1 absent, e^-1 with one tuple, the rest with several.
    assert (counts == 0).mean() == pytest.approx(np.exp(-1), abs=0.005)
    assert (counts == 1).mean() == pytest.approx(np.exp(-1), abs=0.005)
    assert counts.max() >= 6


@pytest.mark.parametrize("repeat", [False, True])
def test_master_partitioning_does_not_matter(repeat: bool) -> None:
    whole = master_table(1000, 5, repeat=repeat)
    parts = [master_table(1000, 5, start, 250, repeat) for start in (0, 250, 500, 750)]
    assert pa.concat_tables(parts).combine_chunks().equals(whole.combine_chunks())
    batches = pa.Table.from_batches(master_batches(1000, 5, batch_rows=333, repeat=repeat))
    assert batches.combine_chunks().equals(whole.combine_chunks())


def test_stream_partitioning_does_not_matter() -> None:
    one = pa.Table.from_batches(stream_batches(1000, 77, 1.0, 4, batch_rows=1000))
    many = pa.Table.from_batches(stream_batches(1000, 77, 1.0, 4, batch_rows=7))
    tail = pa.Table.from_batches(stream_batches(400, 77, 1.0, 4, start=600, batch_rows=64))
    assert one.equals(many.combine_chunks())
    assert one.slice(600).combine_chunks().equals(tail.combine_chunks())


def test_seeds_differ() -> None:
    assert not master_table(100, 1).equals(master_table(100, 2))
    first, second = (next(stream_batches(100, 1000, seed=seed)) for seed in (1, 2))
    assert not first.equals(second)


def test_empty_relations_have_their_schema() -> None:
    assert master_table(0, 1).num_rows == 0
    assert pa.Table.from_batches(stream_batches(0, 10), schema=STREAM_SCHEMA).num_rows == 0


def test_rows_outside_the_relation_are_refused() -> None:
    with pytest.raises(ValueError, match="not in a relation of 10 rows"):
        master_table(10, 1, 5, 6)
