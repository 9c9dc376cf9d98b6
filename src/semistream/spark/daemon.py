"""Spark's Python daemon, with the kernels loaded before it forks its workers.

Spark starts one daemon per executor and forks a worker for each task slot. What is imported here is imported once,
and its pages are shared by all workers.
"""

from __future__ import annotations

import gc

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import semistream.algorithms.registry  # noqa: F401

if __name__ == "__main__":
    # The collector writes to every object it looks at, which would copy the shared pages after all.
    gc.collect()
    gc.freeze()
    manager()
