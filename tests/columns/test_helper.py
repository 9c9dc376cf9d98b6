"""Two threads gather what one would: the same arrays, whatever the columns, and nothing is left running."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
import pytest

from semistream import open_join
from semistream.columns import helper
from semistream.columns.helper import helped, in_halves
from semistream.testing import assert_same_rows, reference_join

ROWS = 30_000
_RNG = np.random.default_rng(3)
MASTER = pa.table(
    {
        "k": pa.array(range(5000), pa.int64()),
        "long": pa.array(_RNG.integers(0, 1 << 60, 5000)),
        "int": pa.array(_RNG.integers(0, 1 << 30, 5000), pa.int32()),
        "short": pa.array(_RNG.integers(0, 1 << 14, 5000), pa.int16()),
        "byte": pa.array(_RNG.integers(0, 100, 5000), pa.int8()),
        "flag": pa.array([None if i % 7 == 0 else i % 2 == 0 for i in range(5000)]),
        "money": pa.array(range(5000), pa.decimal128(20, 2)),
        "text": pa.array([None if i % 11 == 0 else "x" * (i % 13) for i in range(5000)]),
        "maybe": pa.array([None if i % 3 == 0 else i for i in range(5000)], pa.int64()),
    }
)
STREAM = pa.table(
    {
        "k": pa.array(_RNG.integers(0, 6000, ROWS)),
        "n": pa.array([None if i % 5 == 0 else i for i in range(ROWS)], pa.int32()),
        "word": pa.array([f"w{i % 97}" for i in range(ROWS)]),
        "odd": pa.array([i % 3 == 0 for i in range(ROWS)]),
    }
)


@pytest.mark.parametrize("algorithm", ["sweepjoin", "ssbj", "hybridjoin", "pcachejoin"])
@pytest.mark.parametrize("how", ["inner", "left"])
def test_rows_are_those_of_the_join(monkeypatch: pytest.MonkeyPatch, algorithm: str, how: str) -> None:
    monkeypatch.setattr(helper, "LEAST_ROWS", 17)
    given = {"master": MASTER, "on": "k", "how": how, "memory": "4MB"}
    with open_join(algorithm, **given) as join, helped():
        rows = [batch for piece in STREAM.to_batches(7001) for batch in join.push(piece)]
        rows += join.drain()
        assert any(thread.name.startswith("semistream helper") for thread in threading.enumerate())
    assert_same_rows(pa.Table.from_batches(rows), reference_join(STREAM, MASTER, "k", how))
    assert not any(thread.name.startswith("semistream helper") for thread in threading.enumerate())


@pytest.mark.parametrize("count", [0, 1, 15, 16, 4095, 4096, 4097, 5003])
def test_every_row_is_gathered_once(count: int) -> None:
    """At the addresses where it belongs: 8 bytes per value, 1 bit per value of the second column and the bitmap."""
    calls: list[tuple[int, int, list[int], list[int]]] = []
    lock = threading.Lock()

    def gather(first: int, rows: int, data: np.ndarray, valid: np.ndarray) -> None:
        with lock:
            calls.append((first, rows, list(data), list(valid)))

    with helped():
        in_halves(gather, count, np.array([1000, 2000]), np.array([0, 3000]), np.array([64, 1]))
    at = 0
    for first, rows, data, valid in sorted(calls):
        assert first == at
        assert first % 8 == 0
        assert data == [1000 + 8 * first, 2000 + first // 8]
        assert valid == [0, 3000 + first // 8]
        at += rows
    assert at == count
    assert len(calls) == (2 if count >= 4096 else 1)


def test_an_error_of_either_half_is_raised_when_both_have_ended() -> None:
    ended = threading.Event()

    def gather(first: int, rows: int, data: np.ndarray, valid: np.ndarray) -> None:
        if first:
            ended.wait(60)
            raise OSError("the other half")
        ended.set()
        raise ValueError("this half")

    none = np.zeros(0, dtype=np.int64)
    with helped(), pytest.raises(OSError, match="the other half") as caught:
        in_halves(gather, 10_000, none, none, none)
    assert isinstance(caught.value.__context__, ValueError)


def test_other_threads_are_not_helped() -> None:
    """An operator's own threads, and whoever runs a join beside: they have processors of their own."""
    calls: list[int] = []

    def gather(first: int, rows: int, data: np.ndarray, valid: np.ndarray) -> None:
        calls.append(rows)

    none = np.zeros(0, dtype=np.int64)
    with helped():
        other = threading.Thread(target=in_halves, args=(gather, 10_000, none, none, none))
        other.start()
        other.join()
    assert calls == [10_000]
