"""The in-memory master is a page store without a disk: same pages, same answers, no copies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.master.decoding import (
    assert_same_table,
    block_codes,
    block_table,
    every_type,
    read_all,
    sorted_by_code,
)

from semistream.errors import ConfigError, SchemaError
from semistream.master.build import build_pages
from semistream.master.memory import MemoryMaster

NO_BUFFER = np.empty(0, dtype=np.uint8)


@pytest.mark.parametrize("page_rows", [1, 7, 256])
@pytest.mark.parametrize("on", [["k"], ["word"], ["k32", "day"], ["flag"]], ids="+".join)
def test_same_pages_as_a_store(tmp_path: Path, on: list[str], page_rows: int) -> None:
    table = every_type(300)
    memory = MemoryMaster(table, on, page_rows)
    store = build_pages(table, tmp_path / "r", on=on, page_rows=page_rows)
    expected, codes = sorted_by_code(table, on)
    found, found_codes = read_all(memory, table.schema.names)
    assert_same_table(found, expected)
    assert found_codes == codes
    assert (memory.n_rows, memory.n_pages, memory.order) == (store.n_rows, store.n_pages, store.order)
    with memory.open(["k"]) as one, store.open(["k"]) as other:
        assert one.fences.tolist() == other.fences.tolist()
        assert one.continues.tolist() == other.continues.tolist()
        asked = np.unique(np.array([*codes, -99, 0, 99]))
        for a, b in zip(one.locate(asked), other.locate(asked), strict=True):
            assert a.tolist() == b.tolist()


def test_scattered_pages_without_a_copy() -> None:
    table = pa.concat_tables([every_type(100), every_type(200, seed=1)])
    master = MemoryMaster(table, "k", 16)
    expected, codes = sorted_by_code(table, ["k"])
    with master.open(table.schema.names) as reader:
        assert reader.buffer_bytes(10) == 0
        pages = np.array([1, 2, 9, 18])
        rows = np.concatenate([np.arange(16 * p, min(16 * p + 16, 300)) for p in pages])
        for block in (reader.map(pages), reader.read_runs(pages, NO_BUFFER, 0).block):
            assert_same_table(block_table(reader, block), expected.take(rows))
            assert block_codes(block) == [codes[r] for r in rows]
        column = master.arrays["ratio"]
        assert block.data[0, table.schema.get_field_index("ratio")] == column.buffers()[1].address + 16 * 8


def test_other_pages_at_open() -> None:
    table = every_type(300)
    with MemoryMaster(table, "k", 16).open(["k"], page_rows=7) as reader:
        assert (reader.page_rows, reader.n_pages) == (7, 43)
        assert reader.read(42, 9, NO_BUFFER).n_rows == 6


def test_nulls_and_nothing() -> None:
    table = pa.table({"k": pa.array([None, 3, None, 1], pa.int64()), "v": ["a", "b", "c", None]})
    master = MemoryMaster(table, "k")
    assert (master.n_rows, master.null_key_rows) == (2, 2)
    assert read_all(master, ["v"])[0]["v"].to_pylist() == [None, "b"]
    for empty in (table.slice(0, 0), table.slice(0, 1)):
        master = MemoryMaster(empty, "k")
        assert (master.n_rows, master.n_pages) == (0, 0)
        with master.open(["v", "k"]) as reader:
            assert reader.read(0, 5, NO_BUFFER).n_rows == 0
            assert reader.locate(np.array([3]))[0].tolist() == [-1]


def test_refused() -> None:
    table = every_type(10)
    with pytest.raises(SchemaError, match="did you mean 'word'"):
        MemoryMaster(table, "wrod")
    with pytest.raises(SchemaError, match="did you mean 'money'"):
        MemoryMaster(table, "k").open(["monny"])
    with pytest.raises(ConfigError, match="no file"):
        MemoryMaster(table, "k").open(["k"], direct=True)
    with pytest.raises(ConfigError, match="asked for"):
        MemoryMaster(table, "k").open(["k"]).read(5, 1, NO_BUFFER)
