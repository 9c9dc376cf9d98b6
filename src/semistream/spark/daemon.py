"""Spark's Python daemon, with all that a task needs loaded before it forks its workers.

Spark starts one daemon per executor and forks a worker for each task slot. What is imported here is imported once,
and its pages are shared by all workers.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from importlib import import_module

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import semistream.spark.enrichment
import semistream.spark.lake  # noqa: F401
from semistream.algorithms.registry import ALGORITHMS
from semistream.kernels.compiled import load_kernels

# PySpark asks for it in every task; where it is missing, the task says so better than a daemon that ends could.
with suppress(ImportError):
    import_module("pandas")

# Algorithms are imported and kernels loaded when they are asked for, which would be in every worker.
for _name in ALGORITHMS:
    assert ALGORITHMS[_name]
load_kernels()
if __name__ == "__main__":
    # The collector writes to every object it looks at, which would copy the shared pages after all.
    gc.collect()
    gc.freeze()
    manager()
