"""Tasks given to a worker process by hand: what it keeps between them, and what it shares."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.errors import BudgetError
from semistream.master.open import open_master
from semistream.parts.upkeep import Upkeep
from semistream.spark import worker
from semistream.spark.dimension import Dimension
from semistream.spark.metrics import TaskMetrics
from semistream.spark.worker import WORKSHOP, OpenJoin, executor_folder
from semistream.spec import JoinRequest
from semistream.testing import assert_same_rows, reference_join

N_KEYS = 30_000
SCHEMA = pa.schema([("k", pa.int64()), ("seq", pa.int64())])
pytestmark = pytest.mark.usefixtures("own_executor")


def _dimension(store: Path, memory: str = "1MB", tasks: int = 1) -> Dimension:
    request = JoinRequest.make(on="k", how="left", memory=memory, algorithm="sweepjoin")
    master = open_master(store, ("k",))
    version, lineage = master.version, master.lineage
    master.close()
    stream = SCHEMA.serialize().to_pybytes()
    return Dimension("r", str(store), request, tasks, True, version=version, lineage=lineage, stream=stream)


def _stream(rows: int, seed: int, hot: int = 0) -> pa.Table:
    keys = (np.random.default_rng(seed).zipf(1.1, rows) * 7919 + hot) % (N_KEYS + 500)
    return pa.table({"k": keys, "seq": np.arange(rows)})


def _task(dimension: Dimension, stream: pa.Table) -> tuple[list[pa.RecordBatch], TaskMetrics]:
    items = list(worker.run((dimension,), iter(stream.to_batches(max_chunksize=3000))))
    (account,) = [item for item in items if isinstance(item, TaskMetrics)]
    return [item for item in items if isinstance(item, pa.RecordBatch)], account


def _held() -> OpenJoin:
    (held,) = WORKSHOP._joins.values()
    return held


def _upkeep() -> Upkeep:
    found = _held().upkeep
    assert found is not None
    return found


def test_generations_change_between_tasks_and_the_join_stays(relation: pa.Table, store: Path) -> None:
    """Rows are right whatever generation is in use; the private join is neither closed nor filled again."""
    dimension = _dimension(store)
    joins, generations, rates = set(), [], []
    for number in range(12):
        # Half-way other keys are hot.
        stream = _stream(20_000, number, hot=5000 if number > 5 else 0)
        output, account = _task(dimension, stream)
        expected = reference_join(stream, relation, "k", "left")
        assert_same_rows(pa.Table.from_batches(output, schema=expected.schema), expected)
        joins.add(id(_held().join))
        generations.append(account.values["generation"])
        rates.append(account.values["hits"] / account.rows_in)
        _upkeep().wait()
    assert len(joins) == 1
    assert generations[0] == 0
    assert generations == sorted(generations)
    assert len(set(generations)) > 2
    assert min(rates[1:6]) > rates[0]
    assert rates[-1] > rates[6]


def test_the_next_task_reports_what_was_built(store: Path) -> None:
    dimension = _dimension(store)
    _, first = _task(dimension, _stream(20_000, 1))
    assert first.values["builds"] == 0
    _upkeep().wait()
    _, second = _task(dimension, _stream(20_000, 2))
    assert second.values["builds"] == 1
    assert second.seconds["build"] > 0
    assert second.values["shared_hits"] > 0
    assert second.rows_in == 20_000 == second.values["hits"] + second.values["misses"]


def test_a_task_without_rows_reports_nothing_of_others(store: Path) -> None:
    dimension = _dimension(store)
    _task(dimension, _stream(5000, 1))
    _, empty = _task(dimension, SCHEMA.empty_table())
    assert empty.values["hits"] == empty.values["misses"] == empty.values["rows_out"] == 0


def test_all_of_r_is_shared_when_it_fits(relation: pa.Table, store: Path) -> None:
    dimension = _dimension(store, "6MB", tasks=2)
    for number in range(3):
        stream = _stream(4000, number)
        output, account = _task(dimension, stream)
        expected = reference_join(stream, relation, "k", "left")
        assert_same_rows(pa.Table.from_batches(output, schema=expected.schema), expected)
        _upkeep().wait()
    assert (account.values["hits"], account.values["misses"]) == (4000, 0)
    current = _upkeep().generations.current
    assert current is not None
    assert current.complete


def test_a_task_that_is_given_up_while_a_generation_is_built(store: Path) -> None:
    dimension = _dimension(store)
    _task(dimension, _stream(20_000, 1))
    upkeep = _upkeep()
    given_up = worker.run((dimension,), iter(_stream(20_000, 2).to_batches(max_chunksize=500)))
    next(given_up)
    given_up.close()
    assert not upkeep.is_busy
    assert not WORKSHOP._joins
    _, account = _task(dimension, _stream(20_000, 3))
    assert account.rows_in == account.values["hits"] + account.values["misses"]


def test_a_query_that_ends_while_a_generation_is_built(store: Path) -> None:
    _task(_dimension(store), _stream(20_000, 1))
    upkeep = _upkeep()
    WORKSHOP.drop("job")
    assert not upkeep.is_busy
    assert not (executor_folder() / "job").exists()


# -------------------------------------------------------------------------------------------------- R changes


@pytest.fixture
def changing(relation: pa.Table, tmp_path: Path) -> Path:
    """A store of the test's own."""
    semistream.build_pages(relation, tmp_path / "r", on="k", page_rows=128).close()
    return tmp_path / "r"


