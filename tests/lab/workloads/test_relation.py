"""Widths, keys and partition independence of the generated relations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from semistream.errors import ConfigError
from semistream.lab.workloads.counter import gather
from semistream.lab.workloads.relation import (
    FREQUENCY,
    KEY,
    MASTER_ROW_BYTES,
    STREAM_ROW_BYTES,
    STREAM_SCHEMA,
    SyntheticMaster,
    SyntheticStream,
    master_batches,
    master_keys,
    master_table,
    stream_batches,
)
from semistream.master.build import build_pages


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
    with pytest.raises(ConfigError, match="not in a relation of 10 rows"):
        master_table(10, 1, 5, 6)


def test_order_by_access_frequency_is_the_order_of_the_stream() -> None:
    n = 2_000
    master = SyntheticMaster(n, seed=1, order="frequency", hot_seed=5)
    assert np.array_equal(gather(master.keys(0, n), n, 5), np.arange(n))
    seen = np.bincount(SyntheticStream(n, 1.0, seed=5).keys(0, 200_000), minlength=n)
    in_order = seen[master.keys(0, n)]
    assert in_order[:10].min() > in_order[100:].max()
    assert in_order.sum() == 200_000


@pytest.mark.parametrize("repeat", [False, True])
def test_frequency_column_lays_the_store_out(repeat: bool, tmp_path: Path) -> None:
    n = 3_000
    master = SyntheticMaster(n, seed=1, repeat=repeat, hot_seed=5, frequency=1.0)
    table = master.table()
    ranks = gather(table.column(KEY).to_numpy(), n, 5)
    assert np.allclose(table.column(FREQUENCY).to_numpy(), 1 / (ranks + 1))
    store = build_pages(master.reader(), tmp_path / "store", on=KEY, order="frequency", frequency=FREQUENCY)
    assert (store.n_rows, store.order) == (n, "frequency")


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_unmatched_share(share: float) -> None:
    keys = SyntheticStream(1_000, 1.0, 3, unmatched=share).keys(0, 40_000)
    outside = keys >= 1_000
    assert outside.mean() == pytest.approx(share, abs=0.01)
    assert keys.max() < 2_000
    assert np.array_equal(keys % 1_000, SyntheticStream(1_000, 1.0, 3).keys(0, 40_000))


def test_impossible_relations_are_refused() -> None:
    with pytest.raises(ConfigError, match="order='random'"):
        SyntheticMaster(10, order="random")
    with pytest.raises(ConfigError, match="needs unique keys"):
        SyntheticMaster(10, repeat=True, order="frequency")
    with pytest.raises(ConfigError, match="no stream of 0 keys"):
        SyntheticStream(0)
    with pytest.raises(ConfigError, match=r"1\.5 unmatched"):
        SyntheticStream(10, unmatched=1.5)
