"""Batches on their way in and out are bounded by the budget as well: long strings, dictionaries of many values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from semistream import open_join
from semistream.columns.plain import cut_rows, plain_bytes
from semistream.master.memory import MemoryMaster
from semistream.parts.budget import Budget

BUDGET = 4 << 20
LONG = 200_000
#: a pool must outlive every buffer that came from it
POOLS: list[pa.MemoryPool] = []


def long_texts(count: int) -> pa.Array:
    return pa.array([f"{i:06d}" * (LONG // 6) for i in range(count)])


def outputs(
    operator: str, stream: pa.Table, master: pa.Table, peak: list[int], **options: object
) -> Iterator[pa.RecordBatch]:
    """Output batches, one at a time; `peak` learns what Arrow allocated at most, and the largest batch."""
    opened = MemoryMaster(master, "k", page_rows=2)
    with open_join(operator, master=opened, on="k", how="left", memory=BUDGET) as join:
        before = pa.default_memory_pool()
        pool = pa.proxy_memory_pool(before)
        POOLS.append(pool)
        pa.set_memory_pool(pool)
        try:
            for batch in stream.to_batches():
                yield from join.push(batch)
            yield from join.drain()
        finally:
            pa.set_memory_pool(before)
        assert join.memory.peak_bytes <= BUDGET
        peak += [pool.max_memory(), join.memory.largest_piece_bytes]


@pytest.mark.parametrize("long", ["stream", "master", "both"])
def test_long_strings_leave_in_small_batches(operator: str, long: str) -> None:
    """A batch takes an eighth of the budget for each side, or one row: 8 MB and more if it went by rows alone."""
    rows = 45
    texts = long_texts(rows)
    short = pa.array([f"t{i}" for i in range(rows)])
    stream = pa.table({"k": np.arange(rows) % 40, "s": short if long == "master" else texts})
    master = pa.table({"k": np.arange(30), "m": short[:30] if long == "stream" else texts[:30]})
    peak: list[int] = []
    seen: list[tuple[int, str, str | None]] = []
    largest = 0
    for batch in outputs(operator, stream, master, peak):
        largest = max(largest, batch.nbytes)
        seen += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    assert largest <= peak[1] <= BUDGET // 4 + 2 * LONG
    # A piece that comes in, both sides of one that goes out, a copy of it, and what a thread has finished meanwhile.
    assert peak[0] <= BUDGET
    found = dict(zip(master["k"].to_pylist(), master["m"].to_pylist(), strict=True))
    expected = [(k, s, found.get(k)) for k, s in zip(stream["k"].to_pylist(), stream["s"].to_pylist(), strict=True)]
    assert sorted(seen, key=lambda row: row[:2]) == sorted(expected, key=lambda row: row[:2])


def test_dictionaries_are_not_spread_out_at_once(operator: str) -> None:
    """Eight long values, two thousand rows: 400 MB if the column were made plain as a whole."""
    indices = pa.array(np.arange(2000) % 8, pa.int8())
    column = pa.DictionaryArray.from_arrays(indices, long_texts(8))
    stream = pa.table({"k": np.zeros(2000, dtype=np.int64), "s": column}).slice(0, 300)
    peak: list[int] = []
    rows = 0
    for batch in outputs(operator, stream, pa.table({"k": [0], "m": ["one"]}), peak):
        rows += batch.num_rows
        assert batch.schema.field("s").type == column.type
    assert rows == 300
    assert peak[0] <= BUDGET


def test_the_ledger_notes_the_largest_batch() -> None:
    budget = Budget(100)
    budget.note_piece(70)
    budget.note_piece(30)
    assert budget.report().largest_piece_bytes == 70
    assert budget.report().bytes_now == 0


def test_rows_are_cut_by_their_plain_bytes() -> None:
    texts = pa.array(["a" * size for size in (10, 10, 50, 200, 1, 1, 1)])
    views = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 3, None, 5, 6], pa.int8()), texts.cast(pa.string_view()))
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 7], pa.int32()), pa.array(["bb", None]))
    lists = pa.array([["a", "b"], None, [], ["ccc"]]).slice(1)
    structs = pa.array([{"a": "xy", "b": 1}, {"a": None, "b": 2}])
    assert plain_bytes(texts).tolist() == [10, 10, 50, 200, 1, 1, 1]
    assert plain_bytes(views).tolist() == [10, 10, 50, 200, 0, 1, 1]
    assert plain_bytes(runs).tolist() == [2, 2, 0, 0, 0, 0, 0]
    assert plain_bytes(lists).tolist() == [0, 0, 3]
    assert plain_bytes(structs).tolist() == [10, 8]
    assert list(cut_rows([views], 7, 3, 60)) == [(0, 2), (2, 1), (3, 1), (4, 3)]
    assert list(cut_rows([texts], 7, 4, 10_000)) == [(0, 4), (4, 3)]
    assert list(cut_rows([], 5, 2, 1)) == [(0, 2), (2, 2), (4, 1)]
