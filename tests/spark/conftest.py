"""One Spark for all tests below here: a JVM and its session take ten seconds to start and a gigabyte."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from semistream.spark.session import open_session

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
