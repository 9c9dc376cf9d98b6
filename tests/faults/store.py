"""Building, publishing, pinning and cleaning up page stores."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
from tests.faults.harness import Scenario, Verdict, compare
from tests.master.decoding import block_table
from tests.master.sharded import build_shards

from semistream.errors import StoreError
from semistream.master.base import PageBlock, PageReader, aligned_buffer
from semistream.master.build import build_pages
from semistream.master.format import CURRENT, version_name, versions_in
from semistream.master.inventory import collect, verify
from semistream.master.leases import LOCK, QUERIES, pin, unpin_before
from semistream.master.pages import PageMaster
from semistream.master.refresh import compact_pages, refresh_pages

Row = tuple[int, str]
PAGE_ROWS = 8


def rows_of(version: int, count: int = 20) -> list[Row]:
    """The rows of a version: some keys twice, some values different from version to version."""
    return [(i * 2 // 3, f"{version}-{i}" if i % 3 else f"same {i}") for i in range(count)]


def table_of(version: int, count: int = 20) -> pa.Table:
    keys, values = zip(*rows_of(version, count), strict=True)
    return pa.table({"k": pa.array(keys, pa.int64()), "v": values})


def build(folder: Path, version: int, by_frequency: bool = False, count: int = 20, memory: int = 1 << 28) -> None:
    build_pages(
        table_of(version, count),
        folder / "r",
        on="k",
        # Few large pages where there are many rows: it is about the calls, and every page is one more.
        page_rows=max(PAGE_ROWS, count // 4),
        frequency="k" if by_frequency else None,
        overwrite=True,
        keep_versions=0,
        memory_limit=memory,
    ).close()


def stored(folder: Path, version: int | None = None) -> list[Row]:
    """All rows that the index leads to, from pages that were read and mapped."""
    master = PageMaster(folder / "r", version)
    with master.open(["k", "v"]) as reader:
        scanned = _rows(reader, reader.read(0, reader.n_pages, aligned_buffer(reader.buffer_bytes(reader.n_pages))))
        mapped = _rows(reader, reader.map(np.arange(reader.n_pages)))
        assert scanned == mapped, "mapped pages have other rows than those that were read"
        keys = np.arange(max((key for page in scanned for key, _ in page), default=0) + 1)
        codes, _ = master.coder.codes([pa.array(keys)])
        first, last = reader.locate(codes)
    master.close()
    return [row for page, rows in enumerate(scanned) for row in rows if first[row[0]] <= page <= last[row[0]]]


def _rows(reader: PageReader, block: PageBlock) -> list[list[Row]]:
    """The rows of each page."""
    rows = iter((row["k"], row["v"]) for row in block_table(reader, block).to_pylist())
    return [list(islice(rows, count)) for count in block.rows.tolist()]


def _next_change(folder: Path, pinned: list[int], count: int = 20) -> Verdict:
    """A store takes another version whatever happened to it, and then holds nothing else than it should."""
    store = folder / "r"
    build(folder, 9, count=count)
    found = compare(stored(folder), rows_of(9, count))
    assert verify(store) == []
    versions = versions_in(store)
    assert versions[:-1] == pinned, versions
    extra = {p.name for p in store.iterdir()} - {LOCK, CURRENT, QUERIES} - set(map(version_name, versions))
    assert not extra, extra
    return found


def _new_or_none(count: int = 20) -> Callable[[Path, bool], Verdict]:
    def check(folder: Path, finished: bool) -> Verdict:
        found = Verdict()
        if finished or (folder / "r" / CURRENT).exists():
            found = compare(stored(folder, None), rows_of(1, count))
        elif (folder / "r").exists():
            try:
                PageMaster(folder / "r")
            except StoreError:
                pass
            else:
                raise AssertionError("a store that was not finished can be opened")
        return found + _next_change(folder, [], count)

    return check


def _one_version(folder: Path) -> None:
    build(folder, 1)
    assert pin(folder / "r", "query", 0) == 1


def _old_or_new(folder: Path, finished: bool) -> Verdict:
    """The version in force, and the one that a batch uses, before and after the next change."""
    found = compare(stored(folder), *([] if finished else [rows_of(1)]), rows_of(2))
    found += _next_change(folder, [1])
    return found + compare(stored(folder, pin(folder / "r", "query", 0)), rows_of(1))


def _read_both(folder: Path) -> Verdict:
    found = compare(stored(folder), rows_of(2))
    return found + compare(stored(folder, pin(folder / "r", "query", 0)), rows_of(1))


def _two_versions(folder: Path) -> None:
    _one_version(folder)
    build(folder, 2)


def _pin_next(folder: Path) -> None:
    assert pin(folder / "r", "query", 1) == 2
    assert pin(folder / "r", "another", 1) == 2


def _pins_hold(folder: Path, finished: bool) -> Verdict:
    found = compare(stored(folder), rows_of(2))
    build(folder, 3)
    for owner, batch in (("query", 0), ("query", 1), ("another", 1)):
        version = pin(folder / "r", owner, batch)
        assert version == pin(folder / "r", owner, batch), "two answers for one batch"
        # A pin that was not made before is made now, of the version in force.
        allowed = [1] if batch == 0 else [2] if finished else [2, 3]
        found += compare(stored(folder, version), *map(rows_of, allowed))
    unpin_before(folder / "r", "query", None)
    unpin_before(folder / "r", "another", None)
    return found + _next_change(folder, [])


def _many_pins(folder: Path) -> None:
    build(folder, 1)
    for batch in range(4):
        pin(folder / "r", "query", batch)
    build(folder, 2)


def _unpin(folder: Path) -> None:
    unpin_before(folder / "r", "query", 2)


def _later_pins_hold(folder: Path, finished: bool) -> Verdict:
    found = compare(stored(folder), rows_of(2))
    for batch in (2, 3):
        found += compare(stored(folder, pin(folder / "r", "query", batch)), rows_of(1))
    left = {p.name for p in (folder / "r" / QUERIES / "query").iterdir()}
    assert left <= {f"{batch}.json" for batch in range(2 if finished else 0, 4)}, left
    unpin_before(folder / "r", "query", None)
    return found + _next_change(folder, [])


def _to_clean(folder: Path) -> None:
    build(folder, 1)
    pin(folder / "r", "gone", 5)
    build(folder, 2)
    pin(folder / "r", "query", 0)
    build(folder, 3)
    (folder / "r" / ".build-dead").mkdir()
    (folder / "r" / ".build-dead" / "spool.arrow").write_bytes(b"half a fi")


def _clean(folder: Path) -> None:
    removed = collect(folder / "r", forget=["gone"])
    assert removed.versions == [1] or removed.kept == ["version 1: it cannot be removed"]


def _is_clean(folder: Path, _: bool) -> Verdict:
    store = folder / "r"
    found = compare(stored(folder), rows_of(3)) + compare(stored(folder, pin(store, "query", 0)), rows_of(2))
    # One that cannot be moved away is left for the next time, and said to be.
    assert set(versions_in(store)) <= {1, 2, 3}
    unpin_before(store, "gone", None)
    collect(store)
    assert versions_in(store) == [2, 3]
    return found + _next_change(folder, [2])


def _publish_shards(folder: Path) -> None:
    build_shards(table_of(2), folder / "r", "k", PAGE_ROWS, shards=3).close()


def _nothing(_: Path) -> None:
    pass


_LARGE = 4000


def changed(before: list[Row]) -> list[Row]:
    """What `_refresh` makes of rows: key 2 gone, key 3 with two rows, key 50 new."""
    return [row for row in before if row[0] not in (2, 3)] + [(3, "x"), (3, "y"), (50, "z")]


def _refresh(folder: Path) -> None:
    rows = pa.table({"k": pa.array([3, 3, 50], pa.int64()), "v": ["x", "y", "z"]})
    gone = pa.table({"k": pa.array([2], pa.int64())})
    refresh_pages(folder / "r", rows, deletes=gone, source="s", position=1, keep_versions=0, compact="never").close()


def _compact(folder: Path) -> None:
    compact_pages(folder / "r", keep_versions=0).close()


def _changed_or_not(folder: Path, finished: bool) -> Verdict:
    """The rows of before or those of after; the same changes once more give those of after, and change nothing then."""
    found = compare(stored(folder), *([] if finished else [rows_of(1)]), changed(rows_of(1)))
    for _ in range(2):
        _refresh(folder)
        found += compare(stored(folder), changed(rows_of(1)))
    assert verify(folder / "r") == []
    found += compare(stored(folder, pin(folder / "r", "query", 0)), rows_of(1))
    return found + _next_change(folder, [1])


def _read_changed(folder: Path) -> Verdict:
    found = compare(stored(folder), changed(rows_of(1)))
    return found + compare(stored(folder, pin(folder / "r", "query", 0)), rows_of(1))


def _changed_version(folder: Path) -> None:
    _one_version(folder)
    _refresh(folder)
    assert pin(folder / "r", "query", 1) == 2


def _compacted_or_not(folder: Path, finished: bool) -> Verdict:
    found = compare(stored(folder), changed(rows_of(1)))
    assert not finished or not PageMaster(folder / "r").runs
    _compact(folder)
    found += compare(stored(folder), changed(rows_of(1)))
    found += compare(stored(folder, pin(folder / "r", "query", 1)), changed(rows_of(1)))
    assert verify(folder / "r") == []
    return found + _next_change(folder, [1, 2])


def _by_frequency(folder: Path) -> None:
    build(folder, 1, by_frequency=True)
    assert pin(folder / "r", "query", 0) == 1


SCENARIOS = [
    Scenario("store: build the first version", _nothing, lambda f: build(f, 1), _new_or_none()),
    Scenario(
        "store: build, sorted outside memory",
        _nothing,
        lambda f: build(f, 1, count=_LARGE, memory=1 << 16),
        _new_or_none(_LARGE),
    ),
    Scenario("store: publish over a version", _one_version, lambda f: build(f, 2), _old_or_new, _read_both),
    Scenario(
        "store: publish by frequency", _one_version, lambda f: build(f, 2, by_frequency=True), _old_or_new, _read_both
    ),
    Scenario("store: publish in shards", _one_version, _publish_shards, _old_or_new, _read_both),
    Scenario("store: refresh by key", _one_version, _refresh, _changed_or_not, _read_changed),
    Scenario("store: refresh by frequency", _by_frequency, _refresh, _changed_or_not, _read_changed),
    Scenario("store: compact", _changed_version, _compact, _compacted_or_not, _read_changed),
    Scenario("store: pin", _two_versions, _pin_next, _pins_hold),
    Scenario("store: unpin", _many_pins, _unpin, _later_pins_hold),
    Scenario("store: gc", _to_clean, _clean, _is_clean),
]