def _current(store: Path, memory: str = "1MB", tasks: int = 1) -> Dimension:
    """Of a streaming query: each task takes the version in force."""
    return replace(_dimension(store, memory, tasks), version=None)


def _changed(relation: pa.Table, number: int) -> tuple[pa.Table, pa.Table, pa.Table]:
    """R with other rows for hot keys, for some others, and for keys that it lacked; these rows, and keys that go."""
    dice = np.random.default_rng(number)
    hot = np.arange(1, 7) * 7919 % (N_KEYS + 500)
    comes = np.concatenate([hot[:4], dice.integers(0, N_KEYS, 40), np.arange(N_KEYS, N_KEYS + 50)])
    goes = np.concatenate([hot[4:], dice.integers(0, N_KEYS, 20)])
    touched = np.concatenate([comes, goes])
    comes = np.repeat(np.setdiff1d(comes, goes), dice.integers(1, 4, len(np.setdiff1d(comes, goes))))
    rows = pa.table({"k": comes, "v": -np.arange(len(comes)) - 1000 * number})
    stays = pa.array(~np.isin(relation["k"].to_numpy(), touched))
    return pa.concat_tables([relation.filter(stays), rows]), rows, pa.table({"k": goes})


def _exact(dimension: Dimension, stream: pa.Table, relation: pa.Table) -> TaskMetrics:
    output, account = _task(dimension, stream)
    expected = reference_join(stream, relation, "k", "left")
    assert_same_rows(pa.Table.from_batches(output, schema=expected.schema), expected)
    return account


def test_changes_of_r_leave_caches_warm(relation: pa.Table, changing: Path) -> None:
    dimension = _current(changing)
    for number in range(6):
        _task(dimension, _stream(20_000, number))
        _upkeep().wait()
    before = _exact(dimension, _stream(20_000, 7), relation)
    _upkeep().wait()
    held, join = _held(), _held().join
    for number in range(1, 5):
        relation, rows, gone = _changed(relation, number)
        semistream.refresh_pages(changing, rows, deletes=gone).close()
        after = _exact(dimension, _stream(20_000, 7 + number), relation)
        assert _held() is held
        assert held.join is join
        assert (held.version, held.identity) == (number + 1, join.master.identity)
        assert after.values["hits"] >= 0.95 * before.values["hits"]
        assert after.values["generation"] >= before.values["generation"] > 0
        assert after.values["shared_hits"] > 0
    folders = [path.name for path in (executor_folder() / "job").iterdir()]
    assert len(folders) == 1, "versions of one base share their files"


