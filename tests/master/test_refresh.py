"""Changes as versions of a store: what is there afterwards, what is refused, and what is recorded."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.master.decoding import every_type

from semistream import build_pages, compact_pages, open_join, refresh_pages
from semistream.errors import ConfigError, SchemaError, SemiStreamError, SemiStreamWarning, StoreError
from semistream.master.format import CODES, Origin, Parts, load_manifest, shares_codes, version_name, versions_in
from semistream.master.inventory import verify
from semistream.master.leases import pin
from semistream.master.live import LiveRows
from semistream.master.pages import PageMaster
from semistream.sealed import read_sealed, sealed
from semistream.testing import run_join

Row = tuple[Any, ...]
FAR = 2**63 - 1


def table(rows: list[tuple[int | None, str | None]]) -> pa.Table:
    return pa.table({"k": pa.array([k for k, _ in rows], pa.int64()), "v": pa.array([v for _, v in rows], pa.string())})


def feed(*rows: tuple[str, int | None, str | None] | tuple[str, int | None, str | None, int]) -> pa.Table:
    """A change feed of (kind, key, value), or (kind, key, value, commit)."""
    made = table([(row[1], row[2]) for row in rows]).append_column("_change_type", pa.array([row[0] for row in rows]))
    if rows and len(rows[0]) == 4:
        made = made.append_column("_commit_version", pa.array([row[3] for row in rows], pa.int64()))  # type: ignore[misc]
    return made


def keys(*values: Any) -> pa.Table:
    return pa.table({"k": pa.array(values, pa.int64())})


def live(path: Path, version: int | None = None) -> list[Row]:
    """All rows that some key leads to: by going through R, and by looking every key up; sorted."""
    master = PageMaster(path, version)
    with LiveRows(master, 1 << 20) as rows:
        scanned = [pa.Table.from_batches([batch]) for batch in rows.all_but(np.empty(0, np.int64))]
        found = sorted(_rows(scanned), key=repr)
        codes = np.unique(np.concatenate([np.empty(0, np.int64), *(part["__code"].to_numpy() for part in scanned)]))
        looked_up = [pa.Table.from_batches([batch]) for batch in rows.rows_of(codes)]
        assert sorted(_rows(looked_up), key=repr) == found
    assert len(found) == master.n_rows - master.dead_rows
    master.close()
    return found


def _rows(tables: list[pa.Table]) -> list[Row]:
    return [tuple(row.values())[1:] for part in tables for row in part.to_pylist()]


def joined(path: Path, *wanted: int) -> list[Row]:
    """What a stream of these keys finds."""
    with open_join("sweepjoin", master=path, on="k", how="inner", memory="16MB") as join:
        out = run_join(join, keys(*wanted).to_batches())
    return sorted((row["k"], row["v"]) for row in out.to_pylist())


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Keys 0 to 99, key 7 three times."""
    rows = [(i, f"v{i}") for i in range(100)] + [(7, "again"), (7, "again")]
    build_pages(table(rows), tmp_path / "r", on="k", page_rows=8).close()
    return tmp_path / "r"


BASE: list[Row] = sorted([(i, f"v{i}") for i in range(100)] + [(7, "again"), (7, "again")], key=repr)


def but(gone: list[Row], new: list[Row]) -> list[Row]:
    """The rows of the base without some, and with others."""
    counts = Counter(BASE)
    counts.subtract(gone)
    counts.update(new)
    assert min(counts.values()) >= 0
    return sorted(counts.elements(), key=repr)


# --- states ----------------------------------------------------------------------------------------------


def test_rows_replace_all_rows_of_their_key(store: Path) -> None:
    master = refresh_pages(store, table([(7, "x"), (3, "a"), (3, "b"), (200, "new")]))
    assert (master.version, len(master.runs), master.dead_rows, master.notice) == (2, 1, 4, "")
    gone: list[Row] = [(7, "v7"), (7, "again"), (7, "again"), (3, "v3")]
    assert live(store) == but(gone, [(7, "x"), (3, "a"), (3, "b"), (200, "new")])
    # 101 to 103 are codes that the changed keys have: a stream that brings them by itself finds nothing.
    wanted = joined(store, 7, 3, 200, 5, 100, 101, 102, 103)
    assert wanted == [(3, "a"), (3, "b"), (5, "v5"), (7, "x"), (200, "new")]
    assert verify(store) == []


