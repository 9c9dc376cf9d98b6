"""Whether the executors' Python can run what is sent to it, asked once, before a query is started.

A worker without this package fails at the first task, with pages of traces in which the cause is the last line.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from weakref import WeakSet

from py4j.protocol import Py4JError
from pyspark import SparkContext, SparkFiles
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import semistream
from semistream.errors import ConfigError
from semistream.spark.failures import brief

#: executors that are asked at most: they are made from one image, or few
_MOST_ASKED = 32
_PROBE_SECONDS = 60
# Text, not a function: a function would be looked up in the very package that may not be there.
_PROBE = """
import platform, sys
answer = {"python": platform.python_version(), "executable": sys.executable, "host": platform.node()}
try:
    import semistream.algorithms.registry
    answer["semistream"] = semistream.__version__
except Exception as error:
    answer["problem"] = f"{type(error).__name__}: {error}"
"""
_EVALUATED = f"(lambda scope: (exec({_PROBE!r}, scope), scope['answer'])[1])({{}})"

_CHECKED: WeakSet[SparkContext] = WeakSet()
_CHECKED_LOCK = threading.Lock()


def check_executors(spark: SparkSession) -> None:
    """Refuse executors whose Python has another version, or not this package.

    A local master starts its workers on this machine: they are fine if they run the driver's own Python, and are tried
    without a job if not. On a cluster a small job goes round, once for each application.
    """
    context = spark.sparkContext
    with _CHECKED_LOCK:
        if context in _CHECKED:
            return
        if (context.master or "").startswith("local"):
            _check_local(context)
        else:
            _check_cluster(context)
        _CHECKED.add(context)


def _check_local(context: SparkContext) -> None:
    python = shutil.which(context.pythonExec)
    if python is not None and os.path.abspath(python) == os.path.abspath(sys.executable):
        return
    probe = [context.pythonExec, "-c", f"{_PROBE}\nimport json\nprint(json.dumps(answer))"]
    env = {**os.environ, "PYTHONPATH": _import_path(context)}
    try:
        done = subprocess.run(probe, env=env, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
        answer = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _refusal(f"{context.pythonExec} cannot be run ({error})") from error
    except (ValueError, LookupError):
        said = done.stderr.strip() or f"it ended with {done.returncode}"
        raise _refusal(f"{context.pythonExec} is no Python that works ({said.splitlines()[-1]})") from None
    _check(answer)


def _import_path(context: SparkContext) -> str:
    """Where the workers of a local master look for modules: what was added to the application, its settings, ours."""
    added = [os.path.join(SparkFiles.getRootDirectory(), name) for name in context._python_includes or ()]
    paths = [context.getConf().get("spark.executorEnv.PYTHONPATH"), os.environ.get("PYTHONPATH")]
    return os.pathsep.join([*added, *(path for path in paths if path)])


def _check_cluster(context: SparkContext) -> None:
    asked = min(max(context.defaultParallelism, 1), _MOST_ASKED)
    try:
        answers = context.parallelize([_EVALUATED] * asked, asked).map(eval).collect()
    except (PySparkException, Py4JError) as error:
        raise _refusal(brief(error)) from error
    for answer in answers:
        _check(answer)


def _check(answer: dict[str, str]) -> None:
    own = ".".join(map(str, sys.version_info[:2]))
    who = f"{answer['executable']} on {answer['host']} is Python {answer['python']}"
    if answer["python"].split(".")[:2] != own.split("."):
        raise _refusal(f"{who}, the driver's is {own}")
    if "problem" in answer:
        raise _refusal(f"{who} and cannot import semistream ({answer['problem']})")
    if answer["semistream"] != semistream.__version__:
        raise _refusal(f"{who} with semistream {answer['semistream']}, the driver's is {semistream.__version__}")


def _refusal(what: str) -> ConfigError:
    own = ".".join(map(str, sys.version_info[:2]))
    return ConfigError(
        f"Spark's Python workers cannot run semistream: {what}. Set PYSPARK_PYTHON, before Spark starts, to a Python "
        f"{own} with semistream {semistream.__version__} on all executors; the driver runs {sys.executable}"
    )
