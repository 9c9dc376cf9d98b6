"""What a process holds is seen from outside: what it writes to counts, pages of files only where asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from semistream.errors import SemiStreamError
from semistream.lab.measure.child import watch
from semistream.lab.measure.resident import proportional_bytes, resident_bytes, spark_workers

SIZE = 50_000_000


def test_what_is_written_counts_until_the_process_is_gone() -> None:
    before = resident_bytes(os.getpid()), proportional_bytes(os.getpid())
    held = bytearray(b"x") * SIZE
    after = resident_bytes(os.getpid()), proportional_bytes(os.getpid())
    assert len(held) == SIZE
    for less, more in zip(before, after, strict=True):
        assert 0.9 * SIZE < more - less < 1.5 * SIZE
    assert resident_bytes(os.getpid(), files=True) > resident_bytes(os.getpid())
    assert resident_bytes(2**22 + 1) == 0


def test_workers_of_spark_are_told_from_other_processes() -> None:
    """By the name of their daemon, among the processes that this one has started."""
    program = [sys.executable, "-c", "input()"]
    with (
        subprocess.Popen(program, stdin=subprocess.PIPE) as other,
        subprocess.Popen([*program, "semistream.spark.daemon"], stdin=subprocess.PIPE) as worker,
    ):
        found = spark_workers()
        other.communicate(b"\n")
        worker.communicate(b"\n")
    assert worker.pid in found
    assert other.pid not in found


def _script(folder: Path, work: str) -> Path:
    path = folder / "child.py"
    lines = ["from semistream.lab.measure.child import hand_over, ready", "ready()", work]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_a_child_is_weighed_while_it_works(tmp_path: Path) -> None:
    work = f"held = bytearray(b'x') * {SIZE}; hand_over({{'size': len(held)}})"
    watched = watch("somebody", [str(_script(tmp_path, work))])
    assert watched.report == {"size": SIZE}
    assert watched.samples[0] == (0.0, 0)
    assert 0.9 * SIZE < watched.most_bytes < 1.5 * SIZE


def test_the_error_of_a_child_is_shown(tmp_path: Path) -> None:
    with pytest.raises(SemiStreamError, match=r"(?s)somebody ended without a result.*no luck"):
        watch("somebody", [str(_script(tmp_path, "raise SystemExit('no luck')"))])
