"""A version stays while somebody uses it: an open reader, or a batch of a query that may have to be replayed."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from contextlib import ExitStack
from dataclasses import asdict
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest

from semistream.errors import ConfigError, StoreError
from semistream.master.base import aligned_buffer
from semistream.master.build import build_pages
from semistream.master.format import current_version, load_identity, version_name, version_of, versions_in
from semistream.master.leases import LOCK, QUERIES, hold, pin, pinned_versions, store_lock, unpin_before
from semistream.master.open import open_master
from semistream.master.pages import PageMaster
from semistream.sealed import read_sealed, sealed

# Real processes, forked from one that has imported everything and started no thread.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["semistream.master.build"])


def publish(store: Path, rows: int = 3, keep: int = 0) -> int:
    table = pa.table({"k": list(range(rows)), "v": list(range(rows))})
    return build_pages(table, store, on="k", overwrite=True, keep_versions=keep).version


@pytest.fixture
def store(tmp_path: Path) -> Path:
    publish(tmp_path / "r")
    return tmp_path / "r"


def pins(store: Path) -> list[str]:
    return sorted(str(file.relative_to(store / QUERIES)) for file in (store / QUERIES).rglob("*"))


def test_a_pin_keeps_its_answer(store: Path) -> None:
    assert pin(store, "query", 7) == 1
    assert publish(store) == 2
    assert [pin(store, "query", 7), pin(str(store), "query", 8), pin(store, "other", 7)] == [1, 2, 2]
    assert read_sealed(store / QUERIES / "query" / "7.json")[0] == asdict(load_identity(store / version_name(1)))
    assert pinned_versions(store) == {1, 2}
    assert pins(store) == ["other", "other/7.json", "query", "query/7.json", "query/8.json"]


def test_a_version_goes_when_its_last_user_does(store: Path) -> None:
    pin(store, "query", 1)
    master: PageMaster | None = PageMaster(store)
    assert master is not None
    reader = master.open(["v"])
    for _ in range(2):
        publish(store)
    assert versions_in(store) == [1, 3]
    unpin_before(store, "query", 1)
    publish(store)
    assert versions_in(store) == [1, 4]
    unpin_before(store, "query", 2)
    publish(store)
    assert versions_in(store) == [1, 5], "the reader is still open"
    del master
    publish(store)
    assert versions_in(store) == [1, 6], "the reader outlives its master"
    reader.close()
    publish(store)
    assert versions_in(store) == [7]
    publish(store, keep=3)
    publish(store, keep=3)
    assert versions_in(store) == [7, 8, 9]


def test_a_master_may_be_opened_for_reading_whenever(store: Path) -> None:
    master = PageMaster(store)
    publish(store)
    assert master.n_rows == 3
    with master.open(["v"]) as reader:
        assert reader.n_pages == 1
    assert open_master(store).version == 2
    assert open_master(store, version=1).version == 1


def test_unpinning(store: Path) -> None:
    for batch in (0, 2, 9, 10):
        pin(store, "query", batch)
    unpin_before(store, "query", 10)
    assert pins(store) == ["query", "query/10.json"]
    unpin_before(store, "query", None)
    unpin_before(store, "query", None)
    unpin_before(store, "nobody", 3)
    assert pins(store) == []


def test_names_that_are_no_file_names(store: Path) -> None:
    for owner in ("..", "a/b", "../../x", "a b", ".new-1", "é", "a%2Fb"):
        assert pin(store, owner, 0) == 1
    assert len(list((store / QUERIES).iterdir())) == 7
    assert sorted(p.name for p in store.parent.iterdir()) == ["r"]
    for owner, batch in (("", 0), ("x" * 300, 0), ("query", -1)):
        with pytest.raises(ConfigError):
            pin(store, owner, batch)


def test_a_version_that_was_lost(store: Path) -> None:
    pin(store, "query", 3)
    publish(store)
    shutil.rmtree(store / version_name(1))
    with pytest.raises(StoreError, match=r"batch 3 of 'query' uses version 1 .* gone; it keeps \[2\]"):
        pin(store, "query", 3)
    assert pin(store, "query", 4) == 2


def test_a_pin_does_not_take_another_store_for_its_own(store: Path) -> None:
    """The same path, the same rows and the same number of the version, but built anew."""
    pin(store, "query", 3)
    kept = store / QUERIES
    kept.rename(store.parent / "kept")
    shutil.rmtree(store)
    publish(store)
    (store.parent / "kept").rename(kept)
    with pytest.raises(StoreError, match=r"batch 3 of 'query' uses version 1 .* replaced.* start the query anew"):
        pin(store, "query", 3)
    assert pin(store, "query", 4) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b'{"version": 1}',
        b"\0",
        sealed({})[0],
        sealed([])[0],
        sealed({"uuid": "u", "checksum": "c", "version": "x"})[0],
    ],
)
def test_a_pin_that_cannot_be_read(store: Path, content: bytes) -> None:
    pin(store, "query", 3)
    file = store / QUERIES / "query" / "3.json"
    file.write_bytes(content)
    with pytest.raises(StoreError, match=r"3\.json does not name a version"):
        pin(store, "query", 3)
    publish(store)
    assert versions_in(store) == [1, 2], "any version may be the one it meant"
    file.unlink()
    publish(store)
    assert versions_in(store) == [3]


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no page store"):
        pin(tmp_path / "absent", "query", 0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="no page store"):
        pin(tmp_path / "empty", "query", 0)
    assert list((tmp_path / "empty").iterdir()) == []


def test_what_a_killed_process_left(store: Path) -> None:
    pin(store, "query", 0)
    (store / QUERIES / "query" / ".new-dead").write_text('{"ver')
    pin(store, "query", 1)
    assert pins(store) == ["query", "query/0.json", "query/1.json"]


def test_a_pin_that_may_not_be_on_disk_yet(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer was killed between the link and the sync: whoever finds it sees to that."""
    synced: list[str] = []
    monkeypatch.setattr("semistream.master.leases.sync", lambda path: synced.append(path.name))
    pin(store, "query", 0)
    assert synced == ["query"]
    pin(store, "query", 0)
    assert synced == ["query"]
    os.link(store / QUERIES / "query" / "0.json", store / QUERIES / "query" / ".new-dead")
    pin(store, "query", 0)
    assert synced == ["query"] * 2
    pin(store, "query", 1)
    assert synced == ["query"] * 4, "before the other name is removed, and for the new pin"
    pin(store, "query", 0)
    assert synced == ["query"] * 4


