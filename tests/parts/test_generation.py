"""Generations: what several joins have learnt, in one file; soft state that never changes a result."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

import semistream
from semistream.algorithms.registry import ALGORITHMS
from semistream.engine.join import SemiStreamJoin
from semistream.loops.resident import fill, resident_keys
from semistream.parts.generation import Generations, Seen
from semistream.testing import assert_same_rows, reference_join, split

SHARING = sorted(name for name, operator in ALGORITHMS.items() if operator.shares_cache)
N_ROWS = 6000
_LONG = 10_000.0


class _Clock:
    """A clock that stands still until it is told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def relation() -> pa.Table:
    """m:n keys with strings of all lengths and nulls, so that rows have long values to copy."""
    keys = np.concatenate([np.arange(N_ROWS) * 3, np.arange(200) * 3, np.arange(50) * 3])
    texts = [None if i % 11 == 0 else "x" * (i % 60) + str(i) for i in range(len(keys))]
    return pa.table({"k": keys, "a": keys * 7 + np.arange(len(keys)), "s": texts})


@pytest.fixture(scope="module")
def store(relation: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "r"
    semistream.build_pages(relation, path, on="k", page_rows=64)
    return path


def _stream(rows: int, seed: int = 1) -> pa.Table:
    ranks = np.minimum(np.random.default_rng(seed).zipf(1.3, rows), 4 * N_ROWS)
    return pa.table({"k": ranks * 7919 % (3 * N_ROWS + 60), "seq": np.arange(rows)})


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Files of a join are given back at the end of its test."""
    yield
    while _JOINS:
        _JOINS.pop().close()


_JOINS: list[SemiStreamJoin] = []


def _open(store: Path, algorithm: str, how: str = "left") -> SemiStreamJoin:
    join = semistream.open_join(algorithm, master=store, on="k", how=how, memory="500KB")
    _JOINS.append(join)
    join.start(_stream(1).schema)
    return join


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
@pytest.mark.parametrize("algorithm", SHARING)
def test_joins_that_share_are_exact_and_learn(
    algorithm: str, how: str, relation: pa.Table, store: Path, tmp_path: Path
) -> None:
    stream = _stream(24_000)
    joins = [_open(store, algorithm, how) for _ in range(2)]
    sharing = [Generations(tmp_path, "v1", 250_000, join.work.row_layout) for join in joins]
    output = []
    hits = []
    for turn, batch in enumerate(split(stream, 2000)):
        join, shared = joins[turn % 2], sharing[turn % 2]
        if shared.refresh():
            join.share(shared.current)
        before = join.stats.shared_hits
        output += [*join.push(batch), *join.drain()]
        hits.append(join.stats.shared_hits - before)
        shared.saw(batch.num_rows)
        with shared.building() as mine:
            if mine and turn % 3 == 0:
                shared.merge(join.loop.cache)
    expected = reference_join(stream, relation, "k", how)
    assert_same_rows(pa.Table.from_batches(output, schema=expected.schema), expected)
    assert hits[-1] > 0.2 * 2000
    assert sharing[0].built + sharing[1].built > 2
    assert all(join.stats.finished == join.stats.tuples_in for join in joins)
    files = [path for path in tmp_path.iterdir() if path.name.startswith("generation-")]
    assert len(files) == 1, "older generations are removed"
    assert files[0].stat().st_size <= 250_000


def test_generation_is_bounded_and_keeps_the_best(store: Path, tmp_path: Path) -> None:
    """When not all keys fit, those with the most requests a byte stay."""
    join = _open(store, "sweepjoin", "inner")
    shared = Generations(tmp_path, "v1", 120_000, join.work.row_layout)
    hot = pa.table({"k": np.repeat(np.arange(100) * 3, 50), "seq": np.arange(5000)})
    cold = pa.table({"k": np.arange(100, 4000) * 3, "seq": np.arange(3900)})
    for table in (hot, cold):
        for batch in split(table, 1000):
            list(join.push(batch))
        shared.saw(table.num_rows)
    shared.merge(join.loop.cache)
    assert shared.refresh()
    assert shared.current is not None
    assert shared.current.header.full
    assert shared.current.file_bytes <= 120_000
    join.shared = shared.current
    before = join.stats.shared_hits
    list(join.push(hot.to_batches()[0]))
    assert join.stats.shared_hits - before == hot.num_rows


def _task(join: SemiStreamJoin, shared: Generations, keys: npt.NDArray[np.int64]) -> Seen:
    """What a worker process does with a task, which takes as long as twenty builds, whatever these take here."""
    if shared.refresh():
        join.share(shared.current)
    before = join.stats.cache_hits, join.stats.shared_hits
    list(join.push(pa.record_batch({"k": keys, "seq": np.arange(len(keys))})))
    hits, shared_hits = join.stats.cache_hits - before[0], join.stats.shared_hits - before[1]
    seconds = 1.0 if shared.current is None else 20 * shared.current.header.seconds
    seen = Seen(len(keys), hits, shared_hits, seconds)
    shared.saw(len(keys), join.loop.cache, seen)
    if shared.is_due(join.loop.cache):
        with shared.building() as mine:
            assert mine
            shared.merge(join.loop.cache)
    return seen


def _asked(random: np.random.Generator, hot: int, rows: int = 12_000) -> npt.NDArray[np.int64]:
    """Keys of R, five in six of them among 600 of equal frequency that begin at `hot`, the others anywhere."""
    keys = np.where(random.random(rows) < 5 / 6, hot + random.integers(0, 600, rows), random.integers(0, N_ROWS, rows))
    return keys * 3


def test_at_rest_nothing_is_built_and_after_a_change_of_the_stream_it_is(store: Path, tmp_path: Path) -> None:
    join = semistream.open_join("sweepjoin", master=store, on="k", how="inner", memory="170KB")
    _JOINS.append(join)
    join.start(_stream(1).schema)
    shared = Generations(tmp_path, "v1", 250_000, join.work.row_layout)
    random = np.random.default_rng(5)
    for _ in range(30):
        warm = _task(join, shared, _asked(random, 0))
    assert shared.current is not None
    assert shared.current.header.full
    built = shared.built
    for _ in range(24):
        seen = _task(join, shared, _asked(random, 0))
    assert shared.built == built, "the same keys are hot"
    assert seen.hits > 0.85 * seen.tuples
    first = _task(join, shared, _asked(random, 4000))
    assert first.shared_hits < 0.5 * warm.shared_hits
    for _ in range(8):
        seen = _task(join, shared, _asked(random, 4000))
    assert shared.built > built
    assert seen.hits > 0.85 * seen.tuples
    assert seen.shared_hits > 0.8 * warm.shared_hits


def test_the_private_cache_keeps_what_the_generation_lacks(relation: pa.Table, store: Path, tmp_path: Path) -> None:
    """When the generation changes no key is forgotten, none is kept twice, and nothing is read again."""
    join = _open(store, "sweepjoin")
    shared = Generations(tmp_path, "v1", 120_000, join.work.row_layout)
    stream = pa.table({"k": np.arange(1500) * 3, "seq": np.arange(1500)})
    list(join.push(stream.to_batches()[0]))
    shared.saw(stream.num_rows)
    private = join.loop.cache
    known = private.keys
    shared.merge(private)
    assert shared.refresh()
    assert shared.current is not None
    assert 0 < shared.current.header.keys < known
    pages, evictions = join.stats.pages_read, private.evictions
    join.share(shared.current)
    assert private.keys + shared.current.header.keys == known
    assert private.evictions == evictions
    output = list(join.push(stream.to_batches()[0]))
    assert join.stats.pages_read == pages
    assert_same_rows(pa.Table.from_batches(output), reference_join(stream, relation, "k", "left"))
    # What was given away has made room, and the rows of those who stayed are in their places.
    other = pa.table({"k": np.arange(1500, 3000) * 3, "seq": np.arange(1500)})
    list(join.push(other.to_batches()[0]))
    both = pa.concat_tables([stream, other])
    output = [*join.push(both.to_batches()[0]), *join.push(both.to_batches()[1])]
    assert_same_rows(pa.Table.from_batches(output), reference_join(both, relation, "k", "left"))


def test_a_copy_that_finds_no_room_has_whole_keys_only(relation: pa.Table, store: Path, tmp_path: Path) -> None:
    """Rows that come out larger than the mean: the file ends before the keys do, in the middle of one."""
    join = _open(store, "sweepjoin")
    stream = pa.table({"k": np.arange(900) * 3, "seq": np.arange(900)})
    list(join.push(stream.to_batches()[0]))
    cut = []
    for limit in range(90_000, 90_000 + 40 * 4096, 4096):
        shared = Generations(tmp_path / str(limit), "v1", limit, join.work.row_layout)
        shared._row_bytes = lambda _: 1.0  # type: ignore[method-assign]
        shared.saw(900)
        shared.merge(join.loop.cache)
        assert shared.refresh(), shared.last_failure
        assert shared.current is not None
        cache = shared.current.cache
        cut.append(shared.current.header.keys < join.loop.cache.keys)
        join.shared = shared.current
        output = list(join.push(stream.to_batches()[0]))
        assert_same_rows(pa.Table.from_batches(output), reference_join(stream, relation, "k", "left"))
        assert cache.max_keys >= shared.current.header.keys
    assert any(cut)


def test_a_task_waits_for_its_own_cache_only(store: Path, tmp_path: Path) -> None:
    """The private cache is copied first; then the next task may change it, while the old generation is copied."""
    join = _open(store, "sweepjoin")
    shared = Generations(tmp_path, "v1", 250_000, join.work.row_layout)
    for keys in (np.arange(500), np.arange(500, 900)):
        list(join.push(pa.record_batch({"k": keys * 3, "seq": keys})))
        shared.saw(len(keys))
        steps: list[str] = []
        shared.merge(join.loop.cache, lambda s=steps: s.append("released"), lambda s=steps: s.append("copied"))
        if shared.refresh():
            join.share(shared.current)
    assert steps[0] == "copied"
    assert "copied" in steps[steps.index("released") :]


def test_all_of_r_fits(relation: pa.Table, store: Path, tmp_path: Path) -> None:
    """A complete generation answers for absent keys as well."""
    join = _open(store, "sweepjoin")
    shared = Generations(tmp_path, "v1", 4_000_000, join.work.row_layout)
    shared.load(resident_keys(join.plan.r.rows), lambda cache: fill(join.loop, cache))
    shared.refresh()
    join.shared = shared.current
    assert join.shared is not None
    assert join.shared.complete
    stream = _stream(5000)
    pages = join.stats.pages_read
    output = [rows for batch in split(stream, 700) for rows in join.push(batch)]
    assert_same_rows(pa.Table.from_batches(output), reference_join(stream, relation, "k", "left"))
    assert join.stats.pages_read == pages
    assert not shared.is_due(join.loop.cache)


def test_rows_of_many_columns(tmp_path: Path) -> None:
    """However wide a row is, the cache is shared and the query goes on."""
    wide = pa.table({"k": np.arange(50), **{f"c{i}": pa.array([None, *range(49)]) for i in range(1200)}})
    stream = pa.table({"k": np.arange(60) % 55})
    with semistream.open_join("sweepjoin", master=wide, on="k", how="left", memory="3MB") as join:
        join.start(stream.schema)
        list(join.push(stream.to_batches()[0]))
        shared = Generations(tmp_path, "v1", 3_000_000, join.work.row_layout)
        shared.load(resident_keys(join.plan.r.rows), lambda cache: fill(join.loop, cache))
        assert shared.refresh()
        join.shared = shared.current
        output = list(join.push(stream.to_batches()[0]))
    assert_same_rows(pa.Table.from_batches(output), reference_join(stream, wide, "k", "left"))


def test_only_one_builds(store: Path, tmp_path: Path) -> None:
    join = _open(store, "sweepjoin")
    first, second = (Generations(tmp_path, "v1", 250_000, join.work.row_layout) for _ in range(2))
    with first.building() as mine:
        assert mine
        with second.building() as also_mine:
            assert not also_mine
    list(join.push(split(_stream(2000), 2000)[0]))
    first.saw(2000)
    with first.building():
        first.merge(join.loop.cache)
    # The second has not seen the new generation: what it would build lacks the keys of that one.
    with second.building() as mine:
        assert not mine


def test_folder_that_was_removed_is_made_again(store: Path, tmp_path: Path) -> None:
    """A process that uses a newer version of R removes the older one's folder while another still works with it."""
    join = _open(store, "sweepjoin")
    list(join.push(split(_stream(2000), 2000)[0]))
    shared = Generations(tmp_path / "old", "v1", 250_000, join.work.row_layout)
    shared.saw(2000)
    (tmp_path / "old").rmdir()
    with shared.building() as mine:
        assert mine
        shared.merge(join.loop.cache)
    assert shared.refresh()


def test_foreign_and_damaged_files_are_passed_over_and_replaced(store: Path, tmp_path: Path) -> None:
    join = _open(store, "sweepjoin")
    list(join.push(split(_stream(2000), 2000)[0]))
    theirs = Generations(tmp_path, "another version of R", 250_000, join.work.row_layout)
    theirs.saw(2000)
    theirs.merge(join.loop.cache)
    clock = _Clock()
    ours = Generations(tmp_path, "v1", 250_000, join.work.row_layout, clock)
    assert not ours.refresh()
    (tmp_path / "generation-000009").write_bytes(json.dumps({"number": 9}).encode().ljust(8192, b"\0"))
    clock.now += _LONG
    assert not ours.refresh()
    (tmp_path / "generation-000010").write_bytes(b"short")
    clock.now += _LONG
    assert not ours.refresh()
    assert ours.current is None
    assert ours.failures == 3
    clock.now += _LONG
    ours.saw(2000)
    with ours.building() as mine:
        assert mine
        ours.merge(join.loop.cache)
    assert ours.refresh()
    assert ours.current is not None
    assert [path.name for path in tmp_path.glob("generation-*")] == ["generation-000011"]


def test_a_failure_is_noted_and_puts_the_cache_off(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk without room: tried again after ever longer pauses, until it has room."""
    join = _open(store, "sweepjoin")
    list(join.push(split(_stream(2000), 2000)[0]))
    clock = _Clock()
    shared = Generations(tmp_path, "v1", 250_000, join.work.row_layout, clock)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    tries = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        while clock.now < 1000:
            shared.saw(100)
            if shared.is_due(join.loop.cache):
                with shared.building() as mine:
                    assert mine
                    shared.merge(join.loop.cache)
                tries.append(clock.now)
            clock.now += 1
    assert tries == [0, 2, 6, 14, 30, 62, 126, 254, 510]
    assert shared.failures == len(tries)
    assert shared.last_failure is not None
    assert "No space left on device" in shared.last_failure
    assert [path.name for path in tmp_path.iterdir()] == ["build.lock"]
    clock.now += _LONG
    shared.merge(join.loop.cache)
    assert shared.refresh()
    assert shared.failures == len(tries)
    (tmp_path / "generation-000009").write_bytes(b"short")
    assert not shared.refresh()
    clock.now += 2
    with shared.building() as mine:
        assert mine, "pauses begin anew"


@pytest.mark.parametrize("call", ["preadv", "pwrite", "ftruncate", "rename", "open", "scandir", "mkdir"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EACCES, errno.ENOENT])
def test_no_failing_call_reaches_the_join(
    call: str, number: int, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    join = _open(store, "sweepjoin")
    list(join.push(split(_stream(2000), 2000)[0]))

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    def work(shared: Generations) -> None:
        shared.refresh()
        shared.saw(2000)
        if shared.is_due(join.loop.cache):
            with shared.building() as mine:
                if mine:
                    shared.merge(join.loop.cache)

    clock = _Clock()
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        broken = Generations(tmp_path / "new", "v1", 250_000, join.work.row_layout, clock)
        work(broken)
        clock.now += _LONG
        work(broken)
    assert broken.failures > 0 or (call, number) == ("scandir", errno.ENOENT)
    assert broken.current is None or call == "scandir"
    clock.now += _LONG
    work(broken)
    assert broken.refresh() or broken.current is not None, broken.last_failure


def test_a_file_in_the_way_of_the_folder(store: Path, tmp_path: Path) -> None:
    join = _open(store, "sweepjoin")
    (tmp_path / "file").write_bytes(b"")
    shared = Generations(tmp_path / "file" / "cache", "v1", 250_000, join.work.row_layout)
    assert shared.failures == 1
    assert not shared.refresh()
    shared.saw(2000)
    assert not shared.is_due(join.loop.cache)
    with shared.building() as mine:
        assert not mine


@pytest.mark.parametrize("before", ["refresh", "saw", "is_due", "building", "merge", "end"])
def test_the_folder_may_vanish_at_any_time(before: str, store: Path, tmp_path: Path) -> None:
    join = _open(store, "sweepjoin")
    list(join.push(split(_stream(2000), 2000)[0]))
    clock = _Clock()
    folder = tmp_path / "cache"
    shared = Generations(folder, "v1", 250_000, join.work.row_layout, clock)

    def step(name: str) -> None:
        if name == before:
            shutil.rmtree(folder)

    step("refresh")
    shared.refresh()
    step("saw")
    shared.saw(2000)
    step("is_due")
    assert shared.is_due(join.loop.cache)
    step("building")
    with shared.building() as mine:
        assert mine
        step("merge")
        shared.merge(join.loop.cache)
    step("end")
    assert shared.refresh() == (before not in ("merge", "end"))
    assert shared.failures == (before == "merge")


def test_a_folder_that_was_removed_and_made_again(store: Path, tmp_path: Path) -> None:
    """Numbers begin anew with a new folder; a process that maps a higher number still finds what is there."""
    join = _open(store, "sweepjoin")
    list(join.push(split(_stream(2000), 2000)[0]))
    folder = tmp_path / "cache"
    first, second = (Generations(folder, "v1", 250_000, join.work.row_layout) for _ in range(2))
    for shared in (first, first, second):
        shared.saw(2000)
        if shared is second:
            shutil.rmtree(folder)
        with shared.building() as mine:
            assert mine
            shared.merge(join.loop.cache)
        assert shared.refresh()
    assert [first.current and first.current.number, second.current and second.current.number] == [2, 1]
    assert first.refresh()
    assert first.current is not None
    assert first.current.number == 1


_PROCESS = """
import os, sys, pathlib, ctypes
import numpy as np, pyarrow as pa, semistream
from semistream.loops.resident import fill, resident_keys
from semistream.parts.generation import Generations
store, folder = sys.argv[1:3]
join = semistream.open_join("sweepjoin", master=store, on="k", how="inner", memory="500KB")
random = np.random.default_rng(os.getpid())
def batch():
    return pa.record_batch({"k": pa.array(random.zipf(1.3, 3000) % 6000 * 3)})
join.start(batch().schema)
def generations():
    return Generations(pathlib.Path(folder), "v1", 250_000, join.work.row_layout)
"""


def _process(store: Path, folder: Path, program: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _PROCESS + program, str(store), str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_what_a_killed_builder_left_is_removed_by_the_next(store: Path, tmp_path: Path) -> None:
    child = _process(store, tmp_path, "with (g := generations()).building(): g.load(9000, lambda cache: os._exit(9))")
    child.communicate()
    assert child.returncode == 9
    assert len(list(tmp_path.glob(".generation-*"))) == 1
    join = _open(store, "sweepjoin")
    shared = Generations(tmp_path, "v1", 250_000, join.work.row_layout)
    with shared.building() as mine:
        assert mine
        assert not list(tmp_path.glob(".generation-*"))


def test_processes_that_build_at_the_same_time(relation: pa.Table, store: Path, tmp_path: Path) -> None:
    program = """
rows_of = np.bincount(np.concatenate([np.arange(6000), np.arange(200), np.arange(50)]))
shared = generations()
built = 0
for turn in range(25):
    if shared.refresh():
        join.shared = shared.current
    now = batch()
    out = sum(out.num_rows for out in [*join.push(now), *join.drain()])
    assert out == rows_of[now["k"].to_numpy() // 3].sum()
    shared.saw(now.num_rows)
    with shared.building() as mine:
        if mine:
            built += 1
            shared.merge(join.loop.cache)
assert shared.failures == 0, shared.last_failure
print(built)
"""
    children = [_process(store, tmp_path, program) for _ in range(2)]
    outputs = [child.communicate() for child in children]
    assert [child.returncode for child in children] == [0, 0], outputs
    assert sum(int(built) for built, _ in outputs) > 0
    assert len(list(tmp_path.glob("generation-*"))) == 1
    assert not list(tmp_path.glob(".generation-*"))


def test_a_folder_that_may_not_be_written(store: Path, tmp_path: Path) -> None:
    """Root may write everywhere: the process gives that right up first, as it is the file's mode that counts."""
    program = """
libc = ctypes.CDLL(None)
header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
assert libc.syscall(126 if os.uname().machine == "x86_64" else 91, header, data) == 0
os.chmod(folder, 0o555)
shared = generations()
rows = sum(out.num_rows for out in join.push(batch()))
assert rows >= 3000
shared.saw(3000)
assert shared.is_due(join.loop.cache)
with shared.building() as mine:
    assert not mine
print(shared.failures, shared.last_failure)
"""
    child = _process(store, tmp_path, program)
    out, err = child.communicate()
    tmp_path.chmod(0o755)
    assert child.returncode == 0, err
    assert out.startswith("1 locking")
    assert "Permission denied" in out


def test_another_process_finds_the_keys(store: Path, tmp_path: Path) -> None:
    join = _open(store, "sweepjoin")
    stream = _stream(4000)
    list(join.push(split(stream, 4000)[0]))
    shared = Generations(tmp_path, "v1", 250_000, join.work.row_layout)
    shared.saw(4000)
    shared.merge(join.loop.cache)
    program = f"""
import pyarrow as pa, semistream
from semistream.parts.generation import Generations
join = semistream.open_join("sweepjoin", master={str(store)!r}, on="k", how="left", memory="500KB")
batch = pa.record_batch({{"k": pa.array({stream["k"].to_pylist()[:500]}), "seq": pa.array(range(500))}})
join.start(batch.schema)
shared = Generations(__import__("pathlib").Path({str(tmp_path)!r}), "v1", 250_000, join.work.row_layout)
assert shared.refresh()
join.shared = shared.current
rows = sum(out.num_rows for out in join.push(batch))
print(join.stats.shared_hits)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 500
    shared.refresh()
    assert shared.current is not None
    assert shared.current.asked == 500


def test_changes_of_r_leave_generations_in_use(relation: pa.Table, store: Path, tmp_path: Path) -> None:
    """Rows are found under codes that no later change gives to others; only `complete` is a word about all of R."""
    join = _open(store, "sweepjoin")
    list(join.push(_stream(20_000).to_batches()[0]))
    made = Generations(tmp_path, "r", 1 << 20, join.row_layout, runs=("a", "b"))
    made.saw(20_000, join.loop.cache)
    made.merge(join.loop.cache)
    for runs, fits in [(("a",), True), (("a", "b"), True), (("a", "b", "c"), True), ((), True), (("a", "c"), False)]:
        other = Generations(tmp_path, "r", 1 << 20, join.row_layout, runs=runs)
        assert other.refresh() is fits, runs
        assert (other.failures == 0) is fits


def test_a_generation_with_all_of_r_is_no_longer_all_after_a_change(
    relation: pa.Table, store: Path, tmp_path: Path
) -> None:
    join = _open(store, "sweepjoin")
    made = Generations(tmp_path, "r", 4 << 20, join.row_layout, runs=("a",))
    assert made.load(resident_keys(relation.num_rows), lambda cache: fill(join.loop, cache))
    for runs, complete in [((), True), (("a",), True), (("a", "b"), False)]:
        other = Generations(tmp_path, "r", 4 << 20, join.row_layout, runs=runs)
        assert other.refresh()
        assert other.current is not None
        assert other.current.complete is other.current.cache.complete is complete
    assert made.refresh()
    assert made.current is not None
    assert made.current.complete
    made.saw(10)
    assert not made.is_due(join.loop.cache)
    made.follow(("a", "b"))
    assert not made.current.complete
    assert made.current.is_outgrown
    assert made.is_due(join.loop.cache)


def test_changes_that_fork_are_kept_apart(relation: pa.Table, store: Path, tmp_path: Path) -> None:
    """One code may stand for two keys then: what was found under the other changes must not be asked."""
    join = _open(store, "sweepjoin")
    list(join.push(_stream(20_000).to_batches()[0]))
    made = Generations(tmp_path, "r", 1 << 20, join.row_layout, runs=("a", "b"))
    made.saw(20_000, join.loop.cache)
    made.merge(join.loop.cache)
    used, ready = (Generations(tmp_path, "r", 1 << 20, join.row_layout, runs=("a",)) for _ in range(2))
    assert used.refresh()
    used.follow(("a", "c"))
    assert used.current is None
    ready.look()
    ready.follow(("a", "c"))
    assert not ready.adopt()
    assert ready.current is None


def test_a_generation_that_was_mapped_before_a_change(relation: pa.Table, store: Path, tmp_path: Path) -> None:
    join = _open(store, "sweepjoin")
    made = Generations(tmp_path, "r", 4 << 20, join.row_layout, runs=("a",))
    assert made.load(resident_keys(relation.num_rows), lambda cache: fill(join.loop, cache))
    made.look()
    made.follow(("a", "b"))
    assert made.adopt()
    assert made.current is not None
    assert not made.current.complete
