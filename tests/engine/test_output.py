"""Rows for files: those of one master row stand together, and are the same rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from semistream import build_pages, open_join
from semistream.engine.output import for_files
from semistream.parts.matches import side_by_side
from semistream.testing import assert_same_rows, reference_join

_RNG = np.random.default_rng(5)
KEYS = 2000
MASTER = pa.table({"k": pa.array(range(KEYS), pa.int64()), "v": pa.array(_RNG.integers(0, 1 << 60, KEYS))})
STREAM = pa.table(
    {
        # few keys are frequent, and some are unknown to R
        "k": pa.array(np.exp(_RNG.random(20_000) * np.log(1.1 * KEYS)).astype(np.int64)),
        "n": pa.array(range(20_000), pa.int64()),
    }
)


def _runs(batches: list[pa.RecordBatch]) -> int:
    """How often a row has another master row than the one before it."""
    keys = [batch.column("k").to_numpy() for batch in batches]
    return sum(int((np.diff(each) != 0).sum()) + 1 for each in keys)


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_rows_are_the_same_and_stand_together(how: str) -> None:
    def joined() -> list[pa.RecordBatch]:
        with open_join("sweepjoin", master=MASTER, on="k", how=how, memory="4MB") as join:
            return [batch for piece in STREAM.to_batches(5000) for batch in join.push(piece)] + list(join.drain())

    plain = joined()
    with for_files():
        together = joined()
    wanted = reference_join(STREAM, MASTER, "k", how)
    assert_same_rows(pa.Table.from_batches(plain), wanted)
    assert_same_rows(pa.Table.from_batches(together), wanted)
    if how in ("inner", "left"):
        assert _runs(together) < 0.6 * _runs(plain)


def test_the_order_of_a_stream_is_kept_by_whom_it_is_promised(tmp_path: Path) -> None:
    build_pages(MASTER, tmp_path / "store", on="k")
    with open_join("orderedjoin", master=tmp_path / "store", on="k", memory="4MB") as join, for_files():
        rows = [batch for piece in STREAM.to_batches(5000) for batch in join.push(piece)] + list(join.drain())
    assert pa.Table.from_batches(rows).column("n").to_pylist() == list(range(STREAM.num_rows))


@pytest.mark.parametrize("spread", [1, 136, 1 << 40])
@pytest.mark.parametrize("count", [0, 1, 2, 3000])
def test_pairs_are_the_same_pairs(spread: int, count: int) -> None:
    left = np.arange(count)
    right = _RNG.integers(0, 50, count) * spread + (1 << 40)
    lefts, rights = side_by_side(left, right, count)
    assert sorted(zip(lefts.tolist(), rights.tolist(), strict=True)) == sorted(
        zip(left.tolist(), right.tolist(), strict=True)
    )
    assert (np.diff(rights) != 0).sum() + 1 == max(len(np.unique(right)), 1)
    # Those of one row come as they came.
    assert (np.diff(lefts)[np.diff(rights) == 0] > 0).all()


def test_pairs_in_order_are_left_alone() -> None:
    left, right = np.array([3, 1, 2, 0]), np.array([1, 1, 5, 7])
    lefts, rights = side_by_side(left, right, 3)
    assert lefts is left
    assert rights is right