@pytest.mark.parametrize(("memory", "tasks"), [("6MB", 2), ("60MB", 1)], ids=["shared", "private"])
def test_changes_of_r_that_was_cached_as_a_whole(memory: str, tasks: int, relation: pa.Table, changing: Path) -> None:
    """What knows all of R says of a key that it lacks that there is none: not so of keys that came later."""
    dimension = _current(changing, memory, tasks)
    for number in range(1, 4):
        for seed in range(3):
            account = _exact(dimension, _stream(4000, 10 * number + seed), relation)
            upkeep = _held().upkeep
            if upkeep is not None:
                upkeep.wait()
        assert account.values["misses"] == 0, "all of R is cached again"
        relation, rows, gone = _changed(relation, number)
        semistream.refresh_pages(changing, rows, deletes=gone).close()
    _exact(dimension, _stream(4000, 99), relation)


def test_other_bases_and_older_versions_are_opened_anew(relation: pa.Table, changing: Path) -> None:
    dimension = _current(changing)
    _exact(dimension, _stream(20_000, 1), relation)
    first, join = relation, _held().join
    relation, rows, gone = _changed(relation, 1)
    semistream.refresh_pages(changing, rows, deletes=gone, keep_versions=9).close()
    _exact(dimension, _stream(20_000, 2), relation)
    assert _held().join is join
    _upkeep().wait()
    # A batch is repeated with its own version, behind a cache that knows the next.
    _exact(replace(dimension, version=1), _stream(20_000, 3), first)
    assert _held().join is not join
    _exact(dimension, _stream(20_000, 4), relation)
    join = _held().join
    semistream.compact_pages(changing).close()
    _exact(dimension, _stream(20_000, 5), relation)
    assert _held().join is not join


def test_a_budget_that_leaves_no_room_for_changes(relation: pa.Table, changing: Path, tmp_path: Path) -> None:
    dimension = _current(changing)
    budget = 1000
    while True:
        try:
            with dimension.open(None, budget) as join:
                join.start(SCHEMA)
            break
        except BudgetError as error:
            budget = max(error.minimum_bytes or 0, budget + 1)
    for given, room in ((budget, False), (8 * budget, True)):
        held = OpenJoin(dimension, dimension.open_master(None), given, tmp_path / "cache")
        held.begin()
        assert (held.join.budget.total < given) is room
        stream = _stream(1000, 1)
        output = [*held.join.push(stream.to_batches()[0]), *held.join.drain()]
        assert_same_rows(pa.Table.from_batches(output), reference_join(stream, relation, "k", "left"))
        _, rows, gone = _changed(relation, 1)
        semistream.refresh_pages(changing, rows, deletes=gone, keep_versions=9).close()
        master = dimension.open_master(None)
        assert held.follow(master) is room
        if not room:
            master.close()
        held.close()
        semistream.build_pages(relation, changing, on="k", page_rows=128, overwrite=True).close()


@pytest.mark.parametrize("sizes", [[10, 10, 10, 3], [40], [7, 50, 1], [16, 16], [1] * 35, [0, 5, 0], [0], []])
def test_rows_in_batches_of_another_length(sizes: list[int]) -> None:
    ends = np.cumsum(sizes).tolist()
    given = [
        pa.record_batch({"n": pa.array(range(end - size, end), pa.int64())})
        for size, end in zip(sizes, ends, strict=True)
    ]
    found = list(worker.regrouped(iter(given), 16))
    assert [row for batch in found for row in batch["n"].to_pylist()] == list(range(sum(sizes)))
    assert all(batch.num_rows == 16 for batch in found[:-1])
    assert all(0 < batch.num_rows <= 16 for batch in found)
