"""Tuples carried over from batch to batch: the records of a shard, its head, its binding, and the pins beside them.

The sink is one that takes a batch as a whole: of a batch that was attempted again it has the rows of the last attempt.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tests.faults.harness import Scenario, Verdict, compare

from semistream.errors import StoreError
from semistream.master.build import build_pages
from semistream.master.open import open_master
from semistream.spark.carry import Carrying, CarryPlan, ShardInput
from semistream.spark.dimension import Dimension
from semistream.spark.metrics import TaskMetrics
from semistream.spark.records import Records, records_folder
from semistream.spark.waiting import Drain
from semistream.spark.worker import WORKSHOP, TaskInfo
from semistream.spec import JoinRequest
from semistream.testing import reference_join

N_KEYS, ROWS = 96, 24
SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string())])
QUERY = "q"


def _master(version: int) -> pa.Table:
    keys = [i * 2 // 3 for i in range(N_KEYS)]
    return pa.table({"k": pa.array(keys, pa.int64()), "v": [f"{version}-{i}" for i in range(N_KEYS)]})


def _batch(number: int) -> pa.Table:
    keys = [(i * 7 + number * 13) % (N_KEYS * 3 // 4) for i in range(ROWS)]
    return pa.table({"k": keys, "s": [f"{number}.{i}" for i in range(ROWS)]}, schema=SCHEMA)


def _dimension(folder: Path) -> Dimension:
    master = open_master(folder / "r", "k")
    dimension = Dimension(
        name="r",
        master=str(folder / "r"),
        request=JoinRequest.make(
            on="k",
            how="left",
            select=("v",),
            memory=1 << 20,
            algorithm="meshjoin",
            max_delay=3600.0,
            options={"k": 6},
        ),
        tasks=1,
        versioned=True,
        lineage=master.lineage,
        stream=SCHEMA.serialize().to_pybytes(),
        columns=master.schema.serialize().to_pybytes(),
    )
    master.close()
    return dimension


def _records(folder: Path) -> Records:
    return Records(records_folder(folder / "checkpoint", "r"))


def _bind(folder: Path) -> CarryPlan:
    os.environ["SPARK_LOCAL_DIRS"] = str(folder / "executor")
    WORKSHOP.clear()
    dimension = _dimension(folder)
    records = _records(folder)
    records.bind(dimension.name, dimension.master, dimension.meaning, 1, 1)
    return CarryPlan(dimension, str(records.folder), "call", 1)


def _attempt(folder: Path, number: int, rows: pa.Table) -> list[pa.RecordBatch]:
    plan = _bind(folder)
    tick = pa.table({"k": [None], "s": [None]}, schema=SCHEMA)
    shards = pa.array([0] * rows.num_rows + [-1 - number], pa.int64())
    batches = pa.concat_tables([rows, tick]).append_column("shard", shards).combine_chunks().to_batches()
    carrying = Carrying(plan, TaskInfo(QUERY, number, 0, "run"), ShardInput(SCHEMA, 1, iter(batches)))
    return list(carrying.run(TaskMetrics.begin(plan.dimension, carrying.task)))


def _prepare(folder: Path) -> None:
    """A store, and one batch whose tuples wait."""
    build_pages(_master(1), folder / "r", on="k", page_rows=8).close()
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "metadata").write_text(json.dumps({"id": QUERY}))
    _keep(folder, _attempt(folder, 0, _batch(0)))
    assert _records(folder).waiting() > 0


def _keep(folder: Path, batches: list[pa.RecordBatch]) -> None:
    """The sink has these rows for good; outside of what faults strike."""
    sink = folder.parent / "sink.parquet"
    pq.write_table(pa.Table.from_batches(batches, schema=_result(folder)), sink)


def _result(folder: Path) -> pa.Schema:
    return reference_join(_batch(0), _master(1), "k", "left").schema


def _judged(folder: Path, rows: list[pa.RecordBatch], batches: int) -> Verdict:
    found = [*pq.read_table(folder.parent / "sink.parquet").to_pylist(), *(r for b in rows for r in b.to_pylist())]
    expected = reference_join(pa.concat_tables([_batch(i) for i in range(batches)]), _master(1), "k", "left")
    return compare(map(str, found), map(str, expected.to_pylist()))


def _rest(folder: Path, number: int) -> list[pa.RecordBatch]:
    """The query goes on until nobody waits."""
    records = _records(folder)
    records.set_finishing(True)
    rows = _attempt(folder, number, SCHEMA.empty_table())
    assert records.waiting() == 0
    return rows


def _second_batch(folder: Path) -> None:
    _attempt(folder, 1, _batch(1))


def _check_second_batch(folder: Path, finished: bool) -> Verdict:
    rows = _attempt(folder, 1, _batch(1))
    # Whoever is attempted once more gives the same rows.
    again = compare(
        map(str, pa.Table.from_batches(_attempt(folder, 1, _batch(1)), schema=_result(folder)).to_pylist()),
        map(str, pa.Table.from_batches(rows, schema=_result(folder)).to_pylist()),
    )
    return again + _judged(folder, [*rows, *_rest(folder, 2)], 2)


def _read(folder: Path) -> Verdict:
    """All that the second batch has left, joined to the end; a replay of it beside that."""
    records = _records(folder).folder
    before = {path: path.read_bytes() for path in records.iterdir() if path.is_file()}
    try:
        rows = _attempt(folder, 1, _batch(1))
        return _judged(folder, [*rows, *_rest(folder, 2)], 2)
    finally:
        for path in records.iterdir():
            if path not in before:
                path.unlink()
        for path, content in before.items():
            if not path.exists() or path.read_bytes() != content:
                path.write_bytes(content)
        for pin in (folder / "r" / "queries").rglob("2.json"):
            pin.unlink()


def _new_version(folder: Path) -> None:
    """R changes, and those who wait finish with the old version in the next batch."""
    build_pages(_master(2), folder / "r", on="k", page_rows=8, overwrite=True, keep_versions=0).close()
    _attempt(folder, 1, SCHEMA.empty_table())


def _check_new_version(folder: Path, finished: bool) -> Verdict:
    rows = _attempt(folder, 1, SCHEMA.empty_table())
    return _judged(folder, [*rows, *_rest(folder, 2)], 1)


def _drain(folder: Path) -> None:
    drain = Drain(_records(folder))
    if drain.resumed() is not None or not drain.tuples:
        return
    out = folder / "drained.parquet"
    table = pa.Table.from_batches(drain.rows(), schema=_result(folder))

    def appear() -> None:
        pq.write_table(table, folder / "hidden")
        os.rename(folder / "hidden", out)

    try:
        drain.settle(out, appear)
    except OSError as error:
        raise StoreError(f"{out} did not appear: {error}") from error


def _check_drain(folder: Path, finished: bool) -> Verdict:
    _drain(folder)
    assert _records(folder).waiting() == 0
    drained = pq.read_table(folder / "drained.parquet").to_batches()
    return _judged(folder, [*drained, *_rest(folder, 1)], 1)


def _unbound(folder: Path) -> None:
    build_pages(_master(1), folder / "r", on="k", page_rows=8).close()
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "metadata").write_text(json.dumps({"id": QUERY}))
    _keep(folder, [])


def _first_batch(folder: Path) -> None:
    _attempt(folder, 0, _batch(0))


def _check_first_batch(folder: Path, finished: bool) -> Verdict:
    rows = _attempt(folder, 0, _batch(0))
    return _judged(folder, [*rows, *_rest(folder, 1)], 1)


SCENARIOS = [
    Scenario("carry: first batch", _unbound, _first_batch, _check_first_batch),
    Scenario("carry: next batch", _prepare, _second_batch, _check_second_batch, _read),
    Scenario("carry: new version of R", _prepare, _new_version, _check_new_version),
    Scenario("carry: drain", _prepare, _drain, _check_drain),
]
