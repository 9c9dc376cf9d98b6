"""The cache inequality over HYBRIDJOIN: exact, within its budget, and only what is worth it in the cache."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from semistream import open_join
from semistream.algorithms.registry import ALGORITHMS
from semistream.errors import UnknownAlgorithmError
from semistream.lab.balanced_hybrid import NAME, known
from semistream.lab.workloads.relation import KEY, SyntheticMaster, SyntheticStream
from semistream.testing import assert_same_rows, reference_join, run_join, split

ROWS = 20_000


@pytest.fixture
def registered() -> Iterator[None]:
    with known():
        yield


def _stream(skew: float, tuples: int, unmatched: float = 0.0) -> pa.Table:
    return SyntheticStream(ROWS, skew, 1, unmatched=unmatched).table(0, tuples)


@pytest.fixture(scope="module")
def master() -> pa.Table:
    return SyntheticMaster(ROWS, 1, repeat=True).table()


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_rows_are_those_of_a_plain_join(how: str, master: pa.Table) -> None:
    stream = _stream(1.2, 60_000, unmatched=0.2)
    with open_join(NAME, master=master, on=KEY, how=how, memory=700_000) as join:
        rows = run_join(join, split(stream, 3_000))
        assert join.stats.cache_hits > 0
        assert join.memory.peak_bytes <= 700_000
    assert_same_rows(rows, reference_join(stream, master, on=KEY, how=how))


@pytest.mark.usefixtures("registered")
def test_text_is_cached_too(master: pa.Table) -> None:
    names = pa.array([f"name of {number} {'x' * (number % 50)}" for number in range(master.num_rows)])
    named = master.select([KEY]).append_column("name", names)
    stream = _stream(1.2, 40_000).append_column("text", pa.array([f"t{number}" for number in range(40_000)]))
    with open_join(NAME, master=named, on=KEY, how="left", memory=800_000) as join:
        rows = run_join(join, split(stream, 2_000))
        assert join.stats.cache_hits > 0
    assert_same_rows(rows, reference_join(stream, named, on=KEY, how="left"))


def _cached(skew: float, name: str = NAME) -> tuple[float, int, int]:
    """Hits at the end, keys in the cache, tuples that wait."""
    stream = SyntheticStream(ROWS, skew, 1)
    with open_join(name, master=SyntheticMaster(ROWS, 1, order="key").table(), on=KEY, memory=700_000) as join:
        for batch in stream.batches(0, 400_000, 2_000):
            for _ in join.push(batch):
                pass
        before, asked = join.stats.cache_hits, 100_000
        for batch in stream.batches(400_000, 400_000 + asked, 2_000):
            for _ in join.push(batch):
                pass
        cache = join.loop.cache
        return (join.stats.cache_hits - before) / asked, 0 if cache is None else cache.keys, join.waiting


@pytest.mark.usefixtures("registered")
def test_hot_keys_are_cached_and_others_are_not() -> None:
    hits, keys, waiting = _cached(1.0)
    assert hits > 0.3
    # By the inequality each of them has several tuples that would wait: far fewer keys than tuples.
    assert 0 < keys < waiting
    evenly, few, all_wait = _cached(0.0)
    assert evenly < 0.05
    assert few < 0.05 * all_wait
    # What a cache has no use for is H_S's.
    assert all_wait > 0.95 * _cached(0.0, "hybridjoin")[2]


def test_it_is_known_for_a_while_only() -> None:
    before = list(ALGORITHMS)
    with known():
        assert NAME in ALGORITHMS
        with known():
            pass
        assert NAME in ALGORITHMS
    assert list(ALGORITHMS) == before
    with pytest.raises(UnknownAlgorithmError):
        open_join(NAME, master=pa.table({KEY: [1]}), on=KEY, memory="1MB")


@pytest.mark.usefixtures("registered")
def test_hits_of_a_late_key_are_told_from_its_tuples() -> None:
    """Keys that come in between two judgements must not leave for want of time."""
    stream = SyntheticStream(ROWS, 1.0, 1)
    kept = []
    with open_join(NAME, master=SyntheticMaster(ROWS, 1, order="key").table(), on=KEY, memory=700_000) as join:
        for number, batch in enumerate(stream.batches(0, 600_000, 2_000)):
            for _ in join.push(batch):
                pass
            if number % 30 == 29:
                kept.append(join.loop.cache.keys)
    assert np.min(kept[len(kept) // 2 :]) > 0.5 * np.max(kept)
