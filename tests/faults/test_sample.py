"""A sample of `make faults`, and the harness itself: it must see what goes wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults.harness import Scenario, Verdict, compare, flip_every_byte, run_scenario

from semistream.errors import StoreError

ROOT = Path(__file__).parents[2]


def test_some_faults() -> None:
    """In a program of its own: a process with threads, as this one may be, is not safe to fork."""
    arguments = ["--points", "20", "--bytes", "197", "over", "refresh by key", "store: pin"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].startswith("store: publish over a version ")
    assert lines[2].startswith("store: refresh by key ")
    assert lines[3].startswith("store: pin ")
    points, kills, errors, flips, *bad = map(int, lines[-1].split()[1:])
    assert points > 80
    assert kills >= 6
    assert errors >= 12
    assert flips > 25
    assert bad == [0, 0, 0, 0]


def _two_rows(folder: Path) -> None:
    (folder / "rows").write_text("a\nb\n")


def _write_in_place(folder: Path) -> None:
    (folder / "rows").write_text("c\nd\n")


def _write_beside(folder: Path) -> None:
    (folder / "new").write_text("c\nd\n")
    (folder / "new").replace(folder / "rows")


def _old_or_new(folder: Path, finished: bool) -> Verdict:
    found = (folder / "rows").read_text().splitlines()
    return compare(found, *([] if finished else ["ab"]), "cd")


def _read(folder: Path) -> Verdict:
    return compare((folder / "rows").read_bytes().decode("ascii").splitlines(), "cd")


@pytest.mark.parametrize("act", [_write_in_place, _write_beside])
def test_a_change_that_is_not_atomic_is_found(act: Callable[[Path], None]) -> None:
    scenario = Scenario("toy", _two_rows, act, _old_or_new)
    result = run_scenario(scenario)
    assert result.points == (2 if act is _write_in_place else 3)
    assert result.kills == result.points + 1
    lost = result.verdict.lost > 0
    assert lost == (act is _write_in_place)
    # Neither says what went wrong in words of ours.
    assert any("OSError" in failure for failure in result.failures)


def test_bytes_that_nobody_checks_are_found(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("c\nd\n")
    result = flip_every_byte(tmp_path / "rows", lambda: _read(tmp_path))
    assert result.flips == 4
    assert result.verdict.lost > 0
    assert any("UnicodeDecodeError" in failure for failure in result.failures) or result.verdict.wrong > 0
    assert (tmp_path / "rows").read_text() == "c\nd\n"


def test_a_crash_is_found_and_the_rest_goes_on(tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(bytes(4))

    def check() -> Verdict:
        content = (tmp_path / "rows").read_bytes()
        if content[1]:
            os.kill(os.getpid(), signal.SIGKILL)
        if content[2]:
            raise StoreError("seen")
        return Verdict(wrong=int(content[3] > 0))

    result = flip_every_byte(tmp_path / "rows", check)
    assert result.flips == 4
    assert result.failures == [
        f"byte 1 of rows flipped: {-signal.SIGKILL}",
        f"byte 3 of rows flipped: {Verdict(wrong=1)}",
    ]


def test_comparing_rows() -> None:
    assert not compare("abb", "bab")
    assert compare("abb", "abc", "abbbb") == Verdict(lost=1, doubled=1)
    assert compare("xy", "") == Verdict(wrong=2)
