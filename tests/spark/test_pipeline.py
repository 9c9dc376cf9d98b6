"""Pipelines: what a file may say, that secrets stay secret, and that a run is exact and ends in good order."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyspark
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from semistream import build_pages
from semistream.cli.app import app
from semistream.sources.keeper import Schedule
from semistream.spark import pipeline as module
from semistream.spark.pipeline import Pipeline, PipelineError, Secrets, as_written, read_pipeline
from semistream.spark.query import Totals, build, explained, follow, start, writing
from semistream.spec import JoinRequest
from semistream.testing import assert_same_rows, reference_join

ORDERS = pa.table(
    {
        "number": pa.array(range(600), pa.int64()),
        "sku": pa.array([i * 7 % 50 for i in range(599)] + [None], pa.int64()),
        "shop": pa.array([("Ulm", "Łódź")[i % 2] for i in range(600)]),
    }
)
PRODUCTS = pa.table({"sku": range(40), "price": [i / 4 for i in range(40)], "shop": [f"s{i}" for i in range(40)]})
SHOPS = pa.table({"town": ["Ulm", "Łódź"], "country": ["DE", "PL"]})
SECRET = "tr0ub4dor '&3\\"

FILE = """
name = "orders"
checkpoint = "checkpoint"
trigger = "availableNow"

[source]
format = "json"
path = "in"
schema = "number BIGINT, sku BIGINT, shop STRING"
options = { maxFilesPerTrigger = 2 }

[[enrich]]
master = "products"
on = "sku"
memory = "8MB"

