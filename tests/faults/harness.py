"""Every call that changes a file, struck in turn; every byte of a file, flipped in turn; and what is then found.

A scenario prepares a folder, changes it (`act`), and says whether what is there afterwards is right (`check`). It is
run once to count the calls of `act`, and then again for each of them in a fresh copy of the prepared folder: killed
right before it, killed half-way through a write, with the call failing, with a full disk, with Ctrl-C. After that
`check` opens everything again. It must find exactly the state of before or that of after, and the next change must
work.

Each run is a process of its own, so a crash is a finding like any other.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.injection import HALF, KILL, Watch, faults_for, watch

from semistream.errors import SemiStreamError


@dataclass
class Verdict:
    """How found rows differ from those that are right."""

    lost: int = 0
    doubled: int = 0
    wrong: int = 0

    def __add__(self, other: Verdict) -> Verdict:
        return Verdict(self.lost + other.lost, self.doubled + other.doubled, self.wrong + other.wrong)

    def __bool__(self) -> bool:
        return bool(self.lost or self.doubled or self.wrong)


def compare(found: Iterable[Any], *allowed: Iterable[Any]) -> Verdict:
    """The difference to the nearest of the allowed results, whatever the order of rows."""
    have = Counter(found)

    def against(rows: Iterable[Any]) -> Verdict:
        want = Counter(rows)
        more = have - want
        doubled = sum(count for row, count in more.items() if row in want)
        return Verdict(sum((want - have).values()), doubled, sum(more.values()) - doubled)

    return min(map(against, allowed), key=lambda v: v.lost + v.doubled + v.wrong)


@dataclass(frozen=True)
class Scenario:
    """One change of files. `check` is told whether `act` came to its end: then only the new state is right.

    `read` is for flipped bytes: it reads all there is after `prepare` and `act`, and must see an error of ours or
    return a verdict about the rows. Without it no bytes are flipped.
    """

    name: str
    prepare: Callable[[Path], None]
    act: Callable[[Path], None]
    check: Callable[[Path, bool], Verdict]
    read: Callable[[Path], Verdict] | None = None


@dataclass
class Result:
    """What became of a scenario."""

    name: str
    points: int = 0
    kills: int = 0
    errors: int = 0
    flips: int = 0
    verdict: Verdict = field(default_factory=Verdict)
    #: what else went wrong: crashes, errors that are not ours, stores that cannot be opened or changed again
    failures: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        return not self.verdict and not self.failures


def run_scenario(scenario: Scenario, every_point: int = 1, every_byte: int = 1) -> Result:
    """All faults of a scenario, or those at every so many calls, the last one included, and in every so many bytes."""
    result = Result(scenario.name)
    with tempfile.TemporaryDirectory(prefix="faults-", dir=_quick_folder()) as place:
        before, folder = Path(place) / "before", Path(place) / "now"
        before.mkdir()
        scenario.prepare(before)
        calls = _count(scenario, before, folder, result)
        result.points = len(calls)
        for at in range(len(calls), 0, -every_point):
            for fault in faults_for(calls[at - 1]):
                _strike(scenario, before, folder, Watch(folder, at, fault), fault, f"{calls[at - 1]} {at}", result)
        if scenario.read is not None:
            _copy(before, folder)
            scenario.act(folder)
            for path in sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink()):
                flips = flip_every_byte(path, lambda: scenario.read(folder), every_byte)  # type: ignore[misc]
                result.flips += flips.flips
                result.verdict += flips.verdict
                result.failures += flips.failures
    return result


def _count(scenario: Scenario, before: Path, folder: Path, result: Result) -> list[str]:
    """The calls of an undisturbed run."""
    _copy(before, folder)
    watched = Watch(folder)

    def run() -> list[str]:
        watch(watched)
        scenario.act(folder)
        return watched.calls

    done, answer = _in_a_process(run)
    if not done:
        raise RuntimeError(f"{scenario.name} fails undisturbed: {answer}")
    _judge(scenario, folder, True, "undisturbed", result)
    calls: list[str] = answer
    return calls


def _strike(
    scenario: Scenario, before: Path, folder: Path, watched: Watch, fault: str, call: str, result: Result
) -> None:
    _copy(before, folder)

    def run() -> str:
        watch(watched)
        try:
            scenario.act(folder)
        except (SemiStreamError, KeyboardInterrupt):
            return "failed"
        return "finished"

    done, answer = _in_a_process(run)
    words = f"{scenario.name}, {fault} at {call}"
    if fault in (KILL, HALF):
        result.kills += 1
        if done or answer != -signal.SIGKILL:
            result.failures.append(f"{words}: the process was not killed ({answer})")
    else:
        result.errors += 1
        if not done:
            result.failures.append(f"{words}: {answer}")
    _judge(scenario, folder, answer == "finished", words, result)


def _judge(scenario: Scenario, folder: Path, finished: bool, words: str, result: Result) -> None:
    done, answer = _in_a_process(lambda: scenario.check(folder, finished))
    if not done:
        result.failures.append(f"{words}, then: {answer}")
        return
    result.verdict += answer
    if answer:
        result.failures.append(f"{words}: {answer}")


def flip_every_byte(path: Path, check: Callable[[], Verdict], step: int = 1) -> Result:
    """Flip a bit of each byte (or of every `step`-th) in turn; an error of ours or the right rows must come of it."""
    result = Result(str(path))
    whole = path.read_bytes()
    places = list(range(0, len(whole), step))
    while result.flips < len(places):
        # One process flips until it ends; one that crashed is followed by another.
        for answer in _answers(lambda: _flip_each(path, whole, places[result.flips :], check)):
            at = places[result.flips]
            result.flips += 1
            if isinstance(answer, Verdict):
                result.verdict += answer
            if answer:
                result.failures.append(f"byte {at} of {path.name} flipped: {answer}")
        path.write_bytes(whole)
    return result


def _flip_each(path: Path, whole: bytes, places: list[int], check: Callable[[], Verdict]) -> Iterator[object]:
    handle = os.open(path, os.O_WRONLY)
    for at in places:
        os.pwrite(handle, bytes([whole[at] ^ (1 << at % 8)]), at)
        try:
            yield check()
        except SemiStreamError:
            yield Verdict()
        except Exception:
            yield traceback.format_exc()
        os.pwrite(handle, whole[at : at + 1], at)


def _in_a_process(run: Callable[[], Any]) -> tuple[bool, Any]:
    """Whether a function came to its end in a process of its own; its result, its traceback, or the signal."""

    def once() -> Iterator[tuple[bool, Any]]:
        try:
            yield True, run()
        except BaseException:
            yield False, traceback.format_exc()

    (answer,) = _answers(once)
    return answer if isinstance(answer, tuple) else (False, answer)


def _answers(run: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """What a function yields in a process of its own; last the number of the signal, negative, if one ended it."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn of threads: numba and pyarrow have some, which the child does not need.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os.close(reading)
        status = 1
        try:
            # Kept from before the calls are told.
            send = os.fdopen(writing, "wb", buffering=0).write
            for answer in run():
                send(pickle.dumps(answer))
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    ended: tuple[int, int] | None = None
    with os.fdopen(reading, "rb") as pipe:
        try:
            while True:
                try:
                    yield pickle.load(pipe)
                except EOFError:
                    break
            ended = os.waitpid(child, 0)
        finally:
            if ended is None:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    if ended[1]:
        yield os.waitstatus_to_exitcode(ended[1])


def _copy(before: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(before, folder, symlinks=True)


def _quick_folder() -> str | None:
    """In memory, where there is such a folder: killing a process loses nothing that the system has taken over."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
