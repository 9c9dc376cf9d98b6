"""One Spark for all tests below here: a JVM and its session take ten seconds to start and a gigabyte."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

from semistream import build_pages
from semistream.spark.session import open_session
from semistream.spark.worker import WORKSHOP

#: Short-lived JVMs, those that tests start as programs too: compiling well and collecting in parallel does not pay.
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
os.environ.setdefault("SPARK_SUBMIT_OPTS", JVM)
os.environ.setdefault("SPARK_DAEMON_JAVA_OPTS", JVM)


def _unpacked_home() -> str:
    """Spark's folder with Python packages in place of their zip files, until this process ends.

    Spark has its Python processes import from the zip files, where nothing compiled can be kept: each compiles
    pyspark anew, which takes longer than what most of them are started for.
    """
    home = Path(pyspark.__file__).parent
    folder = Path(tempfile.mkdtemp(prefix="semistream-spark-"))
    atexit.register(shutil.rmtree, folder)
    for name in ("bin", "jars"):
        (folder / name).symlink_to(home / name)
    for path in (home / "python" / "lib").glob("*.zip"):
        package = home.parent / path.name.removesuffix(".zip").partition("-")[0]
        place = folder / "python" / "lib" / path.name
        place.mkdir(parents=True)
        (place / package.name).symlink_to(package)
    return str(folder)


if "SPARK_HOME" not in os.environ:
    os.environ["SPARK_HOME"] = _unpacked_home()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.driver.memory": "1g",
        "spark.local.dir": str(folder / "local"),
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    session = open_session("tests", "local[2]", settings)
    yield session
    session.stop()


# ------------------------------------------------------------ tasks that are given to this process by hand


@pytest.fixture
def own_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An executor's folder for the test alone, and no joins of others."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "local"))
    WORKSHOP.clear()
    yield
    WORKSHOP.clear()


@pytest.fixture(scope="module")
def relation(request: pytest.FixtureRequest) -> pa.Table:
    """R with the module's N_KEYS keys, every ninth of them twice."""
    n_keys = request.module.N_KEYS
    keys = np.concatenate([np.arange(n_keys), np.arange(0, n_keys, 9)])
    return pa.table({"k": keys, "v": keys * 3 + np.arange(len(keys))})


@pytest.fixture(scope="module")
def store(relation: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "r"
    build_pages(relation, path, on="k", page_rows=128).close()
    return path
