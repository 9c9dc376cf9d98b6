"""Generations built beside the tasks: no task waits longer than it must, and no end of a process harms anything."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.engine.join import SemiStreamJoin
from semistream.kernels import generation as kernel
from semistream.loops.resident import fill, resident_keys
from semistream.parts.generation import Generations
from semistream.parts.upkeep import Upkeep

N_ROWS = 20_000
LIMIT = 250_000
_LONG = 30.0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "r"
    semistream.build_pages(pa.table({"k": np.arange(N_ROWS), "v": np.arange(N_ROWS) * 7}), path, on="k", page_rows=64)
    return path


@pytest.fixture
def join(store: Path) -> Iterator[SemiStreamJoin]:
    with semistream.open_join("sweepjoin", master=store, on="k", how="left", memory="300KB") as opened:
        opened.start(_batch(0).schema)
        yield opened


def _batch(start: int) -> pa.RecordBatch:
    return pa.record_batch({"k": pa.array(np.arange(start, start + 800))})


@pytest.fixture
def upkeep(join: SemiStreamJoin, tmp_path: Path) -> Iterator[Upkeep]:
    made = Upkeep(Generations(tmp_path, "v1", LIMIT, join.work.row_layout))
    yield made
    made.close()


def _learn(join: SemiStreamJoin, upkeep: Upkeep, start: int = 0) -> Any:
    """The rows of one task, and its private cache."""
    output = [*join.push(_batch(start)), *join.drain()]
    assert pa.Table.from_batches(output)["v"].to_pylist() == [7 * key for key in range(start, start + 800)]
    upkeep.generations.saw(800)
    return join.loop.cache


class _Gate:
    """Holds a kernel up: at its first call, until it is told to go on."""

    def __init__(self, kernel_of: Callable[..., Any]) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        self._kernel = kernel_of

    def __call__(self, *arguments: Any) -> Any:
        self.reached.set()
        assert self.open.wait(_LONG)
        return self._kernel(*arguments)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Gate]:
    made = _Gate(kernel.copy_keys)
    monkeypatch.setattr(kernel, "copy_keys", made)
    yield made
    made.open.set()


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_built_is_in_use_from_the_next_task_on(join: SemiStreamJoin, upkeep: Upkeep, tmp_path: Path) -> None:
    assert not upkeep.adopt()
    upkeep.look(_learn(join, upkeep))
    upkeep.wait()
    assert upkeep.adopt()
    assert upkeep.generations.current is not None
    assert not upkeep.adopt()
    join.share(upkeep.generations.current)
    before = join.stats.shared_hits
    _learn(join, upkeep)
    assert join.stats.shared_hits - before == 800
    assert _names(tmp_path) == ["build.lock", "generation-000001"]
    assert upkeep.generations.built == 1
    assert upkeep.generations.seconds > 0


def test_a_task_may_not_change_the_cache_that_is_copied(
    join: SemiStreamJoin, upkeep: Upkeep, gate: _Gate, tmp_path: Path
) -> None:
    upkeep.look(_learn(join, upkeep))
    assert gate.reached.wait(_LONG)
    task = threading.Thread(target=upkeep.free)
    task.start()
    assert upkeep.is_busy
    assert not upkeep.adopt(), "the files are the thread's"
    upkeep.look(join.loop.cache)  # type: ignore[arg-type]
    assert task.is_alive()
    gate.open.set()
    task.join(_LONG)
    assert not task.is_alive()
    upkeep.wait()
    assert upkeep.adopt()
    assert _names(tmp_path) == ["build.lock", "generation-000001"]


def test_closing_while_building(join: SemiStreamJoin, upkeep: Upkeep, gate: _Gate, tmp_path: Path) -> None:
    """What is not ready is given up, without a trace."""
    upkeep.look(_learn(join, upkeep))
    assert gate.reached.wait(_LONG)
    closing = threading.Thread(target=upkeep.close)
    closing.start()
    assert upkeep._given_up.wait(_LONG)
    gate.open.set()
    closing.join(_LONG)
    assert not closing.is_alive()
    assert not upkeep.is_busy
    assert _names(tmp_path) == ["build.lock"]
    assert upkeep.generations.failures == 0


def test_others_generations_are_verified_beside_the_tasks(join: SemiStreamJoin, upkeep: Upkeep, tmp_path: Path) -> None:
    private = _learn(join, upkeep)
    other = Generations(tmp_path, "v1", LIMIT, join.work.row_layout)
    other.saw(800)
    other.merge(private)
    assert upkeep.adopt(), "whoever has none looks at once"
    assert other.refresh()
    other.saw(800)
    other.merge(private)
    assert not upkeep.adopt()
    upkeep.look(private)
    upkeep.wait()
    assert upkeep.adopt()
    assert upkeep.generations.current is not None
    assert upkeep.generations.current.number == 2
    assert not upkeep.generations.is_outdated


def test_all_of_r(join: SemiStreamJoin, tmp_path: Path) -> None:
    upkeep = Upkeep(Generations(tmp_path, "v1", 10 * LIMIT, join.work.row_layout))

    def load(check: Callable[[], None]) -> bool:
        keys = resident_keys(join.plan.r.rows)
        return upkeep.generations.load(keys, lambda cache: fill(join.loop, cache, check))

    upkeep.look(_learn(join, upkeep), load)
    upkeep.free()
    assert not upkeep.is_busy or upkeep.generations.built == 1
    upkeep.wait()
    assert upkeep.adopt()
    assert upkeep.generations.current is not None
    assert upkeep.generations.current.complete
    join.share(upkeep.generations.current)
    _learn(join, upkeep, 1000)


def test_giving_up_a_load(join: SemiStreamJoin, upkeep: Upkeep, tmp_path: Path) -> None:
    def load(check: Callable[[], None]) -> bool:
        upkeep._given_up.set()
        return upkeep.generations.load(9000, lambda cache: fill(join.loop, cache, check))

    upkeep.look(_learn(join, upkeep), load)
    upkeep.wait()
    assert _names(tmp_path) == ["build.lock"]
    assert upkeep.generations.failures == 0


@pytest.mark.parametrize("error", [MemoryError("no more"), OSError(errno.ENOSPC, "full"), ValueError("a mistake")])
def test_a_failure_is_noted_and_the_tasks_go_on(
    error: Exception, join: SemiStreamJoin, upkeep: Upkeep, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(kernel, "copy_keys", fail)
    upkeep.look(_learn(join, upkeep))
    upkeep.wait()
    upkeep.free()
    assert not upkeep.adopt()
    assert upkeep.generations.failures == 1
    assert str(error) in str(upkeep.generations.last_failure)
    _learn(join, upkeep)


def test_a_system_without_threads(join: SemiStreamJoin, upkeep: Upkeep, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    private = _learn(join, upkeep)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        upkeep.look(private)
    upkeep.free()
    assert upkeep.generations.failures == 1
    _learn(join, upkeep)


_PROCESS = """
import os, pathlib, signal, sys, threading
import numpy as np, pyarrow as pa, semistream
from semistream.kernels import generation as kernel
from semistream.parts.generation import Generations, Seen
from semistream.parts.upkeep import Upkeep
store, folder = sys.argv[1:3]
join = semistream.open_join("sweepjoin", master=store, on="k", how="left", memory="300KB")
random = np.random.default_rng(os.getpid())
def batch():
    return pa.record_batch({"k": pa.array(random.zipf(1.1, 12_000) % 20_000)})
