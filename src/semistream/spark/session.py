"""A Spark session in which semistream works: Java, worker Python and transport settings that fit together.

Any session will do for `enrich`; this one spares its users the settings that are easily forgotten, among them that
workers run the driver's Python and find this package, and that a local Spark talks to nobody but itself.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

import semistream
from semistream.spark.java import find_java

#: Rows a Python worker gets at a time. Spark's own 10,000 make the calls for each batch a large part of the work.
ARROW_BATCH_ROWS = 65_536
LOOPBACK = "127.0.0.1"

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_BATCH_ROWS),
    "spark.python.daemon.module": "semistream.spark.daemon",
    "spark.executorEnv.OPENBLAS_NUM_THREADS": "1",
}
# What spark-submit has to know before there is a Spark: the JVM's own options, and what it fetches for the class path.
_AT_LAUNCH = (
    "spark.archives",
    "spark.driver.",
    "spark.files",
    "spark.jars",
    "spark.kerberos.",
    "spark.master",
    "spark.submit.",
)
# None of it is news, and no user can do anything about it.
_AT_EVERY_START = (
    "WARNING: Using incubator modules: jdk.incubator.vector",
    "WARNING: package sun.security.action not in java.base",
    "Using Spark's default log4j profile:",
    'Setting default log level to "',
    "To adjust logging level use sc.setLogLevel",
    "Setting Spark log level to ",
    "NativeCodeLoader: Unable to load native-hadoop library",
)
#: Names of settings that Spark itself takes for a secret and does not log (the default of spark.redaction.regex).
SECRET_NAME = re.compile(r"(?i)secret|password|token|access[.]?key")


def open_session(
    app_name: str, master: str = "local[*]", conf: Mapping[str, str] | None = None, errors: int | None = None
) -> SparkSession:
    """A session with `conf` over the defaults; as always in Spark, a running one is taken with its master.

    `errors` is a file descriptor for Java's standard error, if it is not to be that of this process. JAVA_HOME,
    PYSPARK_PYTHON and, for a local master, SPARK_LOCAL_IP are set for this process, since Spark reads them from there.
    """
    settings = {**_DEFAULTS, **_import_path()}
    if _is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
        settings |= {"spark.driver.bindAddress": LOOPBACK, "spark.driver.host": LOOPBACK}
    settings |= conf or {}
    settings |= {"spark.app.name": app_name, "spark.master": master}
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if SparkContext._gateway is None:
        os.environ["JAVA_HOME"] = str(find_java())
        _start_java(settings, errors)
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


@contextmanager
def running_session(
    app_name: str, master: str, conf: Mapping[str, str], say: Callable[[str], None]
) -> Iterator[SparkSession]:
    """`open_session` for a program that has Spark to itself and stops it at the end.

    What Spark and Java write on standard error goes through `say`, line by line, without what they say at every
    start. By default that is next to nothing: an error reaches the program as an exception.
    """
    over = threading.Event()
    with _heard(lambda line: None if over.is_set() else say(line)) as errors:
        spark = open_session(app_name, master, {"spark.log.level": "FATAL", **conf}, errors)
    try:
        yield spark
    finally:
        # Where a service manager has ended the JVM already, the gateway is not to lament it.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        with suppress(Py4JError, OSError):
            spark.stop()
        over.set()


@contextmanager
def _heard(say: Callable[[str], None]) -> Iterator[int]:
    """A file descriptor for another process to write to, whose lines are passed on for as long as it lives."""
    reading, writing = os.pipe()

    def listen() -> None:
        with open(reading, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if not any(known in line for known in _AT_EVERY_START):
                    say(line.rstrip("\n"))

    threading.Thread(target=listen, name="spark messages", daemon=True).start()
    try:
        yield writing
    finally:
        os.close(writing)


def _start_java(settings: Mapping[str, str], errors: int | None) -> None:
    """Start the JVM with what it needs on its command line, which any user of the machine can read.

    Spark would put every setting there; the others are handed over through the gateway afterwards.
    """
    launch = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        if key.startswith(_AT_LAUNCH) and not SECRET_NAME.search(key):
            launch.set(key, value)
    # In a session of its own, a signal for the whole process group leaves it to us to stop Spark. It ends with us in
    # any case, for it reads our end of a pipe.
    how = {} if errors is None else {"stderr": errors, "start_new_session": True}
    SparkContext._ensure_initialized(gateway=launch_gateway(launch, how))  # type: ignore[no-untyped-call]


def _is_local(master: str) -> bool:
    return master.startswith("local")


def _import_path() -> dict[str, str]:
    """Where workers import this package from, if it is not installed but used from its source tree."""
    root = Path(semistream.__file__).resolve().parent.parent
    if str(root) in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return {}
    known = os.environ.get("PYTHONPATH")
    return {"spark.executorEnv.PYTHONPATH": os.pathsep.join([str(root), known] if known else [str(root)])}
