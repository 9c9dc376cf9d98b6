"""A program that runs a query whose tuples wait, and kills itself in its first batch (`test_missing.py`).

python -m tests.spark.parked_driver FOLDER: tasks have left their records then, the dead letters are committed and the
rows are not.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from semistream.lake.files import WrittenFile
from semistream.spark import enrich, write
from semistream.spark.letters import Letterbox
from semistream.spark.session import open_session

SCHEMA = "k long, seq long"


def enriched(spark: SparkSession, folder: Path, **changes: Any) -> DataFrame:
    """The stream of the folder, a file in each batch."""
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    arguments: dict[str, Any] = {
        "on": "k",
        "memory": "4MB",
        "shards": 2,
        "checkpoint": folder / "checkpoint",
        "on_missing": "wait",
        "wait": "600s",
        "then": "dead_letter",
        "dead_letters": folder / "letters",
    }
    return enrich(stream, folder / "r", **{**arguments, **changes})


def run(spark: SparkSession, folder: Path, **changes: Any) -> Any:
    """All that is there, into the table `out`."""
    rows = enriched(spark, folder, **changes)
    query = write(rows, folder / "out", checkpoint=folder / "checkpoint", trigger="availableNow")
    query.awaitTermination(120)
    query.stop()
    return query


def main(folder: Path) -> None:
    commit = Letterbox.commit

    def fatal(box: Letterbox, app: str, batch: int, files: Sequence[Sequence[WrittenFile]]) -> None:
        commit(box, app, batch, files)
        os.kill(os.getpid(), signal.SIGKILL)

    Letterbox.commit = fatal  # type: ignore[method-assign]
    run(open_session("parked", "local[2]", {"spark.sql.shuffle.partitions": "2"}), folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