join.start(batch().schema)
upkeep = Upkeep(Generations(pathlib.Path(folder), "v1", 250_000, join.work.row_layout))
def task():
    upkeep.free()
    if upkeep.adopt():
        join.share(upkeep.generations.current)
    before = join.stats.cache_hits, join.stats.shared_hits
    now = batch()
    rows = pa.Table.from_batches([*join.push(now), *join.drain()])
    assert (rows["v"].to_numpy() == rows["k"].to_numpy() * 7).all()
    assert sorted(rows["k"].to_pylist()) == sorted(now["k"].to_pylist())
    hits = join.stats.cache_hits - before[0], join.stats.shared_hits - before[1]
    upkeep.generations.saw(now.num_rows, join.loop.cache, Seen(now.num_rows, *hits, 1e6))
    upkeep.look(join.loop.cache)
"""


def _process(store: Path, folder: Path, program: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _PROCESS + program, str(store), str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_processes_that_share(store: Path, tmp_path: Path) -> None:
    program = """
for _ in range(25):
    task()
upkeep.wait()
assert upkeep.generations.failures == 0, upkeep.generations.last_failure
print(upkeep.generations.built, join.stats.shared_hits)
upkeep.close()
"""
    children = [_process(store, tmp_path, program) for _ in range(2)]
    outputs = [child.communicate() for child in children]
    assert [child.returncode for child in children] == [0, 0], outputs
    built, hits = zip(*(map(int, out.split()) for out, _ in outputs), strict=True)
    assert sum(built) > 1
    assert min(hits) > 0
    assert len(list(tmp_path.glob("generation-*"))) == 1
    assert not list(tmp_path.glob(".generation-*"))


def test_a_process_that_ends_while_it_builds(store: Path, tmp_path: Path) -> None:
    """It has nothing to wait for but the build itself, which is then whole."""
    child = _process(store, tmp_path, "task()\n")
    _, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    assert err == ""
    assert _names(tmp_path) == ["build.lock", "generation-000001"]


def test_a_process_that_is_killed_while_it_builds(store: Path, tmp_path: Path) -> None:
    """The next one finds the lock free and the scratch file of the other, and builds."""
    program = """
real = kernel.copy_keys
def killed(*arguments):
    real(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
kernel.copy_keys = killed
task()
upkeep.wait()
"""
    child = _process(store, tmp_path, program)
    child.communicate(timeout=60)
    assert child.returncode == -9
    assert len(list(tmp_path.glob(".generation-*"))) == 1
    child = _process(store, tmp_path, "task(); upkeep.wait(); task(); print(join.stats.shared_hits)\n")
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    assert int(out) > 0
    assert not list(tmp_path.glob(".generation-*"))
    assert os.listdir(tmp_path)