[sink]
format = "parquet"
path = "out"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with five files of orders and two dimensions; also the working folder."""
    monkeypatch.chdir(tmp_path)
    build_pages(PRODUCTS, tmp_path / "products", on="sku", page_rows=8)
    build_pages(SHOPS, tmp_path / "shops", on="town", page_rows=8)
    (tmp_path / "in").mkdir()
    for number in range(5):
        rows = ORDERS.slice(number * 120, 120).to_pylist()
        (tmp_path / "in" / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def pipeline(folder: Path, text: str = FILE) -> Pipeline:
    # Spark has its own working folder: that of the process that started it.
    for name in ("in", "out", "checkpoint", "products", "shops"):
        text = text.replace(f'"{name}"', f'"{folder / name}"')
    (folder / "p.toml").write_text(text)
    return read_pipeline(folder / "p.toml")


def ran(spark: SparkSession, given: Pipeline) -> Totals:
    seen: list[int] = []
    with explained(given):
        query = start(given, build(spark, given))
        totals = follow(query, given, threading.Event(), lambda now: seen.append(now.batch))
    assert seen == sorted(set(seen))
    assert len(seen) == totals.batches
    return totals


def written(folder: Path) -> pa.Table:
    return ds.dataset(folder / "out", format="parquet", exclude_invalid_files=True).to_table()


# ---------------------------------------------------------------------------------------------- runs


def test_a_run_is_the_join_and_the_next_one_has_nothing_to_do(spark: SparkSession, folder: Path) -> None:
    totals = ran(spark, pipeline(folder))
    assert_same_rows(written(folder), reference_join(ORDERS, PRODUCTS, "sku", "left"))
    assert totals.batches == 3
    assert totals.rows_in == totals.rows_out == 600
    assert totals.unmatched == reference_join(ORDERS, PRODUCTS, "sku", "anti").num_rows
    assert 0 <= totals.hit_rate <= 1
    assert totals.lag.endswith(" s")
    again = ran(spark, pipeline(folder))
    assert (again.batches, again.rows_in) == (0, 0)
    (folder / "in" / "late.json").write_text('{"number": 600, "sku": 1, "shop": "Ulm"}')
    assert ran(spark, pipeline(folder)).rows_in == 1


def test_two_dimensions_sql_and_partitions(spark: SparkSession, folder: Path) -> None:
    text = FILE.replace(
        '[sink]\nformat = "parquet"',
        """
        [[enrich]]
        master = "shops"
        on = { place = "town" }
        how = "inner"
        select = ["country"]
        memory = 8_000_000
        algorithm = "ssbj"
        reads = "direct"

        [sink]
        format = "parquet"
        partition_by = ["country"]
        sql = "SELECT number, price, country FROM enriched WHERE number % 2 = 0"
        options = { compression = "zstd" }
        """,
    )
    text = text.replace("[[enrich]]", 'sql = "SELECT number, sku, shop AS place FROM source"\n[[enrich]]', 1)
    totals = ran(spark, pipeline(folder, text))
    assert totals.rows_out == 600
    parts = {path.name: path for path in (folder / "out").glob("country=*")}
    assert set(parts) == {"country=DE"}
    table = ds.dataset(parts["country=DE"], format="parquet").to_table()
    priced = reference_join(ORDERS, PRODUCTS, "sku", "left").select(["number", "price"])
    assert_same_rows(table, priced.filter(pa.compute.equal(pa.compute.bit_wise_and(priced["number"], 1), 0)))


def test_rows_without_a_match_wait_and_become_dead_letters(spark: SparkSession, folder: Path) -> None:
    missing = f'''memory = "8MB"
        on_missing = "wait"
        wait = "1h"
        then = "dead_letter"
        dead_letters = "{folder / "letters"}"
        '''
    text = FILE.replace('memory = "8MB"', missing)
    alone = reference_join(ORDERS, PRODUCTS, "sku", "anti")
    null = alone.filter(pa.compute.is_null(alone["sku"]))
    totals = ran(spark, pipeline(folder, text))
    assert_same_rows(written(folder), reference_join(ORDERS, PRODUCTS, "sku", "inner"))
    assert (totals.unmatched, totals.dead_letters, totals.expired) == (alone.num_rows, null.num_rows, 0)
    assert totals.parked > 0
    with pytest.raises(PipelineError, match="has dead letters, which workers write"):
        ran(spark, pipeline(folder, text + 'writer = "spark"\n'))
    ended = ran(spark, pipeline(folder, text.replace('"1h"', '"1ms"')))
    assert (ended.rows_in, ended.dead_letters) == (0, alone.num_rows - null.num_rows)
    assert_same_rows(ds.dataset(folder / "letters", format="parquet").to_table(), alone)


def test_dimensions_that_are_alike_are_joined_in_one_pass(spark: SparkSession, folder: Path) -> None:
    second = '[[enrich]]\nmaster = "shops"\non = { shop = "town" }\nmemory = "8MB"\n[sink]'
    given = pipeline(folder, FILE.replace("[sink]", second))
    totals = ran(spark, given)
    both = reference_join(reference_join(ORDERS, PRODUCTS, "sku", "left"), SHOPS, {"shop": "town"}, "left")
    assert_same_rows(written(folder), both)
    assert totals.rows_in == totals.rows_out == 600
    plan = build(spark, given)._jdf.queryExecution().analyzed().toString()
    assert plan.count("MapInArrow ") == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((' = "sku"', ' = "sku2"'), "sku2"),
        (('"products"', '"nowhere"'), "nowhere"),
        (('path = "in"', 'path = "/not/there"'), "/not/there"),
        (("sku BIGINT", "sku STRING"), "sku"),
        (("sku BIGINT", "sku BIGGINT"), "BIGGINT"),
        (('"8MB"', '"1kB"'), "at least"),
        (('format = "json"', 'format = "carrier-pigeon"'), "carrier-pigeon"),
        (('format = "parquet"', 'format = "carrier-pigeon"'), "carrier-pigeon"),
        (('path = "out"', 'path = "out"\npartition_by = ["year"]'), "'year'"),
        (('path = "out"', 'path = "out"\nsql = "SELECT nmber FROM enriched"'), "nmber"),
    ],
)
def test_what_only_spark_can_tell_is_told_before_the_query_starts(
    spark: SparkSession, folder: Path, change: tuple[str, str], said: str
) -> None:
    given = pipeline(folder, FILE.replace(*change))
    with pytest.raises(PipelineError) as error, explained(given):
        start(given, build(spark, given))
    assert said in str(error.value)
    assert "JVM" not in str(error.value)
    assert len(str(error.value)) < 1000
    assert not (folder / "out").exists()


def test_a_failure_in_a_worker_is_told_in_its_own_words(spark: SparkSession, folder: Path) -> None:
    given = pipeline(folder)
    frame = build(spark, given)
    (pages,) = (folder / "products").rglob("pages-*.arrow")
    content = bytearray(pages.read_bytes())
    content[200 : len(content) // 2] = bytes(len(content) // 2 - 200)
    pages.write_bytes(content)
    with pytest.raises(PipelineError) as error, explained(given):
        follow(start(given, frame), given, threading.Event(), lambda _: None)
    assert "checksum" in str(error.value)
    assert "Traceback" not in str(error.value)


LAKES = {
    "parquet": "",
    "delta": "compact = false",
    "iceberg": """file_size = "1MB"\n[sink.options.catalog]\ntype = "sql"\nuri = "sqlite:///{folder}/c.db"
