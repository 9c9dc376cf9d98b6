"""Pipelines that build the stores of their master data and keep them up to date while they run."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from semistream.errors import SourceError
from semistream.master.format import current_version
from semistream.spark.pipeline import Pipeline, PipelineError, as_written, read_pipeline
from semistream.spark.query import build, explained, follow, kept_masters, start

SECRET = "tr0ub4dor&3"
FILE = """
checkpoint = "FOLDER/checkpoint"
trigger = "100 ms"

[source]
format = "json"
path = "FOLDER/in"
schema = "number BIGINT, sku BIGINT"

[[master]]
path = "FOLDER/products"
from = "sqlite:${PLACE}/shop.db?table=products"
on = "sku"
select = ["price"]
where = ["sku < 100"]
watermark = "changed"
deletes = "none"
refresh = { every = "100ms", max_age = "10m", on_stale = "fail" }

[[enrich]]
master = "FOLDER/products"
on = "sku"
memory = "8MB"

[sink]
format = "parquet"
path = "FOLDER/out"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLACE", str(tmp_path))
    (tmp_path / "in").mkdir()
    execute(tmp_path, "CREATE TABLE products (sku INTEGER PRIMARY KEY, price REAL, changed INTEGER)")
    execute(tmp_path, *(f"INSERT INTO products VALUES ({sku}, {sku / 4}, 1)" for sku in range(20)))
    return tmp_path


def execute(folder: Path, *statements: str) -> None:
    connection = sqlite3.connect(folder / "shop.db")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def pipeline(folder: Path, text: str = FILE) -> Pipeline:
    (folder / "p.toml").write_text(text.replace("FOLDER", str(folder)))
    return read_pipeline(folder / "p.toml")


def order(folder: Path, number: int, *skus: int) -> None:
    rows = [json.dumps({"number": number, "sku": sku}) for sku in skus]
    (folder / "in" / f".{number}").write_text("\n".join(rows))
    (folder / "in" / f".{number}").rename(folder / "in" / f"{number}.json")


def prices(folder: Path, number: int) -> dict[int, float] | None:
    if not (folder / "out").exists():
        return None
    found = ds.dataset(folder / "out", format="parquet", exclude_invalid_files=True).to_table()
    rows = found.filter(pa.compute.equal(found["number"], number)).to_pylist() if found.num_rows else []
    return {row["sku"]: row["price"] for row in rows} or None


def wait(ready: object, what: str) -> None:
    until = time.monotonic() + 120
    while not ready():  # type: ignore[operator]
        assert time.monotonic() < until, what
        time.sleep(0.05)


def test_a_running_query_takes_what_a_refresh_brings(spark: SparkSession, folder: Path) -> None:
    """The store is built first; a change in the source is seen by later batches, without a restart."""
    given = pipeline(folder)
    said: list[str] = []
    order(folder, 1, 3, 4)
    stop = threading.Event()
    with explained(given), kept_masters(given, said.append) as check:
        query = start(given, build(spark, given))
        follower = threading.Thread(target=follow, args=(query, given, stop, lambda _: None, check))
        follower.start()
        try:
            wait(lambda: prices(folder, 1), "the first batch")
            execute(folder, "UPDATE products SET price = 99.5, changed = 2 WHERE sku = 3")
            wait(lambda: current_version(folder / "products") == 2, "the refresh")
            order(folder, 2, 3, 4)
            wait(lambda: prices(folder, 2), "the second batch")
        finally:
            stop.set()
            follower.join(60)
    assert prices(folder, 1) == {3: 0.75, 4: 1.0}
    assert prices(folder, 2) == {3: 99.5, 4: 1.0}
    assert "built from sqlite:${PLACE}/shop.db" in said[0]
    assert not any(thread.name.startswith("refresh of") for thread in threading.enumerate())


def test_a_query_ends_when_its_master_data_is_too_old(spark: SparkSession, folder: Path) -> None:
    given = pipeline(folder)
    with kept_masters(given, lambda _: None):
        query = start(given, build(spark, given))

    def check() -> None:
        raise SourceError("too old")

    with pytest.raises(SourceError, match="too old"):
        follow(query, given, threading.Event(), lambda _: None, check)
    assert not query.isActive


def test_a_source_that_fails_is_told_before_spark_starts(folder: Path) -> None:
    (folder / "shop.db").unlink()
    given = pipeline(folder)
    missing = pytest.raises(PipelineError, match=r"sqlite:\$\{PLACE\}/shop.db.* there is no file .*was not built")
    with missing, kept_masters(given, lambda _: None):
        pass
    dry = pytest.raises(PipelineError, match="--dry-run does not build it")
    with dry, kept_masters(given, lambda _: None, dry_run=True):
        pass
    assert not (folder / "products").exists()


MISTAKES = {
    'from = "sqlite:${PLACE}/shop.db"': ("from = ", "names no table"),
    'from = "oracle://x/y?table=t"': ("from = ", "'oracle' are not known"),
    'deletes = "some"': ("deletes = ", "deletes 'some' is unknown"),
    'path = "elsewhere"': ("path = ", "no [[enrich]] has master = 'elsewhere'"),
    'refresh = { every = "often" }': ("refresh = ", "'often' is not a duration"),
    'refresh = { every = "5m", max_age = "1m" }': ("refresh = ", "max_age is 60 s"),
    'refresh = { evry = "5m" }': ("refresh = ", "did you mean 'every'"),
    'where = ["sku ~ 5"]': ("where = ", "cannot be read"),
    "on = []": ("on = ", "must name the key columns"),
}


@pytest.mark.parametrize("line", MISTAKES)
def test_mistakes(folder: Path, line: str) -> None:
    begin, expected = MISTAKES[line]
    head, _, rest = FILE.partition("[[master]]")
    body, _, tail = rest.partition("[[enrich]]")
    lines = [line if one.startswith(begin) else one for one in body.splitlines()]
    with pytest.raises(PipelineError) as found:
        pipeline(folder, f"{head}[[master]]{chr(10).join(lines)}\n[[enrich]]{tail}")
    assert expected in str(found.value)
    assert "[[master]]" in str(found.value)


def test_the_plan_has_no_password(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one from the environment, and not one that stands in the file."""
    monkeypatch.setenv("DB_PASSWORD", SECRET)
    for word in (SECRET.replace("&", "%26"), "${DB_PASSWORD}"):
        address = f"postgresql://app:{word}@db.example/shop?table=products"
        given = pipeline(folder, FILE.replace("sqlite:${PLACE}/shop.db?table=products", address))
        plan = json.dumps(as_written(given))
        assert "postgresql://db.example/shop?table=products" in plan
        assert SECRET not in plan + repr(given.masters)
        assert "tr0ub4dor" not in plan
        assert SECRET not in given.secrets.redact(f"the password {SECRET} is wrong")
