"""Timed turns count what goes in and comes out, end with whole batches, and take turns fairly."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from semistream.lab.measure.turns import Performance, ratios, take_turns

BATCH = pa.record_batch({"k": [1, 2, 3]})


def _twice(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield batch
    yield batch


def _endless() -> Iterator[pa.RecordBatch]:
    while True:
        yield BATCH


def test_a_turn_has_at_least_one_batch_and_counts_its_rows() -> None:
    performance = Performance(_twice, _endless())
    tuples, seconds = performance.turn(0.0)
    assert (tuples, performance.tuples_in, performance.rows_out) == (3, 3, 6)
    assert seconds > 0
    tuples, seconds = performance.turn(0.002)
    assert tuples % 3 == 0
    assert seconds >= 0.002


def test_turns_are_taken_in_an_order_that_is_reversed_every_time() -> None:
    order: list[str] = []

    def joins(name: str) -> Performance:
        def join(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
            order.append(name)
            yield batch

        return Performance(join, _endless())

    one, other = joins("one"), joins("other")
    take_turns([one, other], 3, 0.0)
    assert order == ["one", "other", "other", "one", "one", "other"]
    assert len(one.rates) == len(other.rates) == len(ratios(one.rates, other.rates)) == 3
    assert one.median == sorted(one.rates)[1]