warehouse = "file://{folder}/warehouse"\nname = "tests"\n""",
}


@pytest.mark.parametrize("format", LAKES)
def test_workers_write_a_lake(spark: SparkSession, folder: Path, format: str) -> None:
    path = "db.t" if format == "iceberg" else str(folder / "lake")
    options = LAKES[format].format(folder=folder)
    text = FILE.replace('"parquet"\npath = "out"', f'"{format}"\npath = "{path}"\n[sink.options]\n{options}')
    given = pipeline(folder, text)
    assert writing(given, build(spark, given)).how.startswith(
        f"workers write {format} to {path}: join and write are one"
    )
    totals = ran(spark, given)
    assert (totals.batches, totals.rows_in, totals.rows_out) == (3, 600, 600)
    if format == "iceberg":
        catalog = {key.removeprefix("catalog."): value for key, value in given.sink.options.items() if "." in key}
        rows = load_catalog(**catalog).load_table(path).scan().to_arrow()
    else:
        rows = (
            ds.dataset(path, format="parquet").to_table()
            if format == "parquet"
            else DeltaTable(path).to_pyarrow_table()
        )
    assert_same_rows(pa.table(rows), reference_join(ORDERS, PRODUCTS, "sku", "left"))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (('format = "parquet"', 'format = "json"'), "workers write parquet, delta, iceberg"),
        (('path = "out"', 'path = "out"\nmode = "update"'), "the mode is update"),
        (('path = "out"', 'path = "out"\noptions = { compression = "zstd" }'), "the option compression"),
        (('format = "parquet"\npath = "out"', 'format = "iceberg"\npath = "db.t"'), "need the option catalog"),
        (('path = "out"', 'path = "s3a://bucket/out"'), "mounted"),
        (('path = "out"', 'path = "out"\nwriter = "spark"'), 'writer = "spark"'),
    ],
)
def test_spark_writes_what_workers_cannot(spark: SparkSession, folder: Path, change: tuple[str, str], why: str) -> None:
    given = pipeline(folder, FILE.replace(*change))
    found = writing(given, spark.range(1))
    assert not found.by_workers
    assert why in found.how


def test_a_pipeline_goes_on_with_the_sink_it_began_with(spark: SparkSession, folder: Path) -> None:
    """Rows that Spark's sink has, and whose batch is not committed, must not be written by workers again."""
    late = folder / "in" / "4.json"
    late.rename(folder / "4.json")
    ran(spark, pipeline(folder, FILE.replace('path = "out"', 'path = "out"\nwriter = "spark"')))
    (folder / "4.json").rename(late)
    given = pipeline(folder)
    assert "_spark_metadata" in writing(given, build(spark, given)).how
    moved = pipeline(folder, FILE.replace('path = "out"', 'path = "elsewhere"'))
    assert "was begun with Spark's own sink" in writing(moved, build(spark, moved)).how
    forced = pipeline(folder, FILE.replace('path = "out"', f'path = "{folder}/other"\nwriter = "workers"'))
    with pytest.raises(PipelineError, match="a sink of Spark's"), explained(forced):
        start(forced, build(spark, forced))
    ran(spark, given)
    assert_same_rows(written(folder), reference_join(ORDERS, PRODUCTS, "sku", "left"))