def test_keys_are_deleted_and_come_back(store: Path) -> None:
    refresh_pages(store, deletes=keys(7, 8, 500))
    assert live(store) == but([(7, "v7"), (7, "again"), (7, "again"), (8, "v8")], [])
    assert joined(store, 7, 8, 9) == [(9, "v9")]
    refresh_pages(store, table([(8, "back")]))
    assert joined(store, 7, 8, 9) == [(8, "back"), (9, "v9")]
    # A key that is deleted and set at once is set: keys lose their rows before new ones come.
    refresh_pages(store, table([(8, "set")]), deletes=keys(8, 9))
    assert joined(store, 7, 8, 9) == [(8, "set")]


def test_the_last_commit_of_a_key_is_its_state(store: Path) -> None:
    states = table([(3, "new"), (3, "old"), (3, "newer"), (4, "one"), (4, "two")])
    refresh_pages(store, states.append_column("_commit_version", pa.array([6, 5, 6, 5, 5])))
    assert joined(store, 3, 4) == [(3, "new"), (3, "newer"), (4, "one"), (4, "two")]


def test_changes_that_change_nothing_make_no_version(store: Path) -> None:
    same = refresh_pages(store, table([(3, "v3"), (7, "again"), (7, "v7"), (7, "again")]), deletes=keys(1000))
    assert same.version == 1
    assert versions_in(store) == [1]
    # Of keys that are given, only those count whose rows are others.
    assert refresh_pages(store, table([(3, "v3"), (4, "x")])).dead_rows == 1


# --- change feeds ----------------------------------------------------------------------------------------


def test_a_feed_takes_one_equal_row_away_and_adds_one(store: Path) -> None:
    refresh_pages(
        store,
        feed(
            ("update_preimage", 7, "again"),
            ("update_postimage", 7, "once"),
            ("delete", 8, "v8"),
            ("insert", 9, "second"),
            ("insert", 300, None),
        ),
    )
    assert live(store) == but([(7, "again"), (8, "v8")], [(7, "once"), (9, "second"), (300, None)])


def test_commits_are_applied_in_their_order(store: Path) -> None:
    """Whatever the order of rows: from 1 row to 3 to none and to 1 again."""
    rows = [
        ("insert", 3, "b", 2),
        ("delete", 3, "v3", 3),
        ("insert", 3, "c", 2),
        ("delete", 3, "c", 3),
        ("delete", 3, "b", 3),
        ("insert", 3, "v3", 4),
        ("update_preimage", 3, "v3", 5),
        ("update_postimage", 3, "end", 5),
    ]
    for seed in range(3):
        mixed = [rows[i] for i in np.random.default_rng(seed).permutation(len(rows))]
        path = store.with_name(f"copy{seed}")
        shutil.copytree(store, path)
        refresh_pages(path, feed(*mixed))
        assert joined(path, 3) == [(3, "end")]


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ([("delete", 3, "other")], "k=3"),
        ([("delete", 7, "again"), ("delete", 7, "again"), ("delete", 7, "again")], "k=7"),
        ([("delete", 3, None)], "k=3"),
        ([("delete", 1000, "v")], "k=1000"),
        ([("update_preimage", 5, "v5", 8), ("update_preimage", 5, "v5", 9)], "commit 9 takes a row of the key k=5"),
        ([("delete", 3, "x", 4), ("insert", 3, "x", 5)], "commit 4 takes a row of the key k=3"),
    ],
)
def test_changes_that_do_not_fit_are_refused(store: Path, rows: list[Any], names: str) -> None:
    with pytest.raises(StoreError, match=f"do not fit this version: .*{names}.*version 1 of .* stays in force"):
        refresh_pages(store, feed(*rows))
    assert versions_in(store) == [1]
    assert not list(store.glob(".build-*"))
    assert live(store) == BASE


def test_rows_of_every_type_are_compared(tmp_path: Path) -> None:
    """Each column alone tells two rows apart, and equal rows are found whatever they are made of."""
    rows = every_type(40)
    build_pages(rows, tmp_path / "r", on="k", page_rows=8).close()
    gone = rows.slice(5, 20)
    for kind in ("delete", "insert", "delete"):
        refresh_pages(tmp_path / "r", gone.append_column("_change_type", pa.array([kind] * 20)), compact="never")
    left = pa.concat_tables([rows.slice(0, 5), rows.slice(25)])
    with LiveRows(PageMaster(tmp_path / "r"), 1 << 20) as found:
        count = sum(batch.num_rows for batch in found.all_but(np.empty(0, np.int64)))
    assert count == left.num_rows
    compact_pages(tmp_path / "r").close()
    build_pages(left, tmp_path / "expected", on="k", page_rows=8).close()
    with (
        LiveRows(PageMaster(tmp_path / "r"), 1 << 20) as one,
        LiveRows(PageMaster(tmp_path / "expected"), 1 << 20) as two,
    ):
        ours, theirs = (_rows([pa.Table.from_batches(x.all_but(np.empty(0, np.int64)))]) for x in (one, two))
        assert sorted(map(repr, ours)) == sorted(map(repr, theirs))


