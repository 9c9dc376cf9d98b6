"""Carrying over: whatever the clock and the cache decide, an attempt's rows are given again by every later attempt."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.algorithms.registry import ALGORITHMS
from semistream.errors import ConfigError, SemiStreamError, StoreError
from semistream.lab.workloads.relation import master_batches, stream_batches
from semistream.master.open import open_master
from semistream.spark.carry import Carrying, CarryPlan, ShardInput, scan_of, steps_due, trim, without
from semistream.spark.dimension import Dimension
from semistream.spark.metrics import TaskMetrics
from semistream.spark.records import Records, all_records, records_folder
from semistream.spark.worker import WORKSHOP, TaskInfo
from semistream.spec import JoinRequest
from semistream.testing import as_multiset, assert_same_rows, reference_join

SCANS = sorted(name for name, operator in ALGORITHMS.items() if operator.access == "scan")
N_KEYS = 20_000


@pytest.fixture(autouse=True)
def _own_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test is an executor of its own, without joins from another one."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "executor"))
    yield
    WORKSHOP.clear()


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
    with closing(open_master(master, "k")) as opened:
        columns = opened.schema.serialize().to_pybytes()
        lineage = opened.lineage
    stream = _batches(1)[0].schema.serialize().to_pybytes()
    select = ("m01", "m02", "m03", "m04", "m05")
    return Dimension(
        name="r",
        master=str(master),
        request=JoinRequest.make(on="k", how=how, select=select, memory=memory, algorithm=algorithm),
        tasks=2,
        versioned=True,
        lineage=lineage,
        stream=stream,
        columns=columns,
    )


def _in_shard(batch: pa.RecordBatch, shard: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*batch.columns, shard], names=[*batch.schema.names, "shard"])


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([column.with_nullable(True) for column in schema])


class Query:
    """One shard of a streaming query, batch after batch, in this process."""

    def __init__(
        self,
        dimension: Dimension,
        checkpoint: Path,
        max_delay: float,
        query: str = "q",
        run: str = "1",
        call: str = "a",
    ) -> None:
        checkpoint.mkdir(exist_ok=True)
        if not (checkpoint / "metadata").exists():
            (checkpoint / "metadata").write_text(json.dumps({"id": query}))
        folder = records_folder(checkpoint, dimension.name)
        self.records = Records(folder)
        self.records.bind(dimension.name, dimension.master, dimension.meaning, 1, 1)
        request = replace(dimension.request, max_delay_s=max_delay)
        self.plan = CarryPlan(replace(dimension, request=request), str(folder), call, 1)
        self.query, self.run = query, run

    def begin(self, batch: int, rows: pa.Table | None = None) -> Carrying:
        """An attempt at a batch; the tick of its number comes with it."""
        schema = self.plan.dimension.stream_schema
        table = schema.empty_table() if rows is None else rows
        batches = [_in_shard(part, pa.array([0] * part.num_rows)) for part in table.to_batches(max_chunksize=150)]
        tick = pa.RecordBatch.from_pylist([dict.fromkeys(schema.names)], schema=_nullable(schema))
        batches.append(_in_shard(tick, pa.array([-1 - batch])))
        task = TaskInfo(self.query, batch, 0, self.run)
        return Carrying(self.plan, task, ShardInput(schema, 1, iter(batches)))

    def attempt(self, batch: int, rows: pa.Table) -> list[pa.RecordBatch]:
        carrying = self.begin(batch, rows)
        return list(carrying.run(TaskMetrics.begin(self.plan.dimension, carrying.task)))

    def finish(self, batch: int, schema: pa.Schema) -> list[pa.RecordBatch]:
        self.records.set_finishing(True)
        return self.attempt(batch, schema.empty_table())

    def files(self) -> list[Path]:
        return sorted(self.records.folder.glob("*.record"))


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
                WORKSHOP.clear()
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
            WORKSHOP.clear()
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


def test_reads_may_change_between_runs(master: Path, tmp_path: Path) -> None:
    """No row depends on them, so those who wait go on, in a join that is opened for the new way."""
    batches, ways = _batches(4), ("mapped", "direct", "auto", "direct")
    output, identities, opened = [], set(), []
    for number, (rows, reads) in enumerate(zip(batches, ways, strict=True)):
        dimension = _dimension(master, "meshjoin", "inner")
        dimension = replace(dimension, request=replace(dimension.request, reads=reads))
        query = Query(dimension, tmp_path / "state", max_delay=60.0)
        carrying = query.begin(number, rows)
        task_metrics = TaskMetrics.begin(dimension, carrying.task)
        output += carrying.run(task_metrics)
        assert query.records.waiting() > 0
        identities.add(dimension.identity)
        opened.append(task_metrics.reading)
    assert opened == ["mapped", "direct", "mapped", "direct"]
    assert len(identities) == 3
    output += query.finish(4, batches[0].schema)
    expected = reference_join(pa.concat_tables(batches), _master(1), "k", "inner")
    assert_same_rows(pa.Table.from_batches(output), expected)


def test_records_of_finished_batches_are_removed(master: Path, tmp_path: Path) -> None:
    query = Query(_dimension(master, "meshjoin", "inner"), tmp_path / "state", max_delay=60.0)
    for number, rows in enumerate(_batches(6)):
        query.attempt(number, rows)
    assert [path.name for path in query.files()] == ["s00000-b000000000004-0.record", "s00000-b000000000005-0.record"]


def test_first_record_wins(master: Path, tmp_path: Path) -> None:
    """Of two attempts at once, the second to publish fails: its rows must not reach the sink."""
    query = Query(_dimension(master, "meshjoin", "inner"), tmp_path / "state", max_delay=60.0)
    (rows,) = _batches(1)
    slow = query.begin(0, rows)
    running = slow.run(TaskMetrics.begin(query.plan.dimension, slow.task))
    first = _rows(query.attempt(0, rows))
    with pytest.raises(SemiStreamError, match="another attempt at batch 0"):
        list(running)
    assert _rows(query.attempt(0, rows)) == first


def _waiting(master: Path, tmp_path: Path, batches: int = 2) -> Query:
    """A query with tuples that wait after some batches."""
    query = Query(_dimension(master, "meshjoin", "left"), tmp_path / "state", max_delay=60.0)
    for number, rows in enumerate(_batches(batches)):
        query.attempt(number, rows)
    assert query.records.waiting() > 0
    return query


def test_every_flipped_byte_of_a_small_record_is_noticed(master: Path, tmp_path: Path) -> None:
    query = Query(_dimension(master, "meshjoin", "left"), tmp_path / "state", max_delay=60.0)
    query.attempt(0, _batches(1, rows=8)[0])
    files = [*query.files(), query.records.folder / "binding", query.records.folder / "s00000.head"]
    assert len(files) == 3
    for path in files:
        whole = path.read_bytes()
        for at in range(len(whole)):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
            with pytest.raises(SemiStreamError):
                query.begin(1)
        for length in range(0, len(whole), 7):
            path.write_bytes(whole[:length])
            with pytest.raises(SemiStreamError):
                query.begin(1)
        path.write_bytes(whole)
    query.begin(1)


def test_every_file_is_needed(master: Path, tmp_path: Path) -> None:
    """The newest record, its head and the binding to go on; the record before it for a replay."""
    query = _waiting(master, tmp_path)
    older, newest = query.files()
    for path in (newest, query.records.folder / "binding", query.records.folder / "s00000.head"):
        whole = path.read_bytes()
        path.unlink()
        with pytest.raises(StoreError, match=r"missing|cannot be read"):
            query.begin(2)
        path.write_bytes(whole)
    older.unlink()
    query.begin(2)
    with pytest.raises(StoreError, match=r"the record before .* is missing"):
        query.begin(1)


def test_an_older_record_is_not_taken_for_the_newest(master: Path, tmp_path: Path) -> None:
    query = _waiting(master, tmp_path)
    older, newest = query.files()
    newest.write_bytes(older.read_bytes())
    with pytest.raises(StoreError, match=r"is missing|is not the record"):
        query.begin(2)


def test_checkpoint_put_back_without_its_records_is_refused(master: Path, tmp_path: Path) -> None:
    query = _waiting(master, tmp_path, batches=4)
    with pytest.raises(StoreError, match="batch 1 of the query is attempted"):
        query.begin(1)


def test_head_that_was_not_written_any_more_is_mended(master: Path, tmp_path: Path) -> None:
    """The process was killed between the record and its head: the batch is attempted again, and gives the same."""
    query = Query(_dimension(master, "meshjoin", "left"), tmp_path / "state", max_delay=60.0)
    first, second = _batches(2)
    query.attempt(0, first)
    head = (query.records.folder / "s00000.head").read_bytes()
    rows = _rows(query.attempt(1, second))
    waiting = query.records.waiting()
    (query.records.folder / "s00000.head").write_bytes(head)
    assert _rows(query.attempt(1, second)) == rows
    assert query.records.waiting() == waiting > 0


def test_another_query_is_refused(master: Path, tmp_path: Path) -> None:
    query = _waiting(master, tmp_path)
    other = Query(query.plan.dimension, tmp_path / "state", 60.0, query="p")
    with pytest.raises(ConfigError, match="belongs to the query q, this is p"):
        other.begin(2)
    (tmp_path / "state" / "metadata").write_text(json.dumps({"id": "p"}))
    with pytest.raises(StoreError, match="belongs to the query q, this is p"):
        other.begin(2)
    (tmp_path / "state" / "metadata").unlink()
    with pytest.raises(ConfigError, match="is not the checkpoint of the query"):
        other.begin(2)


def test_two_enrichments_of_one_query_need_two_names(master: Path, tmp_path: Path) -> None:
    """The same enrichment twice in a query, on the same records: seen in the first batch, whoever comes first."""
    first = Query(_dimension(master, "meshjoin", "left"), tmp_path / "state", 60.0, call="a")
    second = Query(_dimension(master, "meshjoin", "left"), tmp_path / "state", 60.0, call="b")
    first.attempt(0, _batches(1)[0])
    with pytest.raises(SemiStreamError, match="give each a name= of its own"):
        second.begin(0)
    assert second.query == first.query
    Query(_dimension(master, "meshjoin", "left"), tmp_path / "state", 60.0, run="2", call="b").begin(1)


def test_another_enrichment_under_the_same_name_is_refused_by_its_tasks(master: Path, tmp_path: Path) -> None:
    first = Query(_dimension(master, "meshjoin", "left"), tmp_path / "state", 60.0)
    Query(_dimension(master, "meshjoin", "inner"), tmp_path / "state", 60.0)
    with pytest.raises(SemiStreamError, match="how was 'inner', now it is 'left'"):
        first.begin(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"how": "inner"}, "how was 'left', now it is 'inner'"),
        ({"stream_on": ("seq",)}, "on was"),
        ({"select": ("m01",)}, "select was"),
        ({"algorithm": "ssbj"}, "algorithm was 'meshjoin', now it is 'ssbj'"),
        ({"options": {"buffer_bytes": 1}}, "options was {}, now it is {'buffer_bytes': 1}"),
        ({"suffix": "_r"}, "suffix was '_right', now it is '_r'"),
        ({"lineage": "another"}, "master data was"),
    ],
)
def test_changed_enrichment_is_refused_while_tuples_wait(
    change: dict[str, Any], message: str, master: Path, tmp_path: Path
) -> None:
    query = _waiting(master, tmp_path)
    changed = _changed(query.plan.dimension, change)
    with pytest.raises(ConfigError, match=re.escape(message)):
        Query(changed, tmp_path / "state", 60.0)
    query.finish(2, _batches(1)[0].schema)
    for folder in ("offsets", "commits"):
        (tmp_path / "state" / folder).mkdir()
    (tmp_path / "state" / "offsets" / "2").touch()
    with pytest.raises(ConfigError, match=re.escape(message)):
        Query(changed, tmp_path / "state", 60.0)
    (tmp_path / "state" / "commits" / "2").touch()
    assert Query(changed, tmp_path / "state", 60.0).begin(3).carried is None


def _changed(dimension: Dimension, change: dict[str, Any]) -> Dimension:
    """The dimension with other values, wherever they stand in it."""
    if change.keys() & asdict(dimension).keys():
        return replace(dimension, **change)
    request = dimension.request
    if change.keys() & asdict(request).keys():
        return replace(dimension, request=replace(request, **change))
    return replace(dimension, request=replace(request, spec=replace(request.spec, **change)))


def test_new_name_for_a_checkpoint_with_batches_is_refused(master: Path, tmp_path: Path) -> None:
    query = _waiting(master, tmp_path)
    (tmp_path / "state" / "offsets").mkdir()
    (tmp_path / "state" / "offsets" / "0").touch()
    with pytest.raises(ConfigError, match="it was begun with 'r'"):
        Query(replace(query.plan.dimension, name="other"), tmp_path / "state", 60.0)
    assert [records.binding().name for records in all_records(tmp_path / "state")] == ["r"]


def test_number_of_shards_is_fixed_by_the_checkpoint(master: Path, tmp_path: Path) -> None:
    dimension = _dimension(master, "meshjoin", "left")
    records = Records(records_folder(tmp_path, "r"))
    for wanted, default in ((None, 4), (None, 8), (4, 8)):
        assert records.bind("r", dimension.master, dimension.meaning, wanted, default).shards == 4
    with pytest.raises(ConfigError, match="shards=5, but this checkpoint divides the stream into 4"):
        records.bind("r", dimension.master, dimension.meaning, 5, 8)


def test_changed_input_of_a_replay_is_refused_before_a_row_is_given(master: Path, tmp_path: Path) -> None:
    query = Query(_dimension(master, "meshjoin", "left"), tmp_path / "state", max_delay=60.0)
    (rows,) = _batches(1)
    query.attempt(0, rows)
    assert query.records.waiting() > 0
    other = rows.set_column(
        rows.schema.get_field_index("seq"), rows.schema.field("seq"), pa.array(range(rows.num_rows, 0, -1))
    )
    more = pa.concat_tables([rows, rows.slice(0, 1)])
    for changed in (other, rows.slice(1), more):
        carrying = query.begin(0, changed)
        running = carrying.run(TaskMetrics.begin(query.plan.dimension, carrying.task))
        with pytest.raises(StoreError, match="the input of batch 0 is not what it was"):
            next(running)


def test_shard_travels_with_the_rows() -> None:
    schema = pa.schema([pa.field("a.b", pa.int64(), nullable=False)])

    def rows(values: list[int | None], marks: list[int]) -> pa.RecordBatch:
        return pa.record_batch({"c0": pa.array(values, pa.int64()), "shard": pa.array(marks, pa.int64())})

    tick = -1 - (7 * 5 + 3)
    both = ShardInput(schema, 5, iter([rows([], []), rows([1, None, 2], [3, tick, 3])]))
    assert both.shard == 3
    assert pa.Table.from_batches(both, schema=schema).to_pydict() == {"a.b": [1, 2]}
    assert both.tick == 7
    alone = ShardInput(schema, 5, iter([rows([None], [tick])]))
    assert (alone.shard, list(alone), alone.tick) == (3, [], 7)
    assert ShardInput(schema, 5, iter([])).shard is None
    with pytest.raises(StoreError, match="rows of several shards"):
        list(ShardInput(schema, 5, iter([rows([1, 2], [3, 2])])))


def test_older_copy_of_all_records_is_refused(master: Path, tmp_path: Path) -> None:
    """The query's own log knows of a tick that these records have not seen."""
    query = _waiting(master, tmp_path)
    shutil.copytree(query.records.folder, tmp_path / "copy")
    query.attempt(2, _batches(3)[2])
    query.records.require_tick(2)
    shutil.rmtree(query.records.folder)
    shutil.copytree(tmp_path / "copy", query.records.folder)
    query.records.require_tick(1)
    with pytest.raises(StoreError, match="put back from an older copy"):
        query.records.require_tick(2)


