"""Generations: what several joins have learnt, in one file; soft state that never changes a result."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.operators.base import SemiStreamJoin
from semistream.operators.registry import OPERATORS
from semistream.operators.resident import fill, resident_keys
from semistream.parts.generation import Generations
from semistream.testing import assert_same_rows, reference_join, split

SHARING = sorted(name for name, operator in OPERATORS.items() if operator.shares_cache)
N_ROWS = 6000


@pytest.fixture(scope="module")
def relation() -> pa.Table:
    """m:n keys with strings of all lengths and nulls, so that rows have long values to copy."""
    keys = np.concatenate([np.arange(N_ROWS) * 3, np.arange(200) * 3, np.arange(50) * 3])
    texts = [None if i % 11 == 0 else "x" * (i % 60) + str(i) for i in range(len(keys))]
    return pa.table({"k": keys, "a": keys * 7 + np.arange(len(keys)), "s": texts})


@pytest.fixture(scope="module")
def store(relation: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "r"
    semistream.build_pages(relation, path, on="k", page_rows=64)
    return path


def _stream(rows: int, seed: int = 1) -> pa.Table:
    ranks = np.minimum(np.random.default_rng(seed).zipf(1.3, rows), 4 * N_ROWS)
    return pa.table({"k": ranks * 7919 % (3 * N_ROWS + 60), "seq": np.arange(rows)})


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Files of a join are given back at the end of its test."""
    yield
    while _JOINS:
        _JOINS.pop().close()


_JOINS: list[SemiStreamJoin] = []


def _open(store: Path, algorithm: str, how: str = "left") -> SemiStreamJoin:
    join = semistream.open_join(algorithm, master=store, on="k", how=how, memory="500KB")
    _JOINS.append(join)
    join.start(_stream(1).schema)
    return join


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
@pytest.mark.parametrize("algorithm", SHARING)
def test_joins_that_share_are_exact_and_learn(
    algorithm: str, how: str, relation: pa.Table, store: Path, tmp_path: Path
) -> None:
    stream = _stream(24_000)
    joins = [_open(store, algorithm, how) for _ in range(2)]
    sharing = [Generations(tmp_path, "v1", 250_000, join._master_layout) for join in joins]
    output = []
    hits = []
    for turn, batch in enumerate(split(stream, 2000)):
        join, shared = joins[turn % 2], sharing[turn % 2]
        if shared.refresh():
            join.front = shared.current
        before = join.stats.shared_hits
        output += [*join.push(batch), *join.drain()]
        hits.append(join.stats.shared_hits - before)
        shared.saw(batch.num_rows)
        if shared.is_due(join.cache):
            with shared.building() as mine:
                assert mine or shared.current is not None
                if mine:
                    shared.merge(join.cache)
    expected = reference_join(stream, relation, "k", how)
    assert_same_rows(pa.Table.from_batches(output, schema=expected.schema), expected)
    assert hits[-1] > 0.2 * 2000
    assert all(join.stats.finished == join.stats.tuples_in for join in joins)
    files = [path for path in tmp_path.iterdir() if path.name.startswith("generation-")]
    assert len(files) == 1, "older generations are removed"
    assert files[0].stat().st_size <= 250_000


def test_generation_is_bounded_and_keeps_the_best(store: Path, tmp_path: Path) -> None:
    """When not all keys fit, those with the most requests a byte stay."""
    join = _open(store, "sweepjoin", "inner")
    shared = Generations(tmp_path, "v1", 120_000, join._master_layout)
    hot = pa.table({"k": np.repeat(np.arange(100) * 3, 50), "seq": np.arange(5000)})
    cold = pa.table({"k": np.arange(100, 4000) * 3, "seq": np.arange(3900)})
    for table in (hot, cold):
        for batch in split(table, 1000):
            list(join.push(batch))
        shared.saw(table.num_rows)
    shared.merge(join.cache)
    assert shared.refresh()
    assert shared.current is not None
    assert shared.current.header.full
    assert shared.current.file_bytes <= 120_000
    join.front = shared.current
    before = join.stats.shared_hits
    list(join.push(hot.to_batches()[0]))
    assert join.stats.shared_hits - before == hot.num_rows


