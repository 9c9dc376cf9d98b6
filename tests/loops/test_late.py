"""Rows of hits that are made while R is read: nothing is lost or made twice, whatever leaves the cache meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from semistream import build_pages, open_join
from semistream.engine.join import SemiStreamJoin
from semistream.errors import ChecksumError, SemiStreamError
from semistream.loops.gathered import GatheringLoop
from semistream.master.read_ahead import ReadAhead
from semistream.testing import assert_same_rows, reference_join

KEYS, MEMORY = 30_000, 3_000_000


def master(text_keys: bool) -> pa.Table:
    """Keys with one, two or three rows, and keys that the stream asks for but R lacks."""
    keys = np.repeat(np.arange(KEYS), np.arange(KEYS) % 3 + 1)
    names = pa.array([f"key {key}" for key in keys]) if text_keys else pa.array(keys)
    return pa.table({"k": names, "v": np.arange(len(keys)), "pad": ["x" * 40] * len(keys)})


def stream(count: int, text_keys: bool, seed: int = 1, shift: int = 0) -> pa.RecordBatch:
    """Some keys again and again, others once; `shift` names other favourites."""
    rng = np.random.default_rng(seed)
    favourites = (rng.zipf(1.3, count) * 7919 + shift) % (KEYS + KEYS // 10)
    keys = np.where(rng.random(count) < 0.4, rng.integers(0, KEYS + KEYS // 10, count), favourites)
    names = pa.array([f"key {key}" for key in keys]) if text_keys else pa.array(keys)
    return pa.record_batch({"k": names, "n": np.arange(count), "text": [f"{n:x}" for n in range(count)]})


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    found = {}
    for text_keys in (False, True):
        found[text_keys] = tmp_path_factory.mktemp("late") / "r"
        build_pages(master(text_keys), found[text_keys], on="k", page_rows=32)
    return found


def opened(store: Path, memory: int = MEMORY, **arguments: Any) -> SemiStreamJoin:
    join = open_join("sweepjoin", **{"master": store, "on": "k", "reads": "direct", "memory": memory, **arguments})
    assert isinstance(join, SemiStreamJoin)
    return join


def parts_of(join: SemiStreamJoin) -> tuple[Any, Any]:
    loop = join.loop
    assert isinstance(loop, GatheringLoop)
    return loop._gathered, loop._late


@pytest.mark.parametrize(
    ("how", "text_keys"),
    # Semi and anti joins of numbers need no column of R, and so hold all of its keys.
    [("inner", False), ("left", False), ("inner", True), ("left", True), ("semi", True), ("anti", True)],
)
@pytest.mark.parametrize("disk_is_fast", [False, True])
def test_keys_leave_the_cache_while_rows_are_late(
    stores: dict[bool, Path], how: str, text_keys: bool, disk_is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The favourites change with every second batch, so sweeps evict in the middle; codes of texts are confirmed.

    If the disk never lets anybody wait, all hits are late when the first key leaves.
    """
    monkeypatch.setattr(ReadAhead, "is_done", lambda *_: disk_is_fast)
    batches = [stream(12_000, text_keys, seed, shift=seed // 2 * 1009) for seed in range(8)]
    rows, evicted, waited = [], 0, 0
    with opened(stores[text_keys], how=how) as join:
        for batch in batches:
            for output in join.push(batch):
                waited += bool(parts_of(join)[1])
                rows.append(output)
            assert not parts_of(join)[1]
            assert join.waiting == 0
            assert join.stats.finished == join.stats.tuples_in
        evicted = join.stats.evicted
        assert join.stats.cache_hits > 5_000
        schema = join.output_schema
    assert evicted > 1_000
    assert waited > 0
    expected = reference_join(pa.Table.from_batches(batches), master(text_keys), "k", how)
    assert_same_rows(pa.Table.from_batches(rows, schema), expected)


def test_late_rows_keep_to_the_bytes_for_misses(stores: dict[bool, Path]) -> None:
    """Where misses need the room, rows of hits are made sooner; R is read no more often for it."""
    batch = stream(60_000, False)
    with opened(stores[False], how="left") as join:
        list(join.push(batch))
        gathered, late = parts_of(join)
        most, before = 0, join.stats.pages_read
        added = gathered.add

        def add(chunk: Any, ids: Any, beside: int = 0) -> bool:
            nonlocal most
            fits: bool = added(chunk, ids, beside)
            most = max(most, gathered._used + late.bytes_held if fits else 0)
            return fits

        gathered.add = add
        list(join.push(batch))
        assert 0 < most <= join.plan.gathering.room
        sweeps = join.plan.gathering.sweeps(join.plan.s, 1, join.stats.cache_misses / 2)
        assert join.stats.pages_read - before <= (sweeps + 1) * join.master.n_pages


def test_hits_alone_keep_to_these_bytes_too(stores: dict[bool, Path]) -> None:
    """A batch of nothing but hits, whose references would take four times the room that there is."""
    with opened(stores[False], how="inner") as join:
        few = pa.record_batch({"k": np.arange(100), "n": np.arange(100), "text": ["t"] * 100})
        list(join.push(few))
        room = join.plan.gathering.room
        many = few.take(pa.array(np.arange(room) % 100))
        most, rows, late = 0, 0, parts_of(join)[1]
        expected = int(np.sum(np.arange(room) % 100 % 3 + 1))
        for output in join.push(many):
            most, rows = max(most, late.bytes_held), rows + output.num_rows
        assert rows == expected
        assert join.stats.cache_misses == 100
        assert room / 2 < most <= room


def test_a_push_that_is_left_alone_goes_on(stores: dict[bool, Path]) -> None:
    batch = stream(12_000, False)
    with opened(stores[False], how="inner") as join:
        expected = sum(rows.num_rows for rows in join.push(batch))
        outputs = join.push(batch)
        first = next(outputs).num_rows
        del outputs
        assert first + sum(rows.num_rows for rows in join.resume()) == expected
        outputs = join.push(batch)
        next(outputs)
        with pytest.raises(SemiStreamError, match="not consumed"):
            join.push(batch)


def test_columns_that_are_made_anew_are_not_kept(stores: dict[bool, Path]) -> None:
    """Dictionaries are undone chunk by chunk: to keep these would take bytes that nobody counts."""
    plain = stream(12_000, False)
    kinds = pa.array(["a", "b", "c"] * 4_000).dictionary_encode()
    dressed = plain.append_column("kind", kinds)
    with opened(stores[False]) as join:
        for _ in range(2):
            for _ in join.push(dressed):
                assert not parts_of(join)[1]
        assert join.stats.cache_hits > 0


def test_parts_that_are_read_one_by_one_are_not_kept(stores: dict[bool, Path]) -> None:
    batches = [stream(4_000, False, seed) for seed in range(3)]

    def parts() -> Iterator[pa.RecordBatch]:
        yield from batches

    with opened(stores[False], how="left") as join:
        list(join.push(batches[0]))
        rows = []
        for output in join.push_parts(parts()):
            assert not parts_of(join)[1]
            rows.append(output)
        expected = reference_join(pa.Table.from_batches(batches), master(False), "k", "left")
        assert_same_rows(pa.Table.from_batches(rows, join.output_schema), expected)


def test_an_error_leaves_nothing_late(tmp_path: Path) -> None:
    build_pages(master(False), tmp_path / "r", on="k", page_rows=32)
    path = max((each for each in (tmp_path / "r").rglob("*") if each.is_file()), key=lambda each: each.stat().st_size)
    with opened(tmp_path / "r") as join:
        list(join.push(pa.record_batch({"k": np.arange(500), "n": np.arange(500), "text": ["t"] * 500})))
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 1]))
        with pytest.raises(ChecksumError):
            list(join.push(stream(20_000, False)))
        gathered, late = parts_of(join)
        assert not late
        assert not len(gathered)
        assert late.bytes_held == 0
