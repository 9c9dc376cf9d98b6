"""Work in a process of its own, weighed from outside while it works.

this process                                  the child
start with the task as JSON ───────────────>  imports, joins a few tuples
                            <── ready ──────  `ready()`
first weighing; go          ───────────────>  works
weighs all the while        <── report ─────  `hand_over(report)`
last weighing; the end      ───────────────>
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import semistream
from semistream.errors import SemiStreamError
from semistream.lab.measure.resident import resident_bytes

_SAMPLE_SECONDS = 0.003
_LONGEST_SECONDS = 900.0


@dataclass(frozen=True)
class Watched:
    """What a child reported, and by how many bytes it had grown at which second of its work."""

    report: dict[str, Any]
    samples: list[tuple[float, int]]
    #: when the work began, by `time.monotonic`: the clock is the system's, the same in both processes
    started: float

    @property
    def most_bytes(self) -> int:
        """By how many bytes the child had grown at most."""
        return max(size for _, size in self.samples)


def child_environment() -> dict[str, str]:
    """In which a child finds this package, installed or not."""
    root = str(Path(semistream.__file__).resolve().parent.parent)
    known = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, known] if known else [root])}


def watch(
    name: str, command: Sequence[str], *, files: bool = False, environment: Mapping[str, str] | None = None
) -> Watched:
    """Run `python <command>` and weigh it; `name` is who it is, for the error if it fails. `files`: see `resident`."""
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**child_environment(), **(environment or {})},
        ) as process,
    ):
        try:
            return _watched(name, process, files)
        except _Ended:
            errors.seek(0)
            raise SemiStreamError(f"{name} ended without a result: {errors.read()[-2000:]}") from None
        finally:
            process.kill()


@dataclass(frozen=True)
class Finished:
    """A command that has ended: its exit status, what it wrote, and the most memory it held."""

    status: int
    out: str
    errors: str
    most_bytes: int


def weigh(
    command: Sequence[str], *, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> Finished:
    """Run `python <command>` from its start to its end and weigh it all the while."""
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env={**child_environment(), **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        most = 0
        while process.poll() is None:
            most = max(most, resident_bytes(process.pid))
            time.sleep(_SAMPLE_SECONDS)
        out, errors = process.communicate()
    return Finished(process.returncode, out, errors, most)


class _Ended(Exception):
    """The child is gone."""


def _watched(name: str, process: subprocess.Popen[str], files: bool) -> Watched:
    assert process.stdin is not None
    assert process.stdout is not None
    _answer(process)
    before = resident_bytes(process.pid, files=files)
    started = time.monotonic()
    samples = [(0.0, 0)]
    process.stdin.write("go\n")
    process.stdin.flush()
    while not select.select([process.stdout], [], [], _SAMPLE_SECONDS)[0]:
        now = time.monotonic() - started
        samples.append((now, resident_bytes(process.pid, files=files) - before))
        if now > _LONGEST_SECONDS:
            raise SemiStreamError(f"{name} took more than {_LONGEST_SECONDS:.0f} s; take a smaller scale")
    report = json.loads(_answer(process))
    samples.append((time.monotonic() - started, resident_bytes(process.pid, files=files) - before))
    return Watched(report, samples, started)


def _answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise _Ended
    return line


# ------------------------------------------------------------------------------------------ the child


def ready() -> None:
    """In the child: everything is imported and compiled; wait for the word."""
    print("ready", flush=True)
    sys.stdin.readline()


def hand_over(report: Mapping[str, Any]) -> None:
    """In the child: this came of it; wait for the last weighing."""
    print(json.dumps(report), flush=True)
    sys.stdin.readline()
