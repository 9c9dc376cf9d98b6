"""A running join: turns of its main loop on request, and batches that come in parts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from semistream import build_pages, open_join
from semistream.algorithms.registry import resolve
from semistream.engine.join import SemiStreamJoin
from semistream.errors import SchemaError, SemiStreamError
from semistream.master.base import Master
from semistream.master.open import open_master
from semistream.spec import JoinSpec
from semistream.testing import assert_same_rows, reference_join

MASTER = pa.table({"k": np.arange(4_000), "v": np.arange(4_000) * 3})
STREAM = pa.record_batch({"k": np.arange(300) * 11 % 4_400})
LARGE = pa.table({"k": np.arange(200_000), "v": np.arange(200_000) * 3})
WIDE = pa.record_batch({"k": np.arange(6_000) * 1_009 % 220_000})


def test_several_turns_are_as_many_single_ones() -> None:
    """They end when nobody waits any more, however many were asked for."""
    with (
        open_join("meshjoin", master=MASTER, on="k", how="left", memory="300KB") as one,
        open_join("meshjoin", master=MASTER, on="k", how="left", memory="300KB") as many,
    ):
        first, second = list(one.push(STREAM)), list(many.push(STREAM))
        assert one.waiting > 0
        for _ in range(3):
            first += one.advance()
        second += many.advance(3)
        assert one.stats.as_dict() == many.stats.as_dict()
        assert list(many.advance(0)) == []
        second += many.advance(1_000_000)
        assert many.waiting == 0
        assert many.stats.iterations == many.loop.k  # type: ignore[attr-defined]
        first += one.drain()
    expected = reference_join(STREAM, MASTER, "k", "left")
    assert_same_rows(pa.Table.from_batches(first), expected)
    assert_same_rows(pa.Table.from_batches(second), expected)


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Master]:
    build_pages(LARGE, tmp_path / "r", on="k", page_rows=64)
    with closing(open_master(tmp_path / "r", ("k",))) as master:
        yield master


def _started(algorithm: str, master: Master) -> SemiStreamJoin:
    join = SemiStreamJoin(resolve(algorithm), master, JoinSpec.make("k", "left"), 4_000_000, direct=True)
    join.start(WIDE.schema)
    return join


def _parts(rows: int) -> list[pa.RecordBatch]:
    return [WIDE.slice(at, rows) for at in range(0, WIDE.num_rows, rows)]


@pytest.mark.parametrize("algorithm", ["sweepjoin", "cachejoin", "pcachejoin", "meshjoin", "orderedjoin"])
def test_parts_of_a_batch(stored: Master, algorithm: str) -> None:
    with _started(algorithm, stored) as join:
        rows = [*join.push_parts(_parts(300)), *join.push_parts([]), *join.drain()]
        assert join.stats.tuples_in == WIDE.num_rows
    assert_same_rows(pa.Table.from_batches(rows), reference_join(WIDE, LARGE, "k", "left"))


def test_parts_share_what_is_read(stored: Master) -> None:
    """As one batch that was pushed whole, and unlike batches that were pushed one by one."""
    read = {}
    for way in ("whole", "parts", "batches"):
        with _started("sweepjoin", stored) as join:
            for batch in _parts(300) if way == "batches" else [WIDE]:
                for _ in join.push_parts(_parts(300)) if way == "parts" else join.push(batch):
                    pass
            read[way] = join.stats.bytes_read
    assert read["parts"] < 1.05 * read["whole"]
    assert read["parts"] < 0.7 * read["batches"]


def test_a_refused_part_ends_the_join(stored: Master) -> None:
    with _started("sweepjoin", stored) as join:
        parts = join.push_parts([WIDE, pa.record_batch({"key": [1]})])
        with pytest.raises(SchemaError, match="key"):
            list(parts)
        with pytest.raises(SemiStreamError, match="failed before"):
            join.push(WIDE)


def test_waiting_for_a_part_is_not_the_joins_time(stored: Master) -> None:
    def slow() -> Iterator[pa.RecordBatch]:
        for part in _parts(2_000):
            time.sleep(0.2)
            yield part

    with _started("sweepjoin", stored) as join:
        began = time.perf_counter()
        for _ in join.push_parts(slow()):
            pass
        assert 0 < join.seconds < time.perf_counter() - began - 0.5