def test_what_workers_began_is_not_continued_by_spark(spark: SparkSession, folder: Path) -> None:
    ran(spark, pipeline(folder))
    for change in ('writer = "spark"', 'options = { compression = "zstd" }'):
        given = pipeline(folder, FILE.replace('path = "out"', f'path = "out"\n{change}'))
        with pytest.raises(PipelineError, match="was begun with workers that write"), explained(given):
            start(given, build(spark, given))


def test_stop_ends_the_query(spark: SparkSession, folder: Path) -> None:
    given = pipeline(folder, FILE.replace('trigger = "availableNow"', 'trigger = "1s"'))
    stop = threading.Event()
    with explained(given):
        query = start(given, build(spark, given))
        totals = follow(query, given, stop, lambda now: stop.set() if now.rows_in == 600 else None)
    assert not query.isActive
    assert totals.rows_in == 600
    assert_same_rows(written(folder), reference_join(ORDERS, PRODUCTS, "sku", "left"))


COMMAND = [sys.executable, "-m", "semistream.cli", "run", "p.toml", "--json"]


def test_the_command_ends_in_good_order_and_keeps_its_secrets(folder: Path) -> None:
    """A signal for all its processes, and a password in a setting, an option and the name."""
    text = FILE.replace('"orders"', '"${PASSWORD}"').replace('trigger = "availableNow"', 'trigger = "500 ms"')
    text = text.replace("maxFilesPerTrigger = 2", 'maxFilesPerTrigger = 2, password = "${PASSWORD}"')
    text += '[spark]\nmaster = "local[1]"\n[spark.conf]\nspark.driver.memory = "512m"\nspark.hadoop.a = "${PASSWORD}"\n'
    (folder / "p.toml").write_text(text)
    environment = {**os.environ, "PASSWORD": SECRET}
    pipe = subprocess.PIPE
    run = subprocess.Popen(COMMAND, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    try:
        until = time.monotonic() + 300
        while len(list((folder / "checkpoint").glob("commits/[0-9]*"))) < 3 and run.poll() is None:
            assert time.monotonic() < until, "the three batches were not done"
            time.sleep(0.2)
        shown = lines_of_commands()
        os.killpg(run.pid, signal.SIGTERM)
        out, err = run.communicate(timeout=120)
    finally:
        run.kill()
        run.communicate()
    assert SECRET not in shown
    assert run.returncode == 0, err
    result = json.loads(out)
    assert (result["name"], result["status"], result["rows_in"], result["rows_out"]) == (
        "${PASSWORD}",
        "stopped",
        600,
        600,
    )
    assert_same_rows(written(folder), reference_join(ORDERS, PRODUCTS, "sku", "left"))
    # A first run says before that it compiles.
    assert "\n${PASSWORD}: batch 0 | 240 rows" in "\n" + err
    assert "\n${PASSWORD}: workers write parquet to out: join and write are one pass: enrich(" in "\n" + err
    assert SECRET not in out + err


def lines_of_commands() -> str:
    """What `ps` shows to everybody."""
    lines = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(process.read_text(errors="replace").replace("\0", " "))
    assert any("org.apache.spark" in line for line in lines)
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------------- the file

MISTAKES = {
    "no TOML": (("[source]", "[source"), "no TOML file"),
    "unknown key": (("checkpoint", "chekpoint"), "has no key 'chekpoint'; did you mean 'checkpoint'?"),
    "unknown key of the source": (("schema =", "shema ="), "[source] has no key 'shema'; did you mean 'schema'?"),
    "unknown key of an enrichment": (("on =", "onn ="), "[[enrich]] has no key 'onn'; did you mean 'on'?"),
    "key like no other": (("on =", "zzz ="), "it has master, on, how"),
    "unknown shuffle": (('on = "sku"', 'on = "sku"\nshuffle = "riffle"'), "none, key"),
    "unknown reads": (
        ('on = "sku"', 'on = "sku"\nreads = "buffered"'),
        "reads = 'buffered' is unknown; allowed are auto, mapped, direct",
    ),
    "delay that is none": (('on = "sku"', 'on = "sku"\nmax_delay = "soon"'), "'soon' is not a duration"),
    "no source": (("[source]", "[spark.conf]"), "there is no table [source]"),
    "no format": (('format = "json"', ""), "[source] has no format"),
    "no such writer": (('path = "out"', 'path = "out"\nwriter = "me"'), "allowed are workers, spark"),
    "workers cannot": (('format = "parquet"', 'format = "json"\nwriter = "workers"'), "cannot write json"),
    "workers append": (('path = "out"', 'path = "out"\nmode = "update"\nwriter = "workers"'), "no mode 'update'"),
    "no path": (('path = "in"', ""), "names no path"),
    "no schema": (("schema =", "#"), 'add schema = "column type'),
    "sink without path": (('path = "out"', ""), "[sink] writes parquet files but names no path"),
    "no checkpoint": (("checkpoint =", "#"), "checkpoint is missing"),
    "enrich with one bracket": (("[[enrich]]", "[enrich]"), "two brackets"),
    "no enrich": (("[[enrich]]", "[spark.conf]"), "there is no [[enrich]]"),
    "no master": (('master = "products"', ""), "[[enrich]] has no master"),
    "no key": (('on = "sku"', ""), "must name the key columns"),
    "empty key": (('on = "sku"', "on = []"), "must name the key columns"),
    "key of numbers": (('on = "sku"', "on = { sku = 1 }"), "must name the key columns"),
    "key twice": (('on = "sku"', 'on = ["sku", "sku"]'), "twice"),
    "unknown how": (('on = "sku"', 'on = "sku"\nhow = "outer"'), "inner, left, semi, anti"),
    "select that is a text": (('on = "sku"', 'on = "sku"\nselect = "price"'), "must be a list of column names"),
    "size that is none": (('"8MB"', '"8 parsecs"'), "8 parsecs"),
    "unknown algorithm": (('on = "sku"', 'on = "sku"\nalgorithm = "mashjoin"'), "meshjoin"),
    "unknown option": (('"8MB"', '"8MB"\noptions = { cache_shar = 0.5 }'), "has no option 'cache_shar'"),
    "option out of range": (('"8MB"', '"8MB"\noptions = { gap_bytes = -1 }'), "allowed are whole numbers from 0"),
    "option of an algorithm with auto": (
        ('"8MB"', '"8MB"\nalgorithm = "auto"\noptions = { gap_bytes = 1 }'),
        "'auto' has no option 'gap_bytes'",
    ),
    "number for a text": (('path = "in"', "path = 7"), "path = 7 must be a text"),
    "empty text": (('path = "in"', 'path = " "'), "must be a text that is not empty"),
    "list as an option": (("maxFilesPerTrigger = 2", "maxFilesPerTrigger = [2]"), "options.maxFilesPerTrigger"),
    "options that are none": (("{ maxFilesPerTrigger = 2 }", "2"), "must be a table"),
    "unknown mode": (('path = "out"', 'path = "out"\nmode = "complete"'), "append, update"),
    "unknown trigger": (('"availableNow"', '"soon"'), '"10 seconds"'),
    "trigger of another kind": (('"availableNow"', '{ continuous = "1s" }'), "processingTime"),
    "unset variable": (('path = "in"', 'path = "${NOT_SET_7}"'), "source.path wants ${NOT_SET_7}, which is not set"),
    "master as a setting": (('path = "out"', 'path = "out"\n[spark]\nconf.spark.master = "yarn"'), "master in [spark]"),
    "half a variable": (('path = "in"', 'path = "${x y}"'), "begins no ${NAME}"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_the_file(tmp_path: Path, mistake: str) -> None:
    change, said = MISTAKES[mistake]
    text = FILE.replace(change[0], change[1], 1)
    assert text != FILE
    (tmp_path / "p.toml").write_text(text)
    result = CliRunner().invoke(app, ["run", str(tmp_path / "p.toml")])
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith(f"error: {tmp_path / 'p.toml'}")
    assert result.stderr.count("\n") == 1
    assert said in result.stderr


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["run", str(tmp_path / "none.toml")])
    assert result.exit_code == 2
    assert "none.toml cannot be read" in result.stderr


def test_the_same_name_twice(tmp_path: Path) -> None:
    twice = FILE.replace("[sink]", '[[enrich]]\nmaster = "b/products"\non = "shop"\n[sink]')
    with pytest.raises(PipelineError, match=r"\[\[enrich\]\] number 2 is the second one named 'products'"):
        pipeline(tmp_path, twice)
    assert [one.name for one in pipeline(tmp_path, twice.replace("/products", "/p")).enrichments] == ["products", "p"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ('trigger = "availableNow"', {"availableNow": True}),
        ('trigger = "once"', {"once": True}),
        ('trigger = "10 seconds"', {"processingTime": "10 seconds"}),
        ('trigger = "10s"', {"processingTime": "10 seconds"}),
        ('trigger = "250ms"', {"processingTime": "250 milliseconds"}),
        ('trigger = { processingTime = "1 minute" }', {"processingTime": "1 minute"}),
        ("", {}),
    ],
)
def test_triggers(tmp_path: Path, given: str, expected: dict[str, Any]) -> None:
    assert pipeline(tmp_path, FILE.replace('trigger = "availableNow"', given)).trigger == expected


def test_defaults_and_option_values(tmp_path: Path) -> None:
    text = FILE.replace("checkpoint = ", "#").replace("parquet", "noop").replace("{ maxFilesPerTrigger = 2 }", "{}")
    text += "[spark.conf]\nspark.sql.shuffle.partitions = 7\nspark.ui.enabled = true\n"
    given = pipeline(tmp_path, text.replace('name = "orders"', "").replace('memory = "8MB"', ""))
    assert (given.name, given.master, given.checkpoint, given.sink.mode) == ("p", "local[*]", None, "append")
    assert given.conf == {"spark.sql.shuffle.partitions": "7", "spark.ui.enabled": "true"}
    (one,) = given.enrichments
    assert one.request == JoinRequest.make(
        on=one.request.spec.stream_on, how="left", memory="256MB", algorithm="sweepjoin"
    )


def test_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", "here")
    monkeypatch.delenv("OTHER", raising=False)
    for text, expected in {
        "${PLACE}": "here",
        "a/${PLACE}/${PLACE}b": "a/here/hereb",
        "${OTHER:-there}": "there",
        "${PLACE:-there}": "here",
        "$${PLACE}": "${PLACE}",
        "$PLACE $ {x}": "$PLACE $ {x}",
    }.items():
        given = pipeline(tmp_path, FILE.replace('path = "in"', f'path = "{text}"'))
        assert given.source.path == expected
        assert as_written(given)["source"]["path"] == text


def test_messages_show_names_for_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOW", SECRET)
    with pytest.raises(PipelineError, match=r'how="\$\{HOW\}" is unknown') as error:
        pipeline(tmp_path, FILE.replace('on = "sku"', 'on = "sku"\nhow = "${HOW}"'))
    assert "dor" not in str(error.value)
    assert error.value.__cause__ is None


def test_redaction_knows_the_ways_a_value_is_quoted() -> None:
    secrets = Secrets({"A": SECRET, "B": "two words\nand lines", "C": SECRET[:5], "EMPTY": ""})
    assert secrets.redact(f"<{SECRET}>") == "<${A}>"
    assert secrets.redact(repr({"x": SECRET})) == repr({"x": "${A}"}).replace("'${A}'", '"${A}"')
    assert secrets.redact(json.dumps(SECRET)) == '"${A}"'
    assert secrets.redact("hdfs://two%20words") == "hdfs://${B}"
    assert secrets.redact("and lines, tr0ub") == "${B}, ${C}"
    assert Secrets().redact("nothing") == "nothing"


@pytest.mark.parametrize(
    ("value", "text", "expected"),
    [
        ("x", "the worker exited, max 3", "the worker exited, max 3"),
        ("x", "password=x, 'x', x", "password=${P}, '${P}', ${P}"),
        ("x", "jdbc://me:x@host/x?p=x&q=1 my_x", "jdbc://me:${P}@host/${P}?p=${P}&q=1 my_${P}"),
        ("x", r"a line\nx and%20x and \x20x", r"a line\n${P} and%20${P} and \x20${P}"),
        ("test", "the tests of the latest test", "the tests of the latest ${P}"),
        ("9092", "port 19092, port 9092", "port 19092, port ${P}"),
        ("a1b2", "xa1b2y", "x${P}y"),
        ("é", "réussi é", "réussi ${P}"),
        ("&3", "x&3 x&34", "x${P} x&34"),
        ("/", "/a/b '/' /", "/a/b '${P}' ${P}"),
        ("password", "mypasswords", "my${P}s"),
    ],
)
def test_a_short_value_is_masked_as_a_word_and_spoils_no_other(value: str, text: str, expected: str) -> None:
    assert Secrets({"P": value}).redact(text) == expected


def test_a_short_value_is_masked_where_the_file_glues_it_to_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P", "x")
    monkeypatch.setenv("Q", "y7")
    secrets = Secrets()
    assert secrets.fill("pre${P}post/${P}${Q}?${N:-no}", "here") == "prexpost/xy7?no"
    assert secrets.redact("cannot read prexpost, xy7; exit no") == "cannot read ${P}, ${Q}; exit no"


def test_the_plan_hides_what_looks_like_a_password(tmp_path: Path) -> None:
    given = pipeline(tmp_path, FILE.replace("maxFilesPerTrigger = 2", 'password = "plain", token = "${T:-x}"'))
    assert as_written(given)["source"]["options"] == {"password": "(hidden)", "token": "${T:-x}"}


def test_the_documented_pipeline_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_PASSWORD", SECRET)
    monkeypatch.delenv("BROKERS", raising=False)
    text = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text()
    example, master, sink = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    given = pipeline(tmp_path, example)
    monkeypatch.setenv("SHOP_PASSWORD", SECRET)
    (kept,) = pipeline(tmp_path, f"{example}\n{master}").masters
    assert kept.schedule == Schedule(300, 1800, "warn")
    assert kept.source.name == "postgresql://db.example/shop?table=public.products"
    lake = pipeline(tmp_path, re.sub(r"\[sink\].*?(?=\[spark\])", sink, example, flags=re.DOTALL)).sink
    assert (lake.format, lake.path) == ("iceberg", "sales.orders")
    assert list(lake.options) == ["catalog.type", "catalog.uri", "catalog.warehouse"]
    assert given.source.options["kafka.bootstrap.servers"] == "localhost:9092"
    assert SECRET in given.source.options["kafka.sasl.jaas.config"]
    assert SECRET not in json.dumps(as_written(given))
    assert [one.name for one in given.enrichments] == ["products.pages", "shops.pages"]
    assert given.conf["spark.jars.packages"].endswith(f":{pyspark.__version__}")
    documented = set(re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE))
    tables = ("source", "master", "enrich", "sink", "spark")
    keys = {*module._TOP, *module._SOURCE, *module._MASTER, *module._ENRICH, *module._SINK, *module._SPARK}
    assert documented == keys.difference(tables) | {"master"}
