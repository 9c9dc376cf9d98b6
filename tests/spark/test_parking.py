"""Parked tuples: each gives its rows once, when R has its key, or leaves once; any later attempt gives the same."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.spark.hasty import HASTY

import semistream
from semistream.engine.output import is_apart
from semistream.errors import ConfigError, SemiStreamError, StoreError
from semistream.master.open import open_master
from semistream.planner.policy import Policy
from semistream.spark import parking
from semistream.spark.dimension import Dimension
from semistream.spark.metrics import TaskMetrics
from semistream.spark.missing import Missing, MissingOptions
from semistream.spark.parking import Parking, ParkPlan, parked_meaning
from semistream.spark.plans import PlanFiles
from semistream.spark.records import Records, done_before, records_folder
from semistream.spark.shards import ShardInput
from semistream.spark.ticks import ParkedReader
from semistream.spark.waiting import Drain, listed
from semistream.spark.worker import WORKSHOP, TaskInfo, executor_folder
from semistream.spec import JoinRequest, JoinSpec
from semistream.testing import as_multiset

SCHEMA = pa.schema([("k", pa.int64()), ("seq", pa.int64())])
WAIT = 600.0


@pytest.fixture(autouse=True)
def _own_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test is an executor of its own, without joins from another one."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "executor"))
    yield
    WORKSHOP.clear()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of batches, which a test sets."""
    clock = Clock()
    monkeypatch.setattr(parking.time, "time", clock)
    return clock


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def build(path: Path, keys: list[Any], kind: pa.DataType | None = None) -> Path:
    """R with these keys, two rows each."""
    doubled = pa.array([key for key in keys for _ in range(2)], kind or pa.int64())
    names = pa.array([f"{key}-{i}" for key in keys for i in range(2)], pa.string())
    semistream.build_pages(pa.table({"k": doubled, "name": names}), path, on="k", page_rows=16, overwrite=True)
    return path


def tuples(keys: list[Any], first: int = 0, kind: pa.DataType | None = None) -> pa.Table:
    return pa.table({"k": pa.array(keys, kind or pa.int64()), "seq": pa.array(range(first, first + len(keys)))})


class Query:
    """One shard of a streaming query, batch after batch, in this process."""

    def __init__(self, folder: Path, master: Path, then: str = "null", **changes: Any) -> None:
        checkpoint = folder / "checkpoint"
        checkpoint.mkdir(exist_ok=True)
        (checkpoint / "metadata").write_text(json.dumps({"id": "q"}))
        self.checkpoint = checkpoint
        arguments = {"schema": SCHEMA, "wait_bytes": 1 << 20, "wait_s": WAIT, "algorithm": "sweepjoin", **changes}
        with closing(open_master(master, "k")) as opened:
            columns, lineage = opened.schema.serialize().to_pybytes(), opened.lineage
        request = JoinRequest.make(on="k", how="left", select=["name"], memory="4MB", algorithm=arguments["algorithm"])
        dimension = Dimension(
            name="r",
            master=str(master),
            request=replace(request, spec=replace(request.spec, apart=True)),
            tasks=2,
            versioned=True,
            policy=arguments.get("policy", Policy()),
            lineage=lineage,
            stream=arguments["schema"].serialize().to_pybytes(),
            columns=columns,
            missing=Missing(then, arguments["wait_s"], arguments["wait_bytes"]),
        )
        self.records = Records(records_folder(checkpoint, "r"))
        self.records.bind("r", str(master), parked_meaning(dimension), 1, 1)
        self.plan = ParkPlan(dimension, str(self.records.folder), "a", 1)
        self.account: dict[str, float] = {}

    def attempt(self, batch: int, rows: pa.Table | None = None) -> tuple[Counter[Any], list[int]]:
        """The rows of an attempt at a batch, and the `seq` of its dead letters."""
        schema = self.plan.dimension.stream_schema
        given = schema.empty_table() if rows is None else rows
        batches = [_in_shard(part, [0] * part.num_rows) for part in given.to_batches(max_chunksize=7)]
        tick = pa.RecordBatch.from_pylist([dict.fromkeys(schema.names)], schema=schema)
        batches.append(_in_shard(tick, [-1 - batch]))
        turn = Parking(self.plan, TaskInfo("q", batch, 0, "1"), ShardInput(schema, 1, iter(batches)))
        joined: Counter[Any] = Counter()
        letters: list[int] = []
        accounts: list[TaskMetrics] = []
        for item in turn.run():
            if isinstance(item, TaskMetrics):
                accounts.append(item)
            elif is_apart(item):
                letters += item.column("seq").to_pylist()
            else:
                joined += as_multiset(pa.Table.from_batches([item]))
        self.account = accounts[-1].values
        return joined, sorted(letters)

    def parked(self) -> list[int]:
        newest = self.records.shard(0).newest()
        return [] if newest is None else newest.record.parked.column("seq").to_pylist()


