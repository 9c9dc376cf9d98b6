"""A slow stream: what waits goes on when nothing comes, and memory follows what arrives."""

from __future__ import annotations

import pyarrow as pa
import pytest

from semistream import open_join
from semistream.algorithms.registry import ALGORITHMS
from semistream.engine.options import WaitingOptions
from semistream.lab.workloads.relation import KEY, STREAM_SCHEMA, master_table, stream_batches
from semistream.testing import assert_same_rows, reference_join

ROWS = 20_000
EAGER = sorted(name for name, kind in ALGORITHMS.items() if issubclass(kind.options, WaitingOptions))
NOTHING = pa.RecordBatch.from_pylist([], schema=STREAM_SCHEMA)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_pushes_of_nothing_finish_those_who_wait(algorithm: str) -> None:
    table = master_table(ROWS, 1).slice(0, ROWS // 2)
    batches = list(stream_batches(2_000, ROWS, 0.5, seed=2, batch_rows=1_000))
    with open_join(algorithm, master=table, on=KEY, how="left", memory="1MB", stream_schema=STREAM_SCHEMA) as join:
        rows = [row for batch in batches for row in join.push(batch)]
        turns = 0
        while join.waiting:
            rows += list(join.push(NOTHING))
            turns += 1
            assert turns < 5_000
        assert not list(join.push(NOTHING))
        assert join.stats.tuples_in == 2_000
    expected = reference_join(pa.Table.from_batches(batches), table, KEY, "left")
    assert_same_rows(pa.Table.from_batches(rows, expected.schema), expected)


@pytest.mark.parametrize("algorithm", EAGER)
def test_an_eager_join_makes_a_turn_with_every_push(algorithm: str) -> None:
    """H_S holds what arrives while R goes round, or less; else tuples wait until it is full."""
    table = master_table(ROWS, 1)
    waiting = {}
    for eager in (False, True):
        with open_join(algorithm, master=table, on=KEY, memory="1MB", stream_schema=STREAM_SCHEMA, eager=eager) as join:
            rows = 0
            for batch in stream_batches(15_000, ROWS, 0.3, seed=2, batch_rows=50):
                rows += sum(out.num_rows for out in join.push(batch))
            waiting[eager] = join.waiting
            rows += sum(out.num_rows for out in join.drain())
            assert rows == 15_000
    assert waiting[True] < 0.7 * waiting[False]


def test_memory_of_an_eager_scan_follows_the_arrival_rate() -> None:
    """ssbj2019, section 3: an R-cycle's worth of arrivals waits, however much memory there is."""
    held = []
    for rate in (20, 40, 80):
        with open_join(
            "meshjoin",
            master=master_table(ROWS, 1),
            on=KEY,
            memory="2MB",
            stream_schema=STREAM_SCHEMA,
            eager=True,
            k=50,
        ) as join:
            for batch in stream_batches(200 * rate, ROWS, 0.3, seed=2, batch_rows=rate):
                for _ in join.push(batch):
                    pass
            held.append(join.waiting)
    k = held[0] // 20
    assert held == [20 * k, 40 * k, 80 * k]
    assert 30 <= k <= 50
