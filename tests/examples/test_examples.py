"""The examples that need no Spark, as a reader would start them. Those on Spark: tests/spark/test_examples.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
LOCAL = ("local_polars", "own_operator")


@pytest.mark.parametrize("name", LOCAL)
def test_it_prints_what_the_documentation_shows(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")]
    # Polars draws its tables as wide as the terminal, if there is one.
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "COLUMNS": "100"}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (EXAMPLES / "output" / f"{name}.txt").read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == []


def test_every_example_is_run_somewhere() -> None:
    from tests.spark.test_examples import ON_SPARK

    assert sorted((*LOCAL, *ON_SPARK)) == sorted(path.stem for path in EXAMPLES.glob("*.py"))
    assert sorted((*LOCAL, *ON_SPARK)) == sorted(path.stem for path in (EXAMPLES / "output").glob("*.txt"))
