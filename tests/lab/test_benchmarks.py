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
    sizes = ("--rows", "40000", "--turns", "1", "--seconds", "0.01", "--warm", "0.1", "--data", str(tmp_path))
    done = _run("operators.py", "--quick", "--part", "memory", "--part", "siblings", *sizes)
    # 1: some ratio is short of its bar, which such a size says nothing about.
    assert done.returncode in (0, 1), done.stderr
    for pair in ("sweepjoin 0.5 MB / polars", "opcachejoin 0.5 MB / pcachejoin 0.5 MB"):
        assert pair in done.stdout, done.stdout + done.stderr


@pytest.mark.thorough
def test_joins_on_spark_are_compared_and_written(tmp_path: Path) -> None:
    save = tmp_path / "spark.json"
    sizes = ("--rows", "20000", "--batch", "50000", "--memory", "2e6")
    short = ("--how", "inner", "--warm", "0", "--measured", "1", "--sink", "delta")
    done = _run("spark.py", *sizes, *short, "--data", str(tmp_path / "data"), "--save", str(save))
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = json.loads(save.read_text())["results"]
    assert set(result["row_bytes"]) == {name for name in result["rates"] if "," in name} >= {"write inner, delta"}
    assert set(result["settings"]) == set(result["rates"]) >= {"transport", "sweepjoin inner", "native inner cached"}
    assert result["settings"]["native inner"]["shuffle partitions"] == "2"
    assert result["settings"]["native inner"]["driver memory"] == "6g"
    assert result["settings"]["write inner, delta"]["memory"] == "2 MB"
    assert result["cached_bytes"]["native inner cached"] > 20_000 * 100
    assert {"input", "join"} <= set(result["phases"]["write inner, delta"])
    pairs = {(pair["ours"], pair["theirs"]): pair for pair in result["ratios"]}
    pair = pairs["write inner, delta", "native inner, Spark's parquet"]
    assert pair["our_settings"]["R"] == "page store"
    assert pair["their_settings"]["R"] == "Parquet files"


def test_operators_are_compared_by_size_of_batch(tmp_path: Path) -> None:
    sizes = ("--rows", "20000", "--memory", "1MB", "--batch", "500", "--batch", "2000", "--warm", "0.01")
    short = ("--turns", "2", "--seconds", "0.01", "--operators", "sweepjoin,hybridjoin", "--data", str(tmp_path))
    done = _run("operators.py", "--reads", "direct", "--drain", *sizes, *short)
    assert done.returncode in (0, 1), done.stderr
    for what in (
        "R = 20,000, 1 MB, batches of 2,000, direct, drained",
        "hybridjoin / scan limit",
        "sweepjoin, mapped / scan limit",
        "sweepjoin / hybridjoin",
        "sweepjoin, bytes per batch / R",
    ):
        assert what in done.stdout, done.stdout + done.stderr


def test_growth_goes_on_where_it_was_broken_off(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    sizes = ("--memory", "1MB", "--share", "0.5", "--batch", "2000", "--warm", "0.01", "--seconds", "0.01")
    common = (*sizes, "--data", str(data), "--out", str(out), "--operators", "sweepjoin,hybridjoin,duckdb")
    first = _run("growth.py", "--rows", "4000", *common, "--limit", "100")
    assert first.returncode == 0, first.stderr
    before = json.loads((out / "growth.json").read_text())["points"]
    assert len(before) == 6
    assert {cost["state"] for cost in before.values()} == {"measured"}
    # A limit that nobody keeps: what is known stays, what is new is stopped.
    both = _run("growth.py", "--rows", "4000", "8000", *common, "--limit", "0")
    assert both.returncode == 0, both.stderr
    after = json.loads((out / "growth.json").read_text())["points"]
    assert {key: after[key] for key in before} == before
    assert {cost["state"] for key, cost in after.items() if key not in before} == {"stopped"}
    assert len(after) == 12
    assert (out / "growth.svg").stat().st_size > 1_000
    assert (out / "growth.png").stat().st_size > 1_000
    assert not list(data.iterdir())


def test_a_large_master_is_joined_exactly(tmp_path: Path) -> None:
    save = tmp_path / "large.json"
    sizes = ("--rows", "20000", "--memory", "1MB", "--batch", "3000", "--batches", "2")
    done = _run("large.py", "sweepjoin", *sizes, "--data", str(tmp_path), "--save", str(save))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(save.read_text())
    (join,) = found["joins"]
    assert join["exact"]
    assert join["rows_out"] == 6_000
    assert len(join["batches"]) == 2
    assert join["peak_bytes"] <= join["memory"] == 1_000_000
    assert found["build"]["n_bytes"] > 20_000 * 120


def test_memory_is_weighed() -> None:
    sizes = ("--rows", "20000", "--tuples", "50000", "--budgets", "4MB", "--json")
    done = _run("memory.py", "sweepjoin", *sizes)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["reads"] for row in rows] == ["buffered", "direct"], done.stderr
    for row in rows:
        assert row["rows_out"] == row["rows_in"] == 50_000
        assert 0 < row["peak_bytes"] <= row["budget_bytes"] == 4_000_000
        assert row["ok"], row


@pytest.mark.thorough
def test_a_tree_is_compared_with_itself() -> None:
    sizes = ("--rows", "20000", "--batch", "5000", "--drain", "--turns", "2", "--warm", "1")
    done = _run("against.py", str(FOLDER.parent), "inlj", *sizes)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == ["operator", "inlj", "all"]
    assert lines[1][1] == "5,000"
