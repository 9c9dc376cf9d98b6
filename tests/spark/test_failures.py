"""What is left of Spark's errors when they are told to a user."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from semistream.errors import StoreError
from semistream.spark.failures import brief


def test_the_cause_in_a_worker_is_kept(spark: SparkSession) -> None:
    def foreign(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import nothing_of_that_name  # noqa: F401

        return batches

    def ours(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise StoreError("the page is damaged: build it again")

    for work, message in (
        (foreign, "Python failed with ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        (ours, "the page is damaged: build it again"),
    ):
        with pytest.raises(PySparkException) as caught:
            spark.range(1).mapInArrow(work, "id long").collect()
        assert brief(caught.value) == message


def test_a_worker_that_could_not_start() -> None:
    text = (
        "Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most recent failure: Lost task 0.0\n"
        "org.apache.spark.SparkException: \nError from python worker:\n"
        "  /usr/bin/python3: Error while finding module specification for 'semistream.spark.daemon' "
        "(ModuleNotFoundError: No module named 'semistream')\nPYTHONPATH was:\n  /opt/spark/python\n"
        "org.apache.spark.SparkException: EOFException occurred\n\tat org.apache.spark.api.python"
    )
    message = brief(RuntimeError(text))
    assert message.startswith("a Python worker could not start: /usr/bin/python3")
    assert message.endswith("(ModuleNotFoundError: No module named 'semistream')")


def test_other_errors() -> None:
    assert brief(RuntimeError("[TABLE] not found. SQLSTATE: 42P01\n\tat java")) == "[TABLE] not found."
    assert brief(RuntimeError("")) == "RuntimeError"
    assert brief(RuntimeError("Traceback (most recent call last):\nKeyError: 1")) == "Python failed with KeyError: 1"
    assert len(brief(RuntimeError("x" * 5000))) < 700
