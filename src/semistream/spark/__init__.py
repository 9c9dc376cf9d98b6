"""Spark: enrich Structured Streaming DataFrames. The only package that imports pyspark (extra `semistream[spark]`)."""

from semistream.spark import metrics
from semistream.spark.enrich import enrich, enrich_star
from semistream.spark.layout import build_master

__all__ = ["build_master", "enrich", "enrich_star", "metrics"]
