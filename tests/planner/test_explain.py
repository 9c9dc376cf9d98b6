"""The words of an explanation: they need no paper, and say what they are about."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from semistream import build_pages, open_join
from semistream.lab.workloads.relation import KEY, stream_batches
from semistream.planner.stream import StreamStatistics
from semistream.predict.keys import zipf

SAMPLE = next(iter(stream_batches(5_000, 20_000, 1.0, seed=3, batch_rows=5_000)))


def lines(master: object, **more: object) -> list[str]:
    with open_join("auto", master=master, on=KEY, memory="2MB", sample=SAMPLE, **more) as join:  # type: ignore[arg-type]
        return str(join.explain()).splitlines()


def of(found: list[str], label: str) -> str:
    (line,) = [line for line in found if line.startswith(f"  {label}")]
    return line


@pytest.mark.parametrize(("order", "words"), [("key", "sorted by key"), ("frequency", "most wanted keys first")])
def test_the_order_of_a_store(tmp_path: Path, table: pa.Table, order: str, words: str) -> None:
    frequency = {"frequency": "m01"} if order == "frequency" else {}
    build_pages(table.select([KEY, "m01"]), tmp_path / "r", on=KEY, **frequency).close()  # type: ignore[arg-type]
    assert f"{words}, with an index" in of(lines(tmp_path / "r"), "R ")


def test_one_line_for_all_that_are_refused_for_the_same_reason(parquet: Path) -> None:
    found = lines(parquet)
    assert "unsorted, without an index" in of(found, "R ")
    refused = of(found, "not ")
    assert "sweepjoin" in refused
    assert "inlj" in refused
    assert "each needs an index" in refused


def test_what_is_only_assumed_is_called_so(store: Path, parquet: Path) -> None:
    assert of(lines(store), "S ").endswith("each key occurs once in R")
    assert "each key occurs once in R (assumed" in of(lines(parquet), "S ")


@pytest.mark.parametrize(
    ("rows_per_key", "words"), [(1.0, "each key occurs once in R"), (2.5, "2.5 master tuples per key")]
)
def test_rows_per_key(rows_per_key: float, words: str) -> None:
    known = StreamStatistics(zipf(100, 1.0), 50, 1.0, rows_per_key=rows_per_key, matches_known=True)
    assert words in known.text()


@pytest.mark.parametrize(
    ("exponent", "words"),
    [(0.0, "all keys about equally often"), (1.0, "few keys very often"), (1.5, "very few keys nearly always")],
)
def test_skew(exponent: float, words: str) -> None:
    assert words in StreamStatistics.assumed(100, exponent).text()


def test_which_part_of_the_job(store: Path) -> None:
    found = lines(store)
    assert "reading S from its source and writing the result come on top" in of(found, "for the join alone")
    assert "measured as a whole" not in "\n".join(found)