def _in_shard(batch: pa.RecordBatch, shard: list[int]) -> pa.RecordBatch:
    marks = pa.array(shard, pa.int64())
    return pa.RecordBatch.from_arrays([*batch.columns, marks], names=[*batch.schema.names, "shard"])


def found(key: Any, seq: int) -> Counter[Any]:
    """The rows of a tuple whose key is in R."""
    rows = pa.table({"k": [key] * 2, "seq": [seq] * 2, "name": [f"{key}-{i}" for i in range(2)]})
    return as_multiset(rows)


def alone(key: Any, seq: int) -> Counter[Any]:
    return as_multiset(pa.table({"k": [key], "seq": [seq], "name": pa.array([None], pa.string())}))


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()], ids=str)
def test_a_tuple_waits_for_its_key(kind: pa.DataType, tmp_path: Path, clock: Clock) -> None:
    key = str if kind == pa.string() else int
    r = build(tmp_path / "r", [key(1), key(2)], kind)
    schema = SCHEMA.set(0, pa.field("k", kind))
    query = Query(tmp_path, r, schema=schema)
    first = tuples([key(1), key(7), key(8), key(7)], kind=kind)
    assert query.attempt(0, first) == (found(key(1), 0), [])
    assert query.parked() == [1, 2, 3]
    assert query.account["parked"] == 3
    assert query.account["unmatched"] == 3
    clock.now += 10
    # R is as it was: nobody asks again.
    assert query.attempt(1, tuples([key(9)], 4, kind)) == (Counter(), [])
    assert query.account["retried"] == 0
    assert query.account["parked_oldest_s"] == 10
    build(r, [key(1), key(2), key(7)], kind)
    assert query.attempt(2) == (found(key(7), 1) + found(key(7), 3), [])
    assert query.parked() == [2, 4]
    assert query.account["retried"] == 4
    assert query.attempt(3) == (Counter(), [])


def test_operators_may_be_tried_while_tuples_are_parked(tmp_path: Path, clock: Clock) -> None:
    """None of them has begun with a parked tuple, so any may go on; an attempt is repeated by another one."""
    r = build(tmp_path / "r", list(range(0, 40, 2)))
    query = Query(tmp_path, r, algorithm="auto", policy=HASTY)
    every = list(range(40))
    for batch in range(12):
        first = 100 * batch
        expected: Counter[Any] = Counter()
        for key in every if batch >= 6 else every[::2]:
            expected += found(key, first + key)
        if batch == 6:
            build(r, every)
            for late in range(6):
                for key in every[1::2]:
                    expected += found(key, 100 * late + key)
        for _ in range(2):
            assert query.attempt(batch, tuples(every, first)) == (expected, [])
    chosen = PlanFiles(executor_folder() / "q", query.plan.dimension.identity).newest()
    assert chosen is not None
    assert len(chosen.shown) == HASTY.most_tried_on_spark
    assert not chosen.on_trial


