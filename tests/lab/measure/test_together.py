"""Processes that share a folder: real ones, for a lock keeps nobody of the same process out."""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from semistream.errors import ConfigError
from semistream.lab.measure.runs import RunLog
from semistream.lab.measure.together import Together

_SPAWN = mp.get_context("spawn")
#: for what must not happen; what must happen is waited for as long as it takes
_SHORT_S, _LONG_S = 0.3, 60


class Other:
    """Another process in the same folder, which does one thing after another as it is told."""

    def __init__(self, folder: Path) -> None:
        self._pipe, theirs = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_obey, args=(folder, theirs))
        self.process.start()
        assert self.hears() == "here"

    def tell(self, *what: Any) -> None:
        self._pipe.send(what)

    def hears(self) -> Any:
        assert self._pipe.poll(_LONG_S)
        return self._pipe.recv()

    def is_silent(self) -> bool:
        return not self._pipe.poll(_SHORT_S)

    def asks(self, *what: Any) -> Any:
        self.tell(*what)
        return self.hears()


def _obey(folder: Path, pipe: Connection) -> None:
    together = Together(folder)
    log = RunLog(folder / "runs.jsonl", together)
    pipe.send("here")

    def make() -> dict[str, int]:
        pipe.send("makes")
        return {"x": pipe.recv()[1]}

    while True:
        match pipe.recv():
            case ["pause"]:
                together.pause()
                pipe.send("went on")
            case ["alone"]:
                with together.alone():
                    pipe.send("alone")
                    pipe.recv()
                pipe.send("not alone")
            case ["take", name]:
                pipe.send(together.take(name))
            case ["leave", name]:
                together.leave(name)
                pipe.send("left")
            case ["once", number]:
                pipe.send(log.once({"a": number}, make, alone=False))
            case _:
                return


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Other]:
    found = Other(tmp_path)
    yield found
    found.process.kill()
    found.process.join()


@pytest.fixture
def together(tmp_path: Path, other: Other) -> Iterator[Together]:
    found = Together(tmp_path)
    yield found
    found.close()


def soon(other: Other, *what: Any) -> threading.Timer:
    """Tell the other one while this process waits for it."""
    timer = threading.Timer(_SHORT_S, other.tell, what)
    timer.start()
    return timer


def test_who_wants_to_be_alone_waits_until_the_others_stand_still(other: Other, together: Together) -> None:
    other.tell("alone")
    assert other.is_silent()
    come_out = soon(other, "come out")
    # Now the other one is alone, and this one stands still until it has come out.
    together.pause()
    come_out.join()
    assert other.hears() == "alone"
    assert other.hears() == "not alone"


def test_others_stand_still_while_this_one_is_alone(other: Other, together: Together) -> None:
    assert other.asks("pause") == "went on"
    pause = soon(other, "pause")
    with together.alone():
        pause.join()
        assert other.is_silent()
        # What is alone already is so.
        with together.alone():
            together.pause()
        assert other.is_silent()
    assert other.hears() == "went on"


def test_work_is_taken_by_one(other: Other, together: Together) -> None:
    assert together.take("a")
    assert not other.asks("take", "a")
    assert other.asks("take", "b")
    assert not together.take("b")
    together.leave("a")
    assert other.asks("take", "a")


def test_what_a_killed_process_had_is_free(other: Other, together: Together) -> None:
    assert other.asks("take", "a")
    os.kill(other.process.pid or 0, signal.SIGKILL)
    other.process.join()
    assert together.take("a")
    with together.alone():
        pass


def test_no_run_is_made_twice(tmp_path: Path, other: Other, together: Together) -> None:
    log = RunLog(tmp_path / "runs.jsonl", together)
    other.tell("once", 1)
    assert other.hears() == "makes"
    # While the other one makes it, this one makes another run, and does not read half of a line.
    assert log.once({"a": 2}, lambda: {"x": 2}, alone=False) == {"x": 2}
    other.tell("made", 7)
    assert other.hears() == {"x": 7}
    assert log.once({"a": 1}, lambda: {"x": 8}, alone=False) == {"x": 7}
    assert other.asks("once", 2) == {"x": 2}
    lines = (tmp_path / "runs.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["settings"]["a"] for line in lines) == [1, 2]


def test_a_run_that_another_one_makes_is_waited_for(tmp_path: Path, other: Other, together: Together) -> None:
    log = RunLog(tmp_path / "runs.jsonl", together)
    other.tell("once", 1)
    assert other.hears() == "makes"
    made = soon(other, "made", 7)
    assert log.once({"a": 1}, lambda: {"x": 8}, alone=False) == {"x": 7}
    made.join()


def test_with_a_limit_for_data_one_is_enough(tmp_path: Path, other: Other) -> None:
    with pytest.raises(ConfigError, match="another process is at work"):
        Together(tmp_path, only_one=True)


def test_without_a_folder_there_are_no_others() -> None:
    together = Together()
    assert together.take("a")
    assert together.take("a")
    together.pause()
    with together.alone(), together.alone(), together.making("a"), together.writing(), together.choosing():
        together.leave("a")