def test_a_lock_whose_file_is_removed_while_others_wait(store: Path) -> None:
    """Two processes that hold a lock must hold the same one."""
    done: list[int] = []
    other = Thread(target=lambda: done.append(pin(store, "query", 0)))

    def wait_until_it_waits() -> None:
        inode = f":{(store / LOCK).stat().st_ino} "
        while other.is_alive():
            if any("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines()):
                return
            time.sleep(0.01)

    with ExitStack() as second:
        with store_lock(store):
            other.start()
            wait_until_it_waits()
            (store / LOCK).unlink()
            second.enter_context(store_lock(store))
        wait_until_it_waits()
        assert done == []
    other.join(60)
    assert done == [1]


def test_a_version_that_never_came_into_force(store: Path) -> None:
    """A build that was killed between its two renames."""
    shutil.copytree(store / version_name(1), store / version_name(2))
    assert publish(store, rows=5, keep=1) == 2
    assert versions_in(store) == [1, 2]
    assert PageMaster(store).n_rows == 5


@pytest.mark.parametrize("damage", ["", "v000009", None])
def test_building_again_mends_a_store(store: Path, damage: str | None) -> None:
    (store / "CURRENT").unlink()
    if damage is not None:
        (store / "CURRENT").write_text(damage)
    publish(store, rows=5)
    assert PageMaster(store).n_rows == 5


TURNS = 40


def _publisher(store: Path, start: Barrier, stop: Event, done: Any) -> None:
    start.wait(120)
    count = 0
    while count < TURNS or not stop.is_set():
        publish(store, rows=count % 5 + 1)
        count += 1
    done.put({})


def _reader(store: Path, start: Barrier, stop: Event, done: Any) -> None:
    """Every version that could be opened must be whole, and stay so while it is open."""
    start.wait(120)
    while not stop.is_set():
        lease = hold(store)
        master = PageMaster(store, version=version_of(lease.folder))
        with master.open(["v"]) as reader:
            assert reader.read(0, 1, aligned_buffer(reader.buffer_bytes(1))).n_rows == master.n_rows
            assert lease.folder.is_dir()
        lease.close()
    done.put({})


def _pinner(store: Path, start: Barrier, stop: Event, done: Any) -> None:
    """Two of these ask for the same batches at once."""
    start.wait(120)
    answers = {}
    first = current_version(store)
    for batch in range(TURNS):
        if batch == TURNS // 2:
            # However slow the publisher is, some of the batches come after it.
            until = time.monotonic() + 60
            while current_version(store) == first and time.monotonic() < until:
                time.sleep(0.01)
        answers[batch] = pin(store, "query", batch)
        with PageMaster(store, version=answers[batch]).open(["v"]) as reader:
            assert reader.read(0, 1, aligned_buffer(reader.buffer_bytes(1))).n_rows > 0
    done.put(answers)


def test_readers_pins_and_builds_at_once(store: Path) -> None:
    jobs = [_pinner, _pinner, _publisher, _reader]
    start, stop, done = PROCESSES.Barrier(len(jobs)), PROCESSES.Event(), PROCESSES.Queue()
    processes = [PROCESSES.Process(target=job, args=(store, start, stop, done)) for job in jobs]
    for process in processes:
        process.start()
    for process in processes[:2]:
        process.join(120)
    stop.set()
    answers = [answer for _ in jobs if (answer := done.get(timeout=60))]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * len(jobs)
    assert answers[0] == answers[1], "two answers for one batch"
    assert len(answers[0]) == TURNS
    assert len(set(answers[0].values())) > 1, "no version came into force meanwhile"
    assert set(answers[0].values()) <= set(versions_in(store)), "a pinned version was removed"
    unpin_before(store, "query", None)
    last = publish(store)
    assert versions_in(store) == [last]
    assert sorted(p.name for p in store.iterdir()) == [LOCK, "CURRENT", QUERIES, version_name(last)]


def _holds(store: Path, ready: Event) -> None:
    master = PageMaster(store)
    ready.set()
    time.sleep(600)
    del master


def test_a_lease_ends_with_its_process(store: Path) -> None:
    ready = PROCESSES.Event()
    process = PROCESSES.Process(target=_holds, args=(store, ready))
    process.start()
    assert ready.wait(60)
    publish(store)
    assert versions_in(store) == [1, 2]
    process.kill()
    process.join()
    publish(store)
    assert versions_in(store) == [3]
