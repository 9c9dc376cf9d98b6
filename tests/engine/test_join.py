"""A running join: turns of its main loop on request."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from semistream import open_join
from semistream.testing import assert_same_rows, reference_join

MASTER = pa.table({"k": np.arange(4_000), "v": np.arange(4_000) * 3})
STREAM = pa.record_batch({"k": np.arange(300) * 11 % 4_400})


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
