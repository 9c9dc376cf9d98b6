"""The examples on Spark. They take the session of the tests, as any program in a running Spark does."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"
ON_SPARK = ("carry_over", "spark_files", "star_schema")


@pytest.mark.parametrize("name", ON_SPARK)
def test_it_prints_what_the_documentation_shows(
    name: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out == (EXAMPLES / "output" / f"{name}.txt").read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == []
