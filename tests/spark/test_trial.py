"""algorithm="auto" tries its closest candidates over the first tasks: exact, one at a time, whoever dies meanwhile."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.spark.hasty import HASTY

import semistream
from semistream.engine.join import SemiStreamJoin
from semistream.errors import BudgetError
from semistream.master.open import open_master
from semistream.planner.policy import Policy
from semistream.planner.trial import Shown
from semistream.spark import worker
from semistream.spark.dimension import Dimension
from semistream.spark.metrics import TaskMetrics
from semistream.spark.plans import Chosen, PlanFiles, remember_choice, remembered_choice
from semistream.spark.worker import WORKSHOP, OpenJoin, Workshop, executor_folder
from semistream.spec import JoinRequest
from semistream.testing import assert_same_rows, reference_join

N_KEYS = 20_000
SCHEMA = pa.schema([("k", pa.int64()), ("seq", pa.int64())])
pytestmark = pytest.mark.usefixtures("own_executor")


def _dimension(store: Path, policy: Policy = HASTY, how: str = "left", memory: int = 400_000) -> Dimension:
    request = JoinRequest.make(on="k", how=how, memory=memory, algorithm="auto")
    with closing(open_master(store, ("k",))) as master:
        version, lineage = master.version, master.lineage
    stream = SCHEMA.serialize().to_pybytes()
    return Dimension("r", str(store), request, 1, True, policy, version, lineage=lineage, stream=stream)


def _stream(rows: int = 3000, seed: int = 1) -> pa.Table:
    keys = np.random.default_rng(seed).zipf(1.1, rows) * 7919 % (N_KEYS + 500)
    return pa.table({"k": keys, "seq": np.arange(rows)})


def _task(dimension: Dimension, stream: pa.Table, relation: pa.Table) -> TaskMetrics:
    """A task, whose rows must be those of the join."""
    items = list(worker.run((dimension,), iter(stream.to_batches(max_chunksize=500))))
    (account,) = [item for item in items if isinstance(item, TaskMetrics)]
    expected = reference_join(stream, relation, "k", dimension.request.spec.how)
    rows = [item for item in items if isinstance(item, pa.RecordBatch)]
    assert_same_rows(pa.Table.from_batches(rows, schema=expected.schema), expected)
    return account


def _in_force(dimension: Dimension) -> Chosen:
    found = PlanFiles(executor_folder() / "job", dimension.identity).newest()
    assert found is not None
    return found


def _tried(dimension: Dimension, relation: pa.Table, most: int = 30) -> list[str]:
    """The operators that ran, task by task, until the trial was over."""
    ran = []
    for number in range(most):
        ran.append(_task(dimension, _stream(seed=number), relation).algorithm)
        if _in_force(dimension).shown and not _in_force(dimension).on_trial:
            return ran
    raise AssertionError(f"the trial had no end: {ran}, {_in_force(dimension)}")


@pytest.mark.parametrize("how", ["left", "inner", "semi", "anti"])
def test_each_candidate_runs_and_one_stays(
    store: Path, relation: pa.Table, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are those of the join throughout, and a process never has the memory of two operators."""
    opened: list[weakref.ref[SemiStreamJoin]] = []
    begin = OpenJoin.start

    def start(self: OpenJoin) -> None:
        if self.join.output_schema is None:
            assert not [join() for join in opened if join() is not None], "another one has its memory still"
            opened.append(weakref.ref(self.join))
        begin(self)

    monkeypatch.setattr(OpenJoin, "start", start)
    dimension = _dimension(store, how=how)
    ran = _tried(dimension, relation)
    chosen = _in_force(dimension)
    assert len(opened) >= 3
    assert len(set(ran)) == 3 == HASTY.most_tried_on_spark
    assert chosen.shown.keys() == set(ran)
    assert chosen.why.endswith(f"; for what is still to come {chosen.algorithm} is the best")
    after = _task(dimension, _stream(seed=99), relation)
    assert (after.algorithm, after.algorithm_why) == (chosen.algorithm, chosen.why)


def test_tasks_say_what_is_tried(store: Path, relation: pa.Table) -> None:
    dimension = _dimension(store)
    said = [_task(dimension, _stream(seed=number), relation) for number in range(7)]
    assert said[0].algorithm_why.startswith(f"planned: {said[0].algorithm} ")
    first, second = list(dict.fromkeys(account.algorithm for account in said))[1:3]
    whys = list(dict.fromkeys(account.algorithm_why for account in said))
    assert whys[1].startswith(f"on trial: {first}, then {second}; tuples/s in one process: {said[0].algorithm} ")
    assert whys[2].startswith(f"on trial: {second}; tuples/s in one process: {said[0].algorithm} ")


def test_what_was_achieved_decides(store: Path, relation: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reaches a hundred times what its formula says is taken, be it the last of the plan."""
    dimension = _dimension(store)
    ran = list(dict.fromkeys(_tried(dimension, relation)))
    for favourite in ran:
        WORKSHOP.clear()
        for path in (executor_folder() / "job").glob("plan-*"):
            path.unlink()
        part = lambda _, at, *__: 100.0 if at.algorithm == favourite else 1.0  # noqa: B023, E731
        monkeypatch.setattr(Shown, "part", part)
        _tried(dimension, relation)
        assert _in_force(dimension).algorithm == favourite


def test_the_closest_have_a_second_turn(store: Path, relation: pa.Table) -> None:
    dimension = _dimension(store, replace(HASTY, even=0.0))
    ran = _tried(dimension, relation)
    assert all(len(turns) == 2 for turns in _in_force(dimension).shown.values())
    assert len(ran) > 6


def test_without_a_stretch_nobody_is_tried(store: Path, relation: pa.Table) -> None:
    """What a look must be worth is the planner's own rule."""
    for policy in (replace(HASTY, trial_share=0.0, better=1e9), replace(HASTY, horizon=1, first_check=1 << 60)):
        dimension = _dimension(store, policy)
        assert len({_task(dimension, _stream(seed=number), relation).algorithm for number in range(6)}) == 1
        WORKSHOP.clear()


# ------------------------------------------------------------------------------------------ several processes


def test_processes_of_an_executor_have_one_trial(
    store: Path, relation: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both run what the newest plan says, and whoever has seen enough first leaves the next."""
    dimension = _dimension(store)
    processes = [Workshop(), Workshop()]
    ran = []
    for number in range(30):
        monkeypatch.setattr(worker, "WORKSHOP", processes[number % 2])
        expected = _in_force(dimension).algorithm if number else None
        ran.append(_task(dimension, _stream(seed=number), relation).algorithm)
        assert expected in (None, ran[-1])
        if _in_force(dimension).shown and not _in_force(dimension).on_trial:
            break
    chosen = _in_force(dimension)
    assert not chosen.on_trial
    assert chosen.shown.keys() == set(ran)
    for process in processes:
        monkeypatch.setattr(worker, "WORKSHOP", process)
        assert _task(dimension, _stream(seed=99), relation).algorithm == chosen.algorithm
        process.clear()


def test_another_process_goes_on_with_a_trial(store: Path, relation: pa.Table) -> None:
    """Processes that are killed take their joins with them, not what was measured."""
    dimension = _dimension(store)
    ran = []
    for number in range(60):
        ran.append(_task(dimension, _stream(seed=number), relation).algorithm)
        if number % 3 == 2:
            WORKSHOP.clear()
        if _in_force(dimension).shown and not _in_force(dimension).on_trial:
            break
    assert not _in_force(dimension).on_trial
    assert _in_force(dimension).shown.keys() == set(ran)
    assert len(set(ran)) == 3


def test_an_operator_that_nobody_can_judge_leaves(store: Path, relation: pa.Table) -> None:
    """Where every task has a new process none sees two tasks of an operator: a turn ends after ten minutes."""
    dimension = _dimension(store)
    first = _task(dimension, _stream(), relation).algorithm
    _task(dimension, _stream(), relation)
    second = _in_force(dimension)
    assert second.on_trial
    for number in range(4):
        WORKSHOP.clear()
        assert _task(dimension, _stream(seed=number), relation).algorithm == second.algorithm
    files = sorted((executor_folder() / "job").glob("plan-*"))
    long_ago = time.time() - 601
    os.utime(files[-1], (long_ago, long_ago))
    WORKSHOP.clear()
    third = _task(dimension, _stream(), relation).algorithm
    assert third not in (first, second.algorithm)
    assert _in_force(dimension).left == {second.algorithm: "had no end in 600 s"}


def test_plans_that_cannot_be_read_are_made_again(store: Path, relation: pa.Table) -> None:
    dimension = _dimension(store)
    _task(dimension, _stream(), relation)
    _task(dimension, _stream(), relation)
    assert _in_force(dimension).on_trial
    for path in (executor_folder() / "job").glob("plan-*"):
        path.write_bytes(path.read_bytes()[:-9])
    WORKSHOP.clear()
    assert len(set(_tried(dimension, relation))) == 3
    newest = sorted((executor_folder() / "job").glob("plan-*"))[-1]
    before = _in_force(dimension)
    newest.with_name(newest.name[:-6] + f"{before.number + 1:06d}").write_bytes(b"")
    assert _in_force(dimension) == before
    files = PlanFiles(newest.parent, dimension.identity)
    assert files.publish(replace(before, number=before.number + 1)).number == before.number + 2


# --------------------------------------------------------------------------------------------- what goes wrong


def test_an_operator_that_does_not_fit_leaves(store: Path, relation: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    dimension = _dimension(store)
    ran = [_task(dimension, _stream(), relation).algorithm, _task(dimension, _stream(), relation).algorithm]
    doomed = _in_force(dimension).algorithm
    assert doomed not in ran
    start = OpenJoin.start

    def refuse(self: OpenJoin) -> None:
        if self.join.name == doomed:
            raise BudgetError("too little for the test", minimum_bytes=1)
        start(self)

    monkeypatch.setattr(OpenJoin, "start", refuse)
    ran += _tried(dimension, relation)
    chosen = _in_force(dimension)
    assert doomed not in ran
    assert chosen.left == {doomed: "too little for the test"}
    assert f"{doomed} left: too little for the test" in chosen.why
    assert len(WORKSHOP._joins) == 1


def test_a_plan_that_does_not_fit_is_an_error(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a trial there is nobody else."""

    def refuse(self: OpenJoin) -> None:
        raise BudgetError("too little for the test", minimum_bytes=1)

    monkeypatch.setattr(OpenJoin, "start", refuse)
    with pytest.raises(BudgetError, match="too little for the test"):
        list(worker.run((_dimension(store),), iter(_stream().to_batches())))
    assert not WORKSHOP._joins


def test_a_failed_task_is_not_given_the_same_operator_on_trial(store: Path, relation: pa.Table) -> None:
    dimension = _dimension(store)
    _task(dimension, _stream(), relation)
    _task(dimension, _stream(), relation)
    doomed = _in_force(dimension).algorithm

    def broken() -> Iterator[pa.RecordBatch]:
        yield _stream().to_batches()[0]
        raise OSError("the test pulls the plug")

    with pytest.raises(OSError, match="the plug"):
        list(worker.run((dimension,), broken()))
    assert _in_force(dimension).left == {doomed: "its task failed: the test pulls the plug"}
    assert _task(dimension, _stream(), relation).algorithm != doomed
    # Whoever wants no more rows has not failed.
    trying = _in_force(dimension)
    given_up = worker.run((dimension,), iter(_stream().to_batches(max_chunksize=100)))
    next(given_up)
    given_up.close()
    assert _in_force(dimension) == trying


# -------------------------------------------------------------------------------------- what a checkpoint remembers


@pytest.fixture
def choice(tmp_path: Path) -> Path:
    """In what looks like the checkpoint of a query."""
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "metadata").touch()
    return tmp_path / "checkpoint" / "semistream" / "r" / "choice"


def _new_executor() -> None:
    WORKSHOP.drop("job")
    WORKSHOP.clear()


def test_a_restart_begins_with_what_was_found(store: Path, relation: pa.Table, choice: Path) -> None:
    dimension = replace(_dimension(store), choice=str(choice))
    _tried(dimension, relation)
    found = _in_force(dimension)
    _new_executor()
    accounts = [_task(dimension, _stream(seed=number), relation) for number in range(4)]
    assert {account.algorithm for account in accounts} == {found.algorithm}
    assert accounts[-1].algorithm_why == f"the checkpoint remembers {found.why}"
    assert _in_force(dimension).number == 1


def test_a_restart_in_mid_trial_begins_anew(store: Path, relation: pa.Table, choice: Path) -> None:
    dimension = replace(_dimension(store), choice=str(choice))
    _task(dimension, _stream(), relation)
    _task(dimension, _stream(), relation)
    assert _in_force(dimension).on_trial
    assert not choice.exists()
    _new_executor()
    assert len(set(_tried(dimension, relation))) == 3


def test_a_choice_is_for_its_setting(store: Path, relation: pa.Table, choice: Path, tmp_path: Path) -> None:
    dimension = replace(_dimension(store), choice=str(choice))
    _tried(dimension, relation)
    found = remembered_choice(dimension)
    assert found is not None
    for other in (
        _dimension(store, memory=500_000),
        _dimension(store, how="inner"),
        replace(dimension, request=replace(dimension.request, reads="direct")),
    ):
        assert remembered_choice(replace(other, choice=str(choice))) is None
    larger = tmp_path / "larger"
    semistream.build_pages(pa.concat_tables([relation] * 3), larger, on="k", page_rows=128).close()
    assert remembered_choice(replace(dimension, master=str(larger))) is None
    whole = choice.read_bytes()
    for damaged in (b"", whole[:-5], whole.replace(b"semi", b"demi"), b"x" + whole[1:]):
        choice.write_bytes(damaged)
        if damaged != whole:
            assert remembered_choice(dimension) is None
    choice.write_bytes(whole)
    assert remembered_choice(dimension) == found


def test_what_is_no_checkpoint_is_left_alone(store: Path, relation: pa.Table, tmp_path: Path) -> None:
    dimension = replace(_dimension(store), choice=str(tmp_path / "other" / "semistream" / "r" / "choice"))
    _tried(dimension, relation)
    remember_choice(dimension, _in_force(dimension))
    assert not (tmp_path / "other").exists()


def test_a_full_disk_stops_no_task(store: Path, relation: pa.Table) -> None:
    """Where no plan can be written each process goes by its own."""
    executor_folder().parent.mkdir(parents=True)
    executor_folder().touch()
    dimension = _dimension(store)
    with suppress(OSError):
        (executor_folder() / "job").mkdir()
    assert len({_task(dimension, _stream(seed=number), relation).algorithm for number in range(4)}) == 1
