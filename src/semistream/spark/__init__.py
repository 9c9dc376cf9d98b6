"""Spark: enrich Structured Streaming DataFrames. The only package that imports pyspark (extra `semistream[spark]`).

Names are imported when they are used: a query's source of ticks runs in a process of its own, which should not wait for
the operators.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semistream.spark import metrics
    from semistream.spark.enrichment import enrich, enrich_star
    from semistream.spark.lake import write
    from semistream.spark.layout import build_master
    from semistream.spark.refresh import apply_changes, refresh_master

__all__ = ["apply_changes", "build_master", "enrich", "enrich_star", "metrics", "refresh_master", "write"]

_HOME = {
    "apply_changes": "refresh",
    "build_master": "layout",
    "enrich": "enrichment",
    "enrich_star": "enrichment",
    "refresh_master": "refresh",
    "write": "lake",
}


def __getattr__(name: str) -> Any:
    if name == "metrics":
        return import_module("semistream.spark.metrics")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"semistream.spark.{_HOME[name]}"), name)