@pytest.mark.parametrize("algorithm", ["auto", "ssbj", "meshjoin", "orderedjoin"])
def test_any_algorithm(algorithm: str, tmp_path: Path, clock: Clock) -> None:
    r = build(tmp_path / "r", [1, 2])
    query = Query(tmp_path, r, algorithm=algorithm)
    rows, _ = query.attempt(0, tuples([1, 7, 8, None] * 50))
    assert rows.total() == 50 * 2 + 50
    build(r, [1, 2, 7])
    for _ in range(2):
        rows, _ = query.attempt(1)
        assert rows == sum((found(7, seq) for seq in range(1, 200, 4)), Counter())
        assert len(query.parked()) == 50


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()], ids=str)
def test_only_changed_keys_are_tried_again(kind: pa.DataType, tmp_path: Path, clock: Clock) -> None:
    """R changes by runs beside its base; a compaction changes no key, but nobody can tell."""
    key = str if kind == pa.string() else int
    r = build(tmp_path / "r", [key(i) for i in range(100)], kind)
    query = Query(tmp_path, r, schema=SCHEMA.set(0, pa.field("k", kind)))
    query.attempt(0, tuples([key(i) for i in range(100, 160)], kind=kind))

    def refresh(keys: list[int], gone: list[int]) -> None:
        names = [f"{i}-{n}" for i in keys for n in range(2)]
        rows = pa.table({"k": pa.array([key(i) for i in keys for _ in range(2)], kind), "name": names})
        deletes = pa.table({"k": pa.array(map(key, gone), kind)})
        semistream.refresh_pages(r, rows, deletes=deletes).close()

    def retried(batch: int) -> Counter[Any]:
        rows, _ = query.attempt(batch)
        WORKSHOP.clear()
        # The same again, by its record.
        assert query.attempt(batch) == (rows, [])
        return rows

    refresh([120, 7], [3])
    assert retried(1) == found(key(120), 20)
    assert query.account["retried"] == 1
    # A key comes and goes before anybody looks.
    refresh([130, 140], [])
    refresh([150], [130])
    assert retried(2) == found(key(140), 40) + found(key(150), 50)
    assert query.account["retried"] == 2
    assert retried(3) == Counter()
    assert query.account["retried"] == 0
    semistream.compact_pages(r).close()
    assert retried(4) == Counter()
    assert query.account["retried"] == 57
    refresh([130], [])
    assert retried(5) == found(key(130), 30)
    assert query.account["retried"] == 1


def test_a_batch_begins_when_there_is_something_to_do(tmp_path: Path, clock: Clock) -> None:
    """No data arrives; a query that is to end with what is there looks whenever it is asked."""
    r = build(tmp_path / "r", [1])
    query = Query(tmp_path, r)
    where = {"folder": str(query.records.folder), "shards": "1", "seconds": "0.5"}
    ticks = ParkedReader({**where, "wait": str(WAIT), "master": str(r)})
    ticks.prepareForTriggerAvailableNow()

    def is_due(last: int) -> bool:
        return ticks.latestOffset({"tick": last}, ReadAllAvailable()) == {"tick": last + 1}

    assert not is_due(0)
    query.attempt(1, tuples([7]))
    assert not is_due(1)
    build(r, [1, 2])
    assert is_due(1)
    query.attempt(2)
    assert not is_due(2)
    clock.now += WAIT
    assert is_due(2)
    query.attempt(3)
    assert not is_due(3)
    build(r, [1])
    assert not is_due(3)


@pytest.mark.parametrize("then", ["null", "drop", "dead_letter"])
def test_a_tuple_leaves_when_its_time_is_up(then: str, tmp_path: Path, clock: Clock) -> None:
    query = Query(tmp_path, build(tmp_path / "r", [1]), then)
    query.attempt(0, tuples([7, 8]))
    clock.now += WAIT / 2
    query.attempt(1, tuples([9], 2))
    clock.now += WAIT / 2
    gone = {"null": (alone(7, 0) + alone(8, 1), []), "drop": (Counter(), []), "dead_letter": (Counter(), [0, 1])}[then]
    assert query.attempt(2) == gone
    assert query.parked() == [2]
    assert query.account["expired"] == 2
    assert query.account["dead_letters"] == (2 if then == "dead_letter" else 0)
    # The last moment is late enough for a match.
    clock.now += WAIT / 2
    build(tmp_path / "r", [9])
    assert query.attempt(3) == (found(9, 2), [])
    assert query.parked() == []


def test_a_null_key_waits_for_nobody(tmp_path: Path, clock: Clock) -> None:
    query = Query(tmp_path, build(tmp_path / "r", [1]))
    assert query.attempt(0, tuples([None, 5])) == (alone(None, 0), [])
    assert query.parked() == [1]