def test_master_data_replaced_under_waiting_tuples_is_refused(master: Path, tmp_path: Path) -> None:
    query = _waiting(master, tmp_path)
    WORKSHOP.clear()
    shutil.rmtree(master)
    semistream.build_pages(_master(2), master, on="k", page_rows=32)
    with pytest.raises(StoreError, match=r"has been replaced"):
        query.attempt(2, _batches(3)[2])


def test_versions_that_records_need_are_kept(master: Path, tmp_path: Path) -> None:
    """A shard may sit out batches: what waits in it still needs its version."""
    query = _waiting(master, tmp_path)
    for seed in (2, 3, 4):
        semistream.build_pages(_master(seed), master, on="k", page_rows=32, overwrite=True, keep_versions=0)
    WORKSHOP.clear()
    output = query.attempt(9, _batches(1)[0].schema.empty_table())
    assert output
    assert query.records.waiting() == 0


def test_steps_are_spread_over_the_delay(master: Path) -> None:
    """A tuple's steps are made in proportion to the time that has passed, all of them when its time is up."""
    with semistream.open_join("meshjoin", master=master, on="k", memory="500KB") as join:
        (rows,) = _batches(1)
        list(join.push(rows.to_batches()[0]))
        scan = scan_of(join)
        scan.close_chunk()
        assert scan.k > 4
        last = scan.chunks[-1][1] - scan.step_number
        assert steps_due(scan, [[join.waiting, 0.0]], interval=1.0, max_delay=10.0, now=0.0) == -(-last // 10)
        assert steps_due(scan, [[join.waiting, 0.0]], interval=1.0, max_delay=10.0, now=9.5) == last


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
