"""Stores laid out by access frequency: most wanted keys first, whole runs, found through the second index."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.master.decoding import every_type, read_all

from semistream.errors import ChecksumError
from semistream.master.build import build_pages
from semistream.master.pages import PageMaster


def _table(n: int = 3000, keys: int = 700) -> pa.Table:
    rng = np.random.default_rng(5)
    return pa.table(
        {"k": rng.integers(0, keys, n) * 3, "f": rng.integers(0, 40, n), "word": [f"w{i}" for i in range(n)]}
    )


def _check_order(codes: list[int], weight: dict[int, float]) -> None:
    firsts = list(dict.fromkeys(codes))
    assert firsts == sorted(firsts, key=lambda code: (-weight.get(code, 0), code))
    runs = 1 + sum(a != b for a, b in pairwise(codes))
    assert runs == len(firsts), "the rows of a key are together"


@pytest.mark.parametrize("memory_limit", [1 << 16, 1 << 28])
def test_by_a_column(tmp_path: Path, memory_limit: int) -> None:
    table = _table()
    master = build_pages(table, tmp_path / "r", on="k", frequency="f", page_rows=16, memory_limit=memory_limit)
    assert (master.order, master.manifest.keys) == ("frequency", len(set(table["k"].to_pylist())))
    weight: dict[int, float] = {}
    for k, f in zip(table["k"].to_pylist(), table["f"].to_pylist(), strict=True):
        weight[k] = max(weight.get(k, 0), f)
    found, codes = read_all(master, table.schema.names)
    _check_order(codes, weight)
    assert Counter(map(str, found.to_pylist())) == Counter(map(str, table.to_pylist()))


@pytest.mark.parametrize("form", ["codes", "array", "table", "batch"])
def test_by_given_counts(tmp_path: Path, form: str) -> None:
    table = _table()
    keys = np.array([9, 3, 9, 300, 10_000_000])
    counts = [5, 6, 5, 1, 99]
    given: dict[str, Any] = {
        "codes": keys,
        "array": pa.array(keys),
        "table": pa.table({"k": keys}),
        "batch": pa.record_batch({"k": keys}),
    }
    master = build_pages(table, tmp_path / "r", on="k", order="frequency", frequency=(given[form], counts))
    _check_order(read_all(master, ["k"])[1], {9: 10, 3: 6, 300: 1})


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("page_rows", [1, 7, 256])
def test_locate(tmp_path: Path, page_rows: int, direct: bool) -> None:
    table = _table()
    master = build_pages(table, tmp_path / "r", on="k", frequency="f", page_rows=page_rows)
    codes = np.array(read_all(master, [], n_pages=100)[1])
    asked = np.arange(-5, 2200)
    with master.open([], direct) as reader:
        assert reader.has_index
        assert not len(reader.fences)
        first, last = reader.locate(asked)
        assert 0 < reader.index_reads <= 1 + len(set(codes.tolist())) // 170
        shuffled = np.random.default_rng(0).permutation(asked)
        assert reader.locate(shuffled)[0].tolist() == first[shuffled + 5].tolist()
    for code, low, high in zip(asked, first, last, strict=True):
        rows = np.flatnonzero(codes == code)
        expected = (rows[0] // page_rows, rows[-1] // page_rows) if len(rows) else (-1, -1)
        assert (low, high) == expected


def test_locate_many_blocks(tmp_path: Path) -> None:
    n = 60_000
    table = pa.table({"k": np.arange(n) * 2, "f": np.random.default_rng(0).random(n)})
    master = build_pages(table, tmp_path / "r", on="k", frequency="f")
    codes = np.array(read_all(master, [], n_pages=500)[1])
    page = np.empty(n, dtype=np.int64)
    page[codes // 2] = np.arange(n) // 256
    asked = np.unique(np.random.default_rng(1).integers(-100, 2 * n + 100, 3000))
    for direct in (False, True):
        with master.open([], direct) as reader:
            first, last = reader.locate(asked)
        known = (asked % 2 == 0) & (asked >= 0) & (asked < 2 * n)
        assert first[known].tolist() == last[known].tolist() == page[asked[known] // 2].tolist()
        assert set(first[~known]) == set(last[~known]) == {-1}


@pytest.mark.parametrize("key", ["word", "k32", "ratio"])
def test_hashed_and_null_keys(tmp_path: Path, key: str) -> None:
    table = every_type(500)
    master = build_pages(table, tmp_path / "r", on=key, frequency="k", page_rows=16, code_mask=15)
    found, codes = read_all(master, table.schema.names)
    expected = table.filter(table[key].is_valid())
    assert sorted(map(str, found.to_pylist())) == sorted(map(str, expected.to_pylist()))
    with master.open([]) as reader:
        first, last = reader.locate(np.unique(codes))
        assert (first >= 0).all()
        assert ((last - first + 1) * 16 >= 1).all()


def test_empty(tmp_path: Path) -> None:
    master = build_pages(_table(0), tmp_path / "r", on="k", frequency="f")
    for direct in (False, True):
        with master.open([], direct) as reader:
            assert reader.locate(np.array([1]))[0].tolist() == [-1]


def test_a_flipped_byte_of_the_second_index(tmp_path: Path) -> None:
    master = build_pages(_table(), tmp_path / "r", on="k", frequency="f")
    path = master.folder / "keys.bin"
    raw = bytearray(path.read_bytes())
    raw[4096 + 100] ^= 1
    path.write_bytes(raw)
    with PageMaster(tmp_path / "r").open([]) as reader:
        assert reader.locate(np.array([0]))[0][0] >= -1
        with pytest.raises(ChecksumError, match=r"block 1 of .*keys\.bin"):
            reader.locate(np.arange(0, 2100, 3))


def test_first_codes_of_blocks_are_checked_when_the_store_is_opened(tmp_path: Path) -> None:
    """A block's own checksum is no help for a code that is looked for in another block."""
    master = build_pages(_table(), tmp_path / "r", on="k", frequency="f")
    keys = master.folder / "keys.bin"
    whole = keys.read_bytes()
    assert len(whole) > 4096
    for at in (4096, 4096 + 7, 4095, len(whole) - 1):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        keys.write_bytes(damaged)
        with pytest.raises(ChecksumError, match=r"keys\.bin"):
            PageMaster(tmp_path / "r").open(["word"])