def test_all_of_r_fits(relation: pa.Table, store: Path, tmp_path: Path) -> None:
    """A complete generation answers for absent keys as well."""
    join = _open(store, "sweepjoin")
    shared = Generations(tmp_path, "v1", 4_000_000, join._master_layout)
    shared.load(resident_keys(join), lambda cache: fill(join, cache))
    shared.refresh()
    join.front = shared.current
    assert join.front is not None
    assert join.front.complete
    stream = _stream(5000)
    pages = join.stats.pages_read
    output = [rows for batch in split(stream, 700) for rows in join.push(batch)]
    assert_same_rows(pa.Table.from_batches(output), reference_join(stream, relation, "k", "left"))
    assert join.stats.pages_read == pages
    assert not shared.is_due(join.cache)


def test_rows_of_many_columns(tmp_path: Path) -> None:
    """However wide a row is, the cache is shared and the query goes on."""
    wide = pa.table({"k": np.arange(50), **{f"c{i}": pa.array([None, *range(49)]) for i in range(1200)}})
    stream = pa.table({"k": np.arange(60) % 55})
    with semistream.open_join("sweepjoin", master=wide, on="k", how="left", memory="3MB") as join:
        join.start(stream.schema)
        list(join.push(stream.to_batches()[0]))
        shared = Generations(tmp_path, "v1", 3_000_000, join._master_layout)
        shared.load(resident_keys(join), lambda cache: fill(join, cache))
        assert shared.refresh()
        join.front = shared.current
        output = list(join.push(stream.to_batches()[0]))
    assert_same_rows(pa.Table.from_batches(output), reference_join(stream, wide, "k", "left"))


def test_only_one_builds(store: Path, tmp_path: Path) -> None:
    join = _open(store, "sweepjoin")
    first, second = (Generations(tmp_path, "v1", 250_000, join._master_layout) for _ in range(2))
    with first.building() as mine:
        assert mine
        with second.building() as also_mine:
            assert not also_mine
    list(join.push(split(_stream(2000), 2000)[0]))
    first.saw(2000)
    with first.building():
        first.merge(join.cache)
    # The second has not seen the new generation: what it would build lacks the keys of that one.
    with second.building() as mine:
        assert not mine


def test_folder_that_was_removed_is_made_again(store: Path, tmp_path: Path) -> None:
    """A process that uses a newer version of R removes the older one's folder while another still works with it."""
    join = _open(store, "sweepjoin")
    list(join.push(split(_stream(2000), 2000)[0]))
    shared = Generations(tmp_path / "old", "v1", 250_000, join._master_layout)
    shared.saw(2000)
    (tmp_path / "old").rmdir()
    with shared.building() as mine:
        assert mine
        shared.merge(join.cache)
    assert shared.refresh()


def test_foreign_and_damaged_files_are_passed_over(store: Path, tmp_path: Path) -> None:
    join = _open(store, "sweepjoin")
    list(join.push(split(_stream(2000), 2000)[0]))
    theirs = Generations(tmp_path, "another version of R", 250_000, join._master_layout)
    theirs.saw(2000)
    theirs.merge(join.cache)
    ours = Generations(tmp_path, "v1", 250_000, join._master_layout)
    assert not ours.refresh()
    (tmp_path / "generation-000009").write_bytes(json.dumps({"number": 9}).encode().ljust(8192, b"\0"))
    assert not ours.refresh()
    (tmp_path / "generation-000010").write_bytes(b"short")
    assert not ours.refresh()
    assert ours.current is None


def test_another_process_finds_the_keys(store: Path, tmp_path: Path) -> None:
    join = _open(store, "sweepjoin")
    stream = _stream(4000)
    list(join.push(split(stream, 4000)[0]))
    shared = Generations(tmp_path, "v1", 250_000, join._master_layout)
    shared.saw(4000)
    shared.merge(join.cache)
    program = f"""
import pyarrow as pa, semistream
from semistream.parts.generation import Generations
join = semistream.open_join("sweepjoin", master={str(store)!r}, on="k", how="left", memory="500KB")
batch = pa.record_batch({{"k": pa.array({stream["k"].to_pylist()[:500]}), "seq": pa.array(range(500))}})
join.start(batch.schema)
shared = Generations(__import__("pathlib").Path({str(tmp_path)!r}), "v1", 250_000, join._master_layout)
assert shared.refresh()
join.front = shared.current
rows = sum(out.num_rows for out in join.push(batch))
print(join.stats.shared_hits)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 500
    shared.refresh()
    assert shared.current is not None
    assert shared.current.asked == 500
