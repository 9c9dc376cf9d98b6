"""Workers that cannot run the join are refused before a query starts, with what they lack."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import semistream
from semistream.errors import ConfigError
from semistream.spark import executors

_PROGRAM = """
import os, sys
import pyarrow as pa
import semistream
from pyspark.sql import SparkSession
from semistream.errors import ConfigError
from semistream.spark import build_master, enrich, executors
from semistream.spark.java import find_java

os.environ["JAVA_HOME"] = str(find_java())
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
semistream.build_pages(pa.table({"id": [1]}), sys.argv[1] + "/r", on="id")
for work in (
    lambda: enrich(spark.range(1), sys.argv[1] + "/r", on="id"),
    lambda: build_master(spark.range(1), sys.argv[1] + "/new", on="id"),
    lambda: executors._check_cluster(spark.sparkContext),
):
    try:
        work()
    except ConfigError as error:
        print("refused:", str(error).replace("\\n", " "))
print("built:", os.path.exists(sys.argv[1] + "/new"))
spark.stop()
"""


@pytest.mark.thorough
def test_another_python(tmp_path: Path) -> None:
    """A Python without packages: both ways of asking, the process and the job."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True, timeout=120)
    python = str(bare / "bin" / "python")
    env = {**os.environ, "PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path)], env=env, capture_output=True, text=True, timeout=300
    )
    *refused, built = done.stdout.splitlines()
    assert built == "built: False", done.stderr
    assert len(refused) == 3, done.stdout
    for line in refused:
        assert "ModuleNotFoundError: No module named" in line
        assert "PYSPARK_PYTHON" in line
        assert sys.executable in line
    assert all(f"{python} on " in line for line in refused[:2])


def test_a_program_that_is_no_python(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    context = spark.sparkContext
    for program, reason in (
        ("/bin/false", "ended with 1"),
        ("/nowhere/python", "cannot be run"),
        ("echo", "no Python"),
    ):
        monkeypatch.setattr(context, "pythonExec", program)
        with pytest.raises(ConfigError, match=rf"{program}.*{reason}.*PYSPARK_PYTHON"):
            executors._check_local(context)


def test_executors_are_asked_by_a_job(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    executors._check_cluster(spark.sparkContext)
    monkeypatch.setattr(semistream, "__version__", "99.0")
    with pytest.raises(ConfigError, match=r"with semistream \d.*the driver's is 99\.0.*PYSPARK_PYTHON"):
        executors._check_cluster(spark.sparkContext)