def test_nan_and_both_zeros_are_equal(tmp_path: Path) -> None:
    rows = pa.table({"k": [1, 2, 3], "x": [float("nan"), 0.0, None]})
    build_pages(rows, tmp_path / "r", on="k").close()
    gone = pa.table({"k": [1, 2, 3], "x": [float("nan"), -0.0, None], "_change_type": ["delete"] * 3})
    assert refresh_pages(tmp_path / "r", gone, compact="never").dead_rows == 3


# --- what is refused, counted, recorded --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (pa.table({"k": pa.array([1], pa.int64())}), "no columns named 'v'"),
        (pa.table({"k": pa.array([1], pa.int32()), "v": ["x"]}), "column 'k' of the changes has the type int32"),
        (pa.table({"k": pa.array([1]), "v": ["x"], "w": [1]}), "have the column 'w', which R does not have"),
        (pa.table({"k": pa.array([1]), "v": ["x"], "_change_type": ["upsert"]}), "_change_type 'upsert'"),
        (pa.table({"k": pa.array([1]), "v": ["x"], "_change_type": pa.array([None], pa.string())}), "None"),
        (pa.table({"k": pa.array([1]), "v": ["x"], "_change_type": [1.5]}), "allowed are insert"),
        (pa.table({"k": pa.array([1]), "v": ["x"], "_commit_version": ["a"]}), "must be a whole number"),
        (pa.table({"k": pa.array([1]), "v": ["x"], "_commit_version": pa.array([None], pa.int64())}), "holds nulls"),
    ],
)
def test_other_columns_than_those_of_r_are_refused(store: Path, changes: pa.Table, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        refresh_pages(store, changes)
    assert versions_in(store) == [1]


def test_a_column_of_r_is_never_taken_for_a_word_about_the_change(tmp_path: Path) -> None:
    rows = pa.table({"k": [1, 2], "_change_type": ["delete", "delete"], "_commit_version": [None, 4]})
    build_pages(rows, tmp_path / "r", on="k").close()
    changed = pa.table({"k": [2], "_change_type": ["insert"], "_commit_version": pa.array([None], pa.int64())})
    refresh_pages(tmp_path / "r", changed, compact="never")
    assert live(tmp_path / "r") == [(1, "delete", None), (2, "insert", None)]


def test_columns_may_come_in_other_forms(store: Path) -> None:
    changes = pa.table(
        {
            "v": pa.array(["x", "y"], pa.large_string()).dictionary_encode(),
            "_change_type": pa.array(["insert", "insert"]).dictionary_encode(),
            "k": pa.array([200, 201], pa.int64()),
        }
    )
    refresh_pages(store, changes)
    assert joined(store, 200, 201) == [(200, "x"), (201, "y")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"changes": None}, "nothing to apply"),
        ({"position": 4}, "needs source="),
        ({"compact": "sometimes"}, "allowed are 'auto' and 'never'"),
        ({"max_runs": 0}, "at least 1"),
        ({"memory_limit": 5}, "memory_limit=5"),
        ({"keep_versions": -1}, "keep_versions=-1"),
        ({"changes": feed(("insert", 1, "x")), "deletes": keys(1)}, "leave one of them out"),
    ],
)
def test_arguments_that_cannot_work(store: Path, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        refresh_pages(store, **{"changes": table([(1, "x")]), **arguments})


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(StoreError, match="no page store"):
            refresh_pages(path, table([(1, "x")]))
        with pytest.raises(StoreError, match="no page store"):
            compact_pages(path)


def test_null_keys_are_counted_and_left_out(tmp_path: Path) -> None:
    build_pages(table([(1, "a"), (None, "b")]), tmp_path / "r", on="k").close()
    once = refresh_pages(tmp_path / "r", feed(("insert", None, "c"), ("insert", 2, "d"), ("insert", None, "e")))
    assert once.null_key_rows == 3
    assert refresh_pages(tmp_path / "r", feed(("delete", None, "c"), ("delete", 2, "d"))).null_key_rows == 2


def test_the_same_position_changes_nothing(store: Path) -> None:
    at = datetime(2026, 5, 1, tzinfo=UTC)
    first = refresh_pages(store, table([(1, "x")]), source="orders", position=5, committed_at=at)
    assert first.origin == Origin("orders", 5, at.isoformat(), first.origin.refreshed_at)
    assert datetime.fromisoformat(str(first.origin.refreshed_at)).tzinfo is not None
    for position in (5, 4):
        again = refresh_pages(store, table([(1, "y")]), source="orders", position=position)
        assert again.version == first.version
    other = refresh_pages(store, table([(1, "z")]), source="customers", position=1)
    assert (other.version, other.origin.source, other.origin.position) == (3, "customers", 1)
    # Each source has its own position, whichever came last.
    assert refresh_pages(store, table([(1, "y")]), source="orders", position=5).version == 3
    with pytest.raises(ConfigError, match="cannot be compared"):
        refresh_pages(store, table([(1, "y")]), source="orders", position="6")
    # What changes nothing is worth a version where it says how far the source was read.
    assert refresh_pages(store, table([(1, "z")]), source="orders", position=9).version == 4
    assert PageMaster(store).runs == other.runs
    assert joined(store, 1) == [(1, "z")]


def test_a_feed_goes_on_where_the_last_one_ended(store: Path) -> None:
    when = pa.array([datetime(2026, 5, day, tzinfo=UTC) for day in (1, 2, 3)])
    rows = feed(("insert", 200, "a", 5), ("insert", 201, "b", 6), ("insert", 202, "c", 7))
    rows = rows.append_column("_commit_timestamp", when)
    first = refresh_pages(store, rows.slice(0, 2), source="delta")
    assert (first.origin.position, first.origin.committed_at) == (6, "2026-05-02T00:00:00+00:00")
    assert refresh_pages(store, rows, source="delta").origin.position == 7
    assert refresh_pages(store, rows, source="delta").version == 3
    assert refresh_pages(store, rows.slice(0, 2), source="delta").origin.position == 7
    # Keys to be deleted have no commit; what was applied before is left out of the rows only.
    more = rows.drop_columns(["_change_type"])
    refresh_pages(store, more, deletes=keys(201), source="delta").close()
    assert joined(store, 200, 201, 202) == [(200, "a"), (202, "c")]


def test_a_build_says_where_its_rows_come_from(store: Path) -> None:
    origin = Origin("orders", 3, "2026-05-01T00:00:00+00:00")
    built = build_pages(table([(1, "a"), (2, "b")]), store, on="k", overwrite=True, origin=origin)
    assert built.origin.position == 3
    assert refresh_pages(store, table([(1, "x")]), source="orders", position=3).version == built.version
    compacted = refresh_pages(store, table([(1, "x")]), source="orders", position=4)
    assert compacted.origin.position == 4


# --- versions ----------------------------------------------------------------------------------------------


def test_every_version_is_complete_in_itself(store: Path) -> None:
    """Versions before and after a change are read side by side, and each stays when the others go."""
    assert pin(store, "query", 0) == 1
    refresh_pages(store, table([(1, "x")]), keep_versions=9).close()
    refresh_pages(store, table([(1, "y"), (2, "y")]), keep_versions=9).close()
    one, two = load_manifest(store / "v000001"), load_manifest(store / "v000003")
    for name in one.files:
        assert (store / "v000001" / name).stat().st_ino == (store / "v000003" / name).stat().st_ino
    assert two.base_pages == one.pages
    assert live(store, 1) == BASE
    assert live(store, 2) == but([(1, "v1")], [(1, "x")])
    shutil.rmtree(store / "v000001")
    shutil.rmtree(store / "v000002")
    assert verify(store) == []
    assert live(store) == but([(1, "v1"), (2, "v2")], [(1, "y"), (2, "y")])


def test_codes_are_shared_along_one_line(store: Path) -> None:
    versions = [PageMaster(store).parts]
    versions += [refresh_pages(store, table([(1, value)]), keep_versions=9).parts for value in "abc"]
    assert [len(parts.runs) for parts in versions] == [0, 1, 2, 3]
    assert all(shares_codes(one, two) for one in versions for two in versions)
    assert versions[0].base == PageMaster(store, 1).identity
    forked = Parts(versions[3].base, (*versions[2].runs, "another"))
    assert not shares_codes(forked, versions[3])
    assert shares_codes(forked, versions[2])
    assert not shares_codes(compact_pages(store).parts, versions[3])


def test_a_store_of_the_format_before_is_read_and_changed(store: Path) -> None:
    path = store / "v000001" / "manifest.json"
    raw, _ = read_sealed(path)
    new = ("base", "runs", "run_physical", "recoding", "dead_rows", "origin", "positions", "notice")
    path.write_bytes(sealed({**{k: v for k, v in raw.items() if k not in new}, "format_version": 3})[0])
    old = PageMaster(store)
    assert (old.runs, old.dead_rows, old.origin, old.base_identity) == ((), 0, Origin(), old.identity)
    assert live(store) == BASE
    refresh_pages(store, table([(1, "x")]))
    assert live(store) == but([(1, "v1")], [(1, "x")])


def test_many_runs_are_written_anew(store: Path) -> None:
    for i in range(3):
        assert refresh_pages(store, table([(i, "x")]), max_runs=3).notice == ""
    anew = refresh_pages(store, table([(3, "x")]), max_runs=3)
    assert (anew.runs, anew.dead_rows, anew.n_rows) == ((), 0, 102)
    assert anew.notice == "all rows were written anew: there would be 4 runs, more than max_runs=3"
    assert live(store) == but([(i, f"v{i}") for i in range(4)], [(i, "x") for i in range(4)])


def test_a_large_backlog_is_written_anew(store: Path) -> None:
    changed = table([(i, "x") for i in range(30)])
    kept = refresh_pages(store, changed, compact="never")
    assert (len(kept.runs), kept.dead_rows) == (1, 32)
    anew = refresh_pages(store, table([(40, "x")]))
    assert "33 would be dead" in anew.notice
    assert anew.runs == ()
    assert live(store) == but(
        [*((i, f"v{i}") for i in (*range(30), 40)), (7, "again"), (7, "again")], [(i, "x") for i in (*range(30), 40)]
    )


def test_without_room_for_codes_all_rows_are_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "r"
    build_pages(table([(i, "a") for i in (-FAR - 1, -5, 0, FAR - 3, FAR)]), path, on="k").close()
    anew = refresh_pages(path, table([(FAR, "x"), (-FAR - 1, "y")]), deletes=keys(0, FAR - 3), compact="never")
    assert anew.notice == "all rows were written anew: no codes are left above those of the base"
    assert live(path) == sorted([(FAR, "x"), (-FAR - 1, "y"), (-5, "a")], key=repr)


def test_codes_come_to_an_end(tmp_path: Path) -> None:
    """Above the largest key there is room for the code that no row has, and for few more."""
    path = tmp_path / "r"
    build_pages(table([(-5, "a"), (FAR - 3, "a")]), path, on="k").close()
    kept = refresh_pages(path, table([(-5, "b")]), compact="never")
    assert (len(kept.runs), kept.notice) == (1, "")
    assert joined(path, FAR, FAR - 1, FAR - 2, FAR - 3, -5) == [(-5, "b"), (FAR - 3, "a")]
    assert "no codes are left" in refresh_pages(path, table([(-5, "c")]), compact="never").notice
    assert joined(path, FAR, FAR - 1, FAR - 2, FAR - 3, -5) == [(-5, "c"), (FAR - 3, "a")]


def test_compacting_keeps_the_order_by_frequency(tmp_path: Path) -> None:
    path = tmp_path / "r"
    wanted = pa.table({"k": pa.array(range(50), pa.int64()), "v": ["x"] * 50})
    build_pages(wanted, path, on="k", page_rows=4, frequency=(np.arange(50), np.arange(50)[::-1] % 17)).close()
    before = [row[0] for row in _in_order(path)]
    refresh_pages(path, table([(before[10], "y"), (77, "new")]), deletes=keys(before[20]), compact="never").close()
    master = compact_pages(path)
    assert master.order == "frequency"
    assert [row[0] for row in _in_order(path)] == [*before[:20], *before[21:], 77]
    assert joined(path, 77, before[10], before[20]) == sorted([(77, "new"), (before[10], "y")])


def _in_order(path: Path) -> list[Row]:
    with LiveRows(PageMaster(path), 1 << 20) as rows:
        return _rows([pa.Table.from_batches([batch]) for batch in rows.all_but(np.empty(0, np.int64))])


def test_compacting_what_has_no_runs_does_nothing(store: Path) -> None:
    assert compact_pages(store).version == 1
    refresh_pages(store, table([(1, "x")]), source="s", position=1)
    compacted = compact_pages(store)
    assert (compacted.version, compacted.runs, compacted.dead_rows, compacted.n_rows) == (3, (), 0, 102)
    assert refresh_pages(store, table([(1, "x")]), source="s", position=1).version == 3


def test_more_changes_than_fit_memory(tmp_path: Path) -> None:
    path, text = tmp_path / "r", "x" * 100
    build_pages(table([(i, text) for i in range(20_000)]), path, on="k").close()
    changed = table([(i, f"{i}{text}") for i in range(0, 40_000, 2)])
    refresh_pages(path, changed, memory_limit=1 << 20, compact="never")
    assert live(path) == sorted([*_rows_of(changed), *((i, text) for i in range(1, 20_000, 2))], key=repr)
    compact_pages(path, memory_limit=1 << 20)
    assert live(path) == sorted([*_rows_of(changed), *((i, text) for i in range(1, 20_000, 2))], key=repr)
    with pytest.raises(ConfigError, match=r"one key has .* bytes of rows and changes"):
        refresh_pages(path, table([(1, f"{text}{i}") for i in range(4000)]), memory_limit=1 << 20)


def _rows_of(rows: pa.Table) -> list[Row]:
    return [tuple(row.values()) for row in rows.to_pylist()]


# --- others at the same time, disks that refuse ------------------------------------------------------------


def _add(path: Path, number: int) -> None:
    refresh_pages(path, table([(1000 + number, "x")]), source=f"s{number}", position=1, compact="never").close()


def test_two_refreshes_at_once_lose_nothing(store: Path) -> None:
    processes = [multiprocessing.get_context("spawn").Process(target=_add, args=(store, i)) for i in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert live(store) == but([], [(1000 + i, "x") for i in range(3)])
    assert len(PageMaster(store).runs) == 3


def test_a_build_meanwhile_is_not_overwritten(store: Path) -> None:
    def changes() -> Iterator[pa.RecordBatch]:
        build_pages(table([(1, "built")]), store, on="k", overwrite=True).close()
        yield from table([(2, "x")]).to_batches()

    source = pa.RecordBatchReader.from_batches(table([]).schema, changes())
    with pytest.raises(StoreError, match=r"version 2 of .* came into force while changes of version 1 were written"):
        refresh_pages(store, source)
    assert live(store) == [(1, "built")]


def test_without_hard_links_files_are_copied(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", refuse)
        with pytest.warns(SemiStreamWarning, match="cannot have second names") as said:
            refresh_pages(store, table([(1, "x")]), keep_versions=5)
    assert len(said) == 1
    names = load_manifest(store / "v000001").files
    assert all((store / "v000001" / name).stat().st_nlink == 1 for name in names)
    assert live(store, 1) == BASE
    assert live(store) == but([(1, "v1")], [(1, "x")])


def test_a_source_that_fails_changes_nothing(store: Path) -> None:
    def changes() -> Iterator[pa.RecordBatch]:
        yield from table([(2, "x")]).to_batches()
        raise OSError(errno.EIO, "Input/output error")

    source = pa.RecordBatchReader.from_batches(table([]).schema, changes())
    with pytest.raises(SemiStreamError, match=r"version 1 of .* stays in force after changes from orders"):
        refresh_pages(store, source, source="orders", position=1)
    assert versions_in(store) == [1]
    assert live(store) == BASE


@pytest.mark.parametrize("change", [lambda raw: raw[:-8], lambda raw: raw[:-1] + b"x"])
def test_damaged_codes_are_found(store: Path, change: Callable[[bytes], bytes]) -> None:
    refresh_pages(store, table([(1, "x")])).close()
    file = store / version_name(2) / CODES
    file.write_bytes(change(file.read_bytes()))
    assert any(CODES in line for line in verify(store))
    with pytest.raises(StoreError, match=CODES):
        joined(store, 1)


def test_damage_in_a_run_is_found(store: Path) -> None:
    master = refresh_pages(store, table([(1, "x")]))
    (name,) = (name for name in master.manifest.files if name.startswith("pages-") and "00000" not in name)
    file = store / version_name(2) / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert any(name in line for line in verify(store))
