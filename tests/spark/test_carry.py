"""Carrying over: whatever the clock and the cache decide, an attempt's rows are given again by every later attempt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.errors import ConfigError, SemiStreamError, StoreError
from semistream.operators.registry import OPERATORS
from semistream.operators.snapshot import Snapshot
from semistream.spark import worker
from semistream.spark.carry import Carrying, steps_due, trim, without
from semistream.spark.metrics import TaskMetrics
from semistream.spark.plan import Dimension
from semistream.spark.records import Record, Records
from semistream.spark.worker import TaskInfo
from semistream.testing import as_multiset, assert_same_rows, reference_join
from semistream.workloads.relation import master_batches, stream_batches

SCANS = sorted(name for name, operator in OPERATORS.items() if operator.access == "scan")
N_KEYS = 20_000


@pytest.fixture(autouse=True)
def _own_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test is an executor of its own, without joins from another one."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "executor"))
    monkeypatch.setattr(worker, "_JOINS", {})
    yield
    _lose_joins()


def _lose_joins() -> None:
    """As if the worker process had died."""
    worker.detach(list(worker._JOINS.values()))


@pytest.fixture
def master(tmp_path: Path) -> Path:
    semistream.build_pages(_master(1), tmp_path / "r", on="k", page_rows=32)
    return tmp_path / "r"


def _master(seed: int) -> pa.Table:
    return pa.Table.from_batches(master_batches(N_KEYS, seed, repeat=True)).select(
        ["k", "m01", "m02", "m03", "m04", "m05"]
    )


def _batches(count: int, rows: int = 400) -> list[pa.Table]:
    stream = pa.Table.from_batches(stream_batches(count * rows, int(N_KEYS * 1.2), 0.8, 5))
    return [stream.slice(i * rows, rows) for i in range(count)]


def _dimension(master: Path, algorithm: str, how: str, memory: int = 1_200_000) -> Dimension:
    return Dimension("r", str(master), (("k", "k"),), how, None, algorithm, "_right", (), memory, 2, True)


class Query:
    """One shard of a streaming query, batch after batch, in this process."""

    def __init__(self, dimension: Dimension, folder: Path, max_delay: float) -> None:
        self.dimension = dimension
        self.records = Records(folder)
        self.max_delay = max_delay

    def attempt(self, batch: int, rows: pa.Table) -> list[pa.RecordBatch]:
        carrying = Carrying(self.dimension, self.records, self.max_delay, TaskInfo("q", batch, 0))
        record = self.records.of(batch, 0)
        told = TaskMetrics.begin(self.dimension, carrying.task)
        source = iter(rows.to_batches(max_chunksize=150))
        return list(carrying.replay(record, source, told) if record else carrying.advance(source, told))

    def finish(self, batch: int, schema: pa.Schema) -> list[pa.RecordBatch]:
        self.records.set_finishing(True)
        return self.attempt(batch, schema.empty_table())


def _shuffled(table: pa.Table, seed: int) -> pa.Table:
    return table.take(np.random.default_rng(seed).permutation(table.num_rows))


def _rows(batches: list[pa.RecordBatch]) -> dict[object, int]:
    return as_multiset(pa.Table.from_batches(batches)) if batches else {}


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
@pytest.mark.parametrize("algorithm", SCANS)
def test_replay_gives_the_rows_of_the_first_attempt(algorithm: str, how: str, master: Path, tmp_path: Path) -> None:
    """Each batch is replayed, its rows in another order, with the cache lost, and R changed in the middle."""
    query = Query(_dimension(master, algorithm, how), tmp_path / "state", max_delay=0.05)
    batches = _batches(8)
    output: list[pa.RecordBatch] = []
    carried = 0
    for number, rows in enumerate(batches):
        if number == 5:
            semistream.build_pages(_master(2), master, on="k", page_rows=32, overwrite=True)
        first = query.attempt(number, rows)
        for again in range(2):
            if again:
                _lose_joins()
            assert _rows(query.attempt(number, _shuffled(rows, number))) == _rows(first)
        output += first
        carried += query.records.waiting()
    output += query.finish(len(batches), batches[0].schema)
    assert carried > 0, "no tuple was ever carried over: the test shows nothing"
    assert query.records.waiting() == 0
    old = reference_join(pa.concat_tables(batches[:5]), _master(1), "k", how)
    new = reference_join(pa.concat_tables(batches[5:]), _master(2), "k", how)
    assert_same_rows(pa.Table.from_batches(output, schema=old.schema), pa.concat_tables([old, new]))


@pytest.mark.parametrize("algorithm", SCANS)
def test_lost_join_is_restored(algorithm: str, master: Path, tmp_path: Path) -> None:
    """The next batch may meet another process, which has only the record."""
    query = Query(_dimension(master, algorithm, "left", memory=2_000_000), tmp_path / "state", max_delay=0.4)
    batches = _batches(16, rows=1000)
    output = []
    for number, rows in enumerate(batches):
        output += query.attempt(number, rows)
        if number % 3:
            _lose_joins()
    output += query.finish(len(batches), batches[0].schema)
    expected = reference_join(pa.concat_tables(batches), _master(1), "k", "left")
    assert_same_rows(pa.Table.from_batches(output), expected)


def test_new_version_without_input(master: Path, tmp_path: Path) -> None:
    """Those who wait finish with the old version although the batch brings nothing, and a replay agrees."""
    query = Query(_dimension(master, "meshjoin", "left"), tmp_path / "state", max_delay=60.0)
    (rows,) = _batches(1)
    output = query.attempt(0, rows)
    semistream.build_pages(_master(2), master, on="k", page_rows=32, overwrite=True)
    first = query.attempt(1, rows.schema.empty_table())
    assert query.records.waiting() == 0
    assert _rows(query.attempt(1, rows.schema.empty_table())) == _rows(first)
    assert_same_rows(pa.Table.from_batches([*output, *first]), reference_join(rows, _master(1), "k", "left"))


def test_memory_may_change_between_runs(master: Path, tmp_path: Path) -> None:
    """Those who wait keep the budget they began with; the others get the new one."""
    batches = _batches(4)
    output = []
    for number, rows in enumerate(batches):
        dimension = _dimension(master, "meshjoin", "inner", memory=1_200_000 + 200_000 * number)
        output += Query(dimension, tmp_path / "state", max_delay=0.05).attempt(number, rows)
    output += Query(_dimension(master, "meshjoin", "inner"), tmp_path / "state", 0.05).finish(4, batches[0].schema)
    expected = reference_join(pa.concat_tables(batches), _master(1), "k", "inner")
    assert_same_rows(pa.Table.from_batches(output), expected)


def test_records_of_finished_batches_are_removed(master: Path, tmp_path: Path) -> None:
    query = Query(_dimension(master, "meshjoin", "inner"), tmp_path / "state", max_delay=60.0)
    for number, rows in enumerate(_batches(6)):
        query.attempt(number, rows)
    assert sorted(path.name for path in (tmp_path / "state").glob("s*")) == [
        "s00000-b000000000004.arrow",
        "s00000-b000000000005.arrow",
    ]


def test_first_record_wins(master: Path, tmp_path: Path) -> None:
    """Of two attempts at once, the second to publish fails: its rows must not reach the sink."""
    query = Query(_dimension(master, "meshjoin", "inner"), tmp_path / "state", max_delay=60.0)
    (rows,) = _batches(1)
    slow = Carrying(query.dimension, query.records, 60.0, TaskInfo("q", 0, 0))
    told = TaskMetrics.begin(query.dimension, slow.task)
    running = slow.advance(iter(rows.to_batches()), told)
    other = Query(_dimension(master, "meshjoin", "inner"), tmp_path / "state", max_delay=60.0)
    worker_joins = dict(worker._JOINS)
    worker._JOINS.clear()
    first = _rows(other.attempt(0, rows))
    worker._JOINS.update(worker_joins)
    with pytest.raises(SemiStreamError, match="another attempt at batch 0"):
        list(running)
    assert _rows(query.attempt(0, rows)) == first


def test_damaged_record_is_refused(master: Path, tmp_path: Path) -> None:
    query = Query(_dimension(master, "meshjoin", "inner"), tmp_path / "state", max_delay=60.0)
    first, second = _batches(2)
    query.attempt(0, first)
    (record,) = (tmp_path / "state").glob("s*")
    record.write_bytes(record.read_bytes()[:100])
    with pytest.raises(StoreError, match="holds waiting tuples and cannot be read"):
        query.attempt(1, second)


def test_number_of_shards_is_fixed_by_the_checkpoint(tmp_path: Path) -> None:
    records = Records(tmp_path)
    assert records.fix_shards(None, 4) == 4
    assert records.fix_shards(None, 8) == 4
    assert records.fix_shards(4, 8) == 4
    with pytest.raises(ConfigError, match="shards=5, but this checkpoint divides the stream into 4"):
        records.fix_shards(5, 8)


def test_steps_are_spread_over_the_delay(master: Path) -> None:
    """A tuple's steps are made in proportion to the time that has passed, all of them when its time is up."""
    with semistream.open_join("meshjoin", master=master, on="k", memory="500KB") as join:
        (rows,) = _batches(1)
        list(join.push(rows.to_batches()[0]))
        join.close_chunk()
        waiting, k = len(join.pending), join.k
        assert k > 4
        last = join.chunks[-1][1] - join.step_number
        assert steps_due(join, [[waiting, 0.0]], interval=1.0, max_delay=10.0, now=0.0) == -(-last // 10)
        assert steps_due(join, [[waiting, 0.0]], interval=1.0, max_delay=10.0, now=9.5) == last
        assert steps_due(join, [], interval=1.0, max_delay=10.0, now=9.5) if not join.chunks else True


def test_trim_keeps_the_youngest() -> None:
    assert trim([[5, 1.0], [0, 2.0], [3, 3.0]], 4) == [[1, 1.0], [3, 3.0]]
    assert trim([[5, 1.0]], 0) == []


def test_without_counts_copies() -> None:
    """Rows are taken off one copy at a time, whatever their columns are made of."""
    rows = [[1.5, float("nan")], None, [], [1.5, float("nan")]]
    table = pa.table(
        {"k": [1, 2, 2, 1], "nested": pa.array(rows, pa.list_(pa.float64())), "b": [b"x", None, None, b"x"]}
    )
    left = without(table, table.slice(0, 1))
    assert left.num_rows == 3
    assert left["k"].to_pylist() == [2, 2, 1]
    assert without(table, table).num_rows == 0


def test_record_survives_the_file(tmp_path: Path) -> None:
    records = Records(tmp_path / "state")
    tuples = pa.table({"k": [1], "__matched": [True]})
    record = Record(3, 1, 2, 1000, 5.0, [[1, 4.0]], Snapshot({"k": 7}, tuples))
    records.publish(record)
    found = records.of(3, 1)
    assert found is not None
    assert (found.version, found.arrivals, found.snapshot.state) == (2, [[1, 4.0]], {"k": 7})
    assert found.snapshot.tuples == tuples
    assert records.before(9, 1) is not None
    assert records.before(3, 1) is None
