"""Python in the documentation that needs Spark is run, so it stays true."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from tests.docs.pages import NAMES, blocks

PAGES = [name for name in NAMES if any(block.kind == "spark" for block in blocks(name, "python"))]


@pytest.mark.parametrize("name", PAGES)
def test_blocks_run(name: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spark.sql("select 7L customer_id, 'Ann' name").write.parquet(f"{tmp_path}/customers.parquet")
    spark.sql("select 1L order_id, 7L customer_id union all select 2L, 8L").write.parquet(f"{tmp_path}/orders")
    names: dict[str, object] = {"spark": spark}
    for block in blocks(name, "python"):
        if block.kind == "parsed" or block.included:
            continue
        text = block.text.replace('"/data/', f'"{tmp_path}/')
        exec(compile("\n" * block.line + text, name, "exec"), names)
    query = names.get("query")
    if not isinstance(query, StreamingQuery):
        return
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    rows = spark.read.parquet(f"{tmp_path}/enriched").orderBy("order_id").collect()
    assert [tuple(row) for row in rows] == [(1, 7, "Ann"), (2, 8, None)]
    if "lake" in names:
        kept = DeltaTable(tmp_path / "lake" / "orders").to_pyarrow_table()
        assert kept.to_pylist() == [{"order_id": 1, "name": "Ann"}]
