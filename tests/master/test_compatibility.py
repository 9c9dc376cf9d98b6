"""Which changes of a schema the readers of an older version can live with."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pyarrow as pa

import semistream
from semistream.master.compatibility import in_use, misfits
from semistream.master.leases import pin, unpin_before
from semistream.master.pages import PageMaster

OLD = pa.schema([pa.field("k", pa.int64(), nullable=False), ("a", pa.string()), ("b", pa.list_(pa.int32()))])


def test_what_fits() -> None:
    assert misfits(OLD, OLD) == []
    assert misfits(OLD, pa.schema([("new", pa.int8()), OLD.field("b"), OLD.field("a"), OLD.field("k")])) == []
    assert misfits(OLD, OLD.set(1, pa.field("a", pa.string(), nullable=False, metadata={"x": "y"}))) == []


def test_what_does_not() -> None:
    assert misfits(OLD, OLD.remove(1)) == ["column 'a' is gone"]
    assert misfits(OLD, OLD.set(1, pa.field("A", pa.string()))) == ["column 'a' is gone"]
    assert misfits(OLD, OLD.append(pa.field("a", pa.string()))) == ["column 'a' is there several times"]
    assert misfits(OLD, OLD.set(0, pa.field("k", pa.int64()))) == ["column 'k' may hold nulls and could not before"]
    changed = OLD.set(1, pa.field("a", pa.large_string())).set(2, pa.field("b", pa.list_(pa.int64())))
    assert misfits(OLD, changed) == [
        "column 'a' has the type large_string and had string",
        "column 'b' has the type list<item: int64> and had list<item: int32>",
    ]


def test_in_use(tmp_path: Path) -> None:
    path = tmp_path / "r"
    assert not in_use(path)
    semistream.build_pages(pa.table({"k": [1]}), path, on="k").close()
    assert not in_use(path)
    with closing(PageMaster(path)):
        assert in_use(path)
    assert not in_use(path)
    pin(path, "query", 0)
    assert in_use(path)
    unpin_before(path, "query", None)
    assert not in_use(path)