def test_the_oldest_leave_when_there_is_no_room(tmp_path: Path, clock: Clock) -> None:
    query = Query(tmp_path, build(tmp_path / "r", [1]), wait_bytes=20 * 24)
    query.attempt(0, tuples(list(range(10, 25))))
    clock.now += 1
    rows, _ = query.attempt(1, tuples(list(range(30, 40)), 15))
    parked = query.parked()
    assert parked == list(range(25 - len(parked), 25))
    assert 0 < query.account["parked_bytes"] <= 20 * 24
    assert sum(rows.values()) == query.account["left_early"] == 25 - len(parked)
    # More than there is room for comes at once.
    clock.now += 1
    rows, _ = query.attempt(2, tuples(list(range(100, 200)), 25))
    assert sum(rows.values()) + len(query.parked()) == len(parked) + 100
    assert query.parked() == list(range(125 - len(query.parked()), 125))


def test_a_second_attempt_gives_the_same(tmp_path: Path, clock: Clock) -> None:
    """Whatever R, the clock and the order of the rows are by then."""
    r = build(tmp_path / "r", [1, 2])
    query = Query(tmp_path, r, "dead_letter", wait_bytes=30 * 24)
    random = np.random.default_rng(4)
    given = [tuples([int(key) for key in random.integers(0, 60, 25)], 25 * i) for i in range(6)]
    for batch, rows in enumerate(given):
        if batch == 3:
            build(r, list(range(0, 60, 3)))
        first = query.attempt(batch, rows)
        account, parked = query.account, query.parked()
        build(r, list(range(0, 60, batch + 1)))
        clock.now += 200
        WORKSHOP.clear()
        shuffled = rows.take(random.permutation(rows.num_rows))
        assert query.attempt(batch, shuffled) == first
        assert query.parked() == parked
        counted = ("parked", "parked_bytes", "retried", "dead_letters", "unmatched")
        assert [query.account[name] for name in counted] == [account[name] for name in counted]


def test_an_attempt_that_left_no_record_decides_anew(tmp_path: Path, clock: Clock) -> None:
    query = Query(tmp_path, build(tmp_path / "r", [1]))
    query.attempt(0, tuples([7]))
    turn_rows = tuples([8], 1)
    schema = query.plan.dimension.stream_schema
    batches = iter([_in_shard(part, [0]) for part in turn_rows.to_batches()])
    cut = Parking(query.plan, TaskInfo("q", 1, 0, "1"), ShardInput(schema, 1, batches)).run()
    cut.close()
    clock.now += WAIT
    assert query.attempt(1, turn_rows) == (alone(7, 0), [])
    assert query.parked() == [1]


def test_other_input_is_refused(tmp_path: Path, clock: Clock) -> None:
    query = Query(tmp_path, build(tmp_path / "r", [1]))
    query.attempt(0, tuples([7, 8, 1]))
    with pytest.raises(StoreError, match="the input of batch 0 is not what it was"):
        query.attempt(0, tuples([7, 9, 1]))


def test_a_restart_may_change_what_no_row_depends_on(tmp_path: Path, clock: Clock) -> None:
    r = build(tmp_path / "r", [1])
    Query(tmp_path, r).attempt(0, tuples([7, 8]))
    again = Query(tmp_path, r, wait_s=1.0, wait_bytes=1 << 10, algorithm="cachejoin")
    clock.now += 2
    assert again.attempt(1) == (alone(7, 0) + alone(8, 1), [])
    # Nobody is parked, so all may change.
    schema = SCHEMA.append(pa.field("more", pa.string()))
    other = Query(tmp_path, r, "drop", schema=schema)
    assert other.attempt(2, tuples([7, 1]).append_column("more", pa.array(["x", "y"])))[0].total() == 2
    assert other.parked() == [0]
    clock.now += WAIT
    assert other.attempt(3) == (Counter(), [])
    Query(tmp_path, r).attempt(4, tuples([7, 8]))
    with pytest.raises(ConfigError, match=r"on missing was .*'null'.* now it is .*'drop'"):
        Query(tmp_path, r, "drop")


