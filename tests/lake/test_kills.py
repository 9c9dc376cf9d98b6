"""Samples of `python -m tests.lake.kills` and of `python -m tests.faults lake`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.lake.kills import torment, wrong_readers
from tests.lake.lakes import FORMATS, open_lake

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("format", "kills"), [("parquet", 2), *(pytest.param(format, 70, marks=pytest.mark.thorough) for format in FORMATS)]
)
def test_each_row_is_there_once_after_kills(tmp_path: Path, format: str, kills: int) -> None:
    batches = torment(tmp_path, format, kills, seed=kills)
    assert wrong_readers(tmp_path, format, batches) == []
    open_lake(tmp_path, format).clean(0)
    assert wrong_readers(tmp_path, format, batches) == []


@pytest.mark.thorough
def test_some_faults_of_a_commit() -> None:
    """In a program of its own: a process with threads, as this one may be, is not safe to fork."""
    arguments = ["--points", "60", "lake: commit to parquet"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    points, kills, errors, _, *bad = map(int, done.stdout.splitlines()[-1].split()[1:])
    assert points > 80
    assert kills >= 2
    assert errors >= 6
    assert bad == [0, 0, 0, 0]
