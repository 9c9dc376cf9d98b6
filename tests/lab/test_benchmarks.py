"""The benchmarks run: each says how it is used, and those that take no minutes run at a small size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from semistream.lab.measure.child import child_environment

FOLDER = Path(__file__).parents[2] / "benchmarks"
NAMES = sorted(path.name for path in FOLDER.glob("*.py"))


def _run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**child_environment(), "COLUMNS": "200", "PYTHONWARNINGS": os.environ.get("PYTHONWARNINGS", "")}
    return subprocess.run(
        [sys.executable, str(FOLDER / name), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_says_how_it_is_used(name: str) -> None:
    done = _run(name, "--help")
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout


def test_operators_are_compared(tmp_path: Path) -> None:
    sizes = ("--rows", "40000", "--turns", "1", "--seconds", "0.01", "--data", str(tmp_path))
    done = _run("operators.py", "--quick", "--part", "memory", "--part", "siblings", *sizes)
    # 1: some ratio is short of its bar, which such a size says nothing about.
    assert done.returncode in (0, 1), done.stderr
    for pair in ("sweepjoin 0.5 MB / polars", "opcachejoin 0.5 MB / pcachejoin 0.5 MB"):
        assert pair in done.stdout, done.stdout + done.stderr


def test_memory_is_weighed() -> None:
    sizes = ("--rows", "20000", "--tuples", "50000", "--budgets", "4MB", "--json")
    done = _run("memory.py", "sweepjoin", *sizes)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["reads"] for row in rows] == ["buffered", "direct"], done.stderr
    for row in rows:
        assert row["rows_out"] == row["rows_in"] == 50_000
        assert 0 < row["peak_bytes"] <= row["budget_bytes"] == 4_000_000
        assert row["ok"], row


def test_a_tree_is_compared_with_itself() -> None:
    sizes = ("--rows", "20000", "--batch", "500", "--turns", "4", "--warm", "1")
    done = _run("against.py", str(FOLDER.parent), "inlj", *sizes)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["operator", "inlj", "all"]