def test_what_is_parked_can_be_listed_and_drained(tmp_path: Path, clock: Clock) -> None:
    r = build(tmp_path / "r", [1])
    query = Query(tmp_path, r)
    query.attempt(0, tuples([7, 8]))
    (seen,) = listed(query.checkpoint)
    assert (seen.tuples, seen.algorithm, seen.how) == (2, "parked", "left")
    # What is parked needs no version of R but the next.
    assert done_before(query.checkpoint) == 0
    build(r, [8])
    drain = Drain(query.records)
    assert as_multiset(pa.Table.from_batches(list(drain.rows()))) == alone(7, 0) + found(8, 1)
    out = tmp_path / "rows"
    drain.settle(out, lambda: out.touch())
    assert query.attempt(1, tuples([9], 2)) == (Counter(), [])
    assert query.parked() == [2]


@pytest.mark.parametrize(
    ("how", "given", "result"),
    [
        (None, {}, ("left", "")),
        ("inner", {}, ("inner", "")),
        (None, {"on_missing": "null"}, ("left", "")),
        (None, {"on_missing": "drop"}, ("inner", "")),
        ("semi", {"on_missing": "drop"}, ("semi", "")),
        (None, {"on_missing": "dead_letter", "dead_letters": "/x"}, ("left", "dead_letter")),
        ("inner", {"on_missing": "dead_letter", "dead_letters": "/x"}, ("left", "dead_letter")),
        (None, {"on_missing": "wait", "wait": "10m"}, ("left", "null")),
        ("inner", {"on_missing": "wait", "wait": "10m"}, ("left", "drop")),
    ],
)
def test_missing_and_how(how: str | None, given: dict[str, Any], result: tuple[str, str]) -> None:
    kind, missing = MissingOptions(**given).read(how)
    assert (kind, missing.then) == result
    JoinSpec.make("k", kind)


@pytest.mark.parametrize(
    ("how", "given", "said"),
    [
        ("inner", {"on_missing": "null"}, "how='left'"),
        ("left", {"on_missing": "drop"}, "how='inner'"),
        ("anti", {"on_missing": "drop"}, "how='inner'"),
        ("left", {"on_missing": "dead_letter", "dead_letters": "/x"}, "how='inner'"),
        ("semi", {"on_missing": "wait", "wait": 5, "then": "drop"}, "how='inner'"),
        ("inner", {"on_missing": "wait", "wait": 5, "then": "null"}, "how='left'"),
        (None, {"on_missing": "nul"}, "allowed are null, drop, dead_letter, wait"),
        (None, {"on_missing": "wait"}, "wait='10m'"),
        (None, {"on_missing": "wait", "wait": "soon"}, "'30s'"),
        (None, {"on_missing": "wait", "wait": 5, "then": "wait"}, "allowed are null, drop, dead_letter"),
        (None, {"on_missing": "wait", "wait": 5, "wait_bytes": "much"}, "wait_bytes='much'"),
        (None, {"wait": 5}, "on_missing='wait'"),
        (None, {"on_missing": "drop", "then": "null"}, "leave then out"),
        (None, {"on_missing": "dead_letter"}, "dead_letters='/path'"),
        (None, {"on_missing": "drop", "dead_letters": "/x"}, "leave dead_letters out"),
        (None, {"on_missing": "dead_letter", "dead_letters": "/x", "dead_letter_format": "csv"}, "parquet, delta"),
        (None, {"on_missing": "dead_letter", "dead_letters": "s3://x/y"}, "mount"),
    ],
)
def test_contradictions_are_refused(how: str | None, given: dict[str, Any], said: str) -> None:
    with pytest.raises(SemiStreamError, match=said.replace("(", r"\(")):
        MissingOptions(**given).read(how)


def test_a_key_that_is_given_its_own_code_is_tried_again(tmp_path: Path) -> None:
    """Codes above the base's are given to changed keys in turn, so a new key just above them may get its own."""
    store = build(tmp_path / "r", list(range(100)))
    query = Query(tmp_path, store)
    assert query.attempt(0, tuples([101])) == (Counter(), [])
    with closing(semistream.refresh_pages(store, pa.table({"k": [101, 101], "name": ["101-0", "101-1"]}))) as master:
        assert master.coder.codes([pa.array([101])])[0].tolist() == [101]
    assert query.attempt(1) == (found(101, 0), [])
