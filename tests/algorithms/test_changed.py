"""Joins with master data that has changed: random sequences of changes against a plain list of rows."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from tests.algorithms.conftest import MANY_RUNS
from tests.strategies import HOWS, KEY_KINDS, MORE_KEY_KINDS, SHAPES, case, examples

from semistream import build_pages, compact_pages, open_join, refresh_pages
from semistream.algorithms.registry import ALGORITHMS
from semistream.master.inventory import verify
from semistream.master.pages import PageMaster
from semistream.testing import assert_same_rows, colliding_codes, reference_join, run_join, smallest_budget, split

Row = tuple[Any, int | None]
MakeMaster = Callable[..., dict[str, object]]

#: keys from one end of the codes to the other; those from 3 to 9 stand where changes take their codes
NUMBERS = [-(2**63), -(2**63) + 1, -7, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 2**62, 2**63 - 2, 2**63 - 1]
WORDS = ["", "a", "b", "ab", "ключ", "鍵", *(f"word {i}" for i in range(10))]


@dataclass(frozen=True)
class Kind:
    type: pa.DataType
    keys: list[Any]


KINDS = {"int64": Kind(pa.int64(), NUMBERS), "string": Kind(pa.string(), WORDS)}


def rows_table(kind: Kind, rows: list[Row]) -> pa.Table:
    return pa.table({"k": pa.array([k for k, _ in rows], kind.type), "v": pa.array([v for _, v in rows], pa.int32())})


@st.composite
def batches_of_changes(draw: st.DrawFn, kind: Kind, rows: list[Row]) -> tuple[dict[str, Any], list[Row]]:
    """The arguments of a refresh, and the rows that there are afterwards."""
    some_key, value = st.sampled_from(kind.keys), st.none() | st.integers(0, 3)
    if draw(st.booleans()):
        new = draw(st.lists(st.tuples(some_key, value), max_size=6))
        gone = draw(st.lists(some_key, max_size=3))
        left = [row for row in rows if row[0] not in {*gone, *(k for k, _ in new)}]
        deletes = pa.table({"k": pa.array(gone, kind.type)})
        return {"changes": rows_table(kind, new), "deletes": deletes}, left + new
    now, said = list(rows), []
    for commit in range(draw(st.integers(1, 3))):
        # Rows of one commit have no order, so none is added and taken away in it.
        gone = draw(st.lists(st.sampled_from(sorted(set(now), key=repr)), max_size=3, unique=True)) if now else []
        new = [row for row in draw(st.lists(st.tuples(some_key, value), max_size=4)) if row not in gone]
        said += [(draw(st.sampled_from(["delete", "update_preimage"])), row, commit) for row in gone]
        said += [(draw(st.sampled_from(["insert", "update_postimage"])), row, commit) for row in new]
        now = sorted((Counter(now) - Counter(gone)).elements(), key=repr) + new
    said = draw(st.permutations(said))
    feed = rows_table(kind, [row for _, row, _ in said])
    feed = feed.append_column("_change_type", pa.array([what for what, _, _ in said], pa.string()))
    feed = feed.append_column("_commit_version", pa.array([commit for _, _, commit in said], pa.int64()))
    return {"changes": feed}, now


@examples(25)
@given(data=st.data())
def test_random_changes(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(KINDS)))
    kind = KINDS[name]
    mask = {} if name == "int64" else data.draw(st.sampled_from([{}, colliding_codes(0), colliding_codes(2)]))
    value = st.none() | st.integers(0, 3)
    # Mostly the smaller keys, so that codes are left above them.
    rows = data.draw(st.lists(st.tuples(st.sampled_from(kind.keys[: data.draw(st.sampled_from([6, 16]))]), value)))
    page_rows = data.draw(st.sampled_from([1, 2, 5, 64]))
    by_frequency = data.draw(st.booleans())
    stream = pa.table({"k": pa.array(kind.keys * 2, kind.type), "a": pa.array(range(2 * len(kind.keys)))})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r"
        table = rows_table(kind, rows)
        frequency = (table.select(["k"]), np.arange(len(rows)) % 5) if by_frequency else None
        build_pages(table, path, on="k", page_rows=page_rows, frequency=frequency, **mask).close()
        for _ in range(data.draw(st.integers(1, 4))):
            arguments, rows = data.draw(batches_of_changes(kind, rows))
            refresh_pages(path, **arguments, compact=data.draw(st.sampled_from(["auto", "never"]))).close()
            if data.draw(st.integers(0, 5)) == 0:
                compact_pages(path).close()
        master = PageMaster(path)
        event(f"{len(master.runs)} runs")
        assert master.n_rows - master.dead_rows == len(rows)
        assert verify(path) == []
        master.close()
        how = data.draw(st.sampled_from(HOWS))
        expected = reference_join(stream, rows_table(kind, rows), "k", how)
        factor = data.draw(st.sampled_from([1.0, 2.0, 16.0]))
        reads = data.draw(st.sampled_from(["mapped", "direct"]))
        for operator in data.draw(st.lists(st.sampled_from(sorted(ALGORITHMS)), min_size=3, max_size=3, unique=True)):
            opened = {"master": path, "on": "k", "how": how, "stream_schema": stream.schema, "reads": reads}
            memory = int(smallest_budget(operator, **opened) * factor)
            with open_join(operator, memory=memory, **opened) as join:
                found = run_join(join, split(stream, [7]))
                assert join.memory.peak_bytes <= join.memory.budget_bytes
            try:
                assert_same_rows(found, expected)
            except AssertionError as error:
                error.add_note(f"operator {operator}, how {how}")
                raise


def _rounds(*cases: tuple[str, str]) -> list[tuple[str, str, str]]:
    """Each case in each form, with the kinds of join going round."""
    return [(*each, form) for each in cases for form in MANY_RUNS]


def _check_runs(operator: str, rounds: list[tuple[str, str, str]], make_master: MakeMaster) -> None:
    for number, (kind, shape, form) in enumerate(rounds):
        given, how = case(kind, shape), HOWS[(number + number // 4) % len(HOWS)]
        arguments = {"on": given.on, "how": how, "stream_schema": given.stream.schema}
        arguments |= make_master(given.master, given.on, form)
        for memory in (smallest_budget(operator, **arguments), 64 << 20):
            with open_join(operator, memory=memory, **arguments) as join:
                found = run_join(join, given.batches)
                assert join.memory.peak_bytes <= join.memory.budget_bytes
            try:
                assert_same_rows(found, given.expected(how))
            except AssertionError as error:
                error.add_note(f"{kind}, {shape}, {form}, {how}")
                raise


def test_many_runs(operator: str, make_master: MakeMaster) -> None:
    cases = [("int64", "many_to_many"), ("string", "some_unmatched"), ("composite", "odd_sizes")]
    _check_runs(operator, _rounds(*cases), make_master)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", sorted({**KEY_KINDS, **MORE_KEY_KINDS}))
def test_many_runs_of_all_shapes(operator: str, kind: str, make_master: MakeMaster) -> None:
    _check_runs(operator, _rounds(*((kind, shape) for shape in SHAPES)), make_master)


@pytest.mark.parametrize("kind", ["int64", "string", "float64"])
def test_deleted_keys_match_nothing(operator: str, kind: str, tmp_path: Path) -> None:
    """A third of the keys is deleted, in several runs; the stream still asks for them."""
    given = case(kind, "many_to_many")
    master = given.master.filter(given.master["k"].is_valid())
    gone = np.asarray([len(repr(key)) % 3 == 0 for key in master["k"].to_pylist()])
    build_pages(master, tmp_path / "r", on="k", page_rows=8).close()
    keys = master.filter(pa.array(gone)).select(["k"])
    for start in range(0, keys.num_rows, 40):
        refresh_pages(tmp_path / "r", deletes=keys.slice(start, 40), compact="never").close()
    left = master.filter(pa.array(~gone))
    for how in HOWS:
        arguments = {"master": tmp_path / "r", "on": "k", "how": how, "stream_schema": given.stream.schema}
        for memory in (smallest_budget(operator, **arguments), 64 << 20):
            with open_join(operator, memory=memory, **arguments) as join:
                found = run_join(join, given.batches)
            assert_same_rows(found, reference_join(given.stream, left, "k", how))


def test_a_snapshot_holds_keys_and_not_codes(operator: str, tmp_path: Path) -> None:
    """Tuples that wait for changed keys go on after a restart, in the version that they waited for."""
    given = case("int64", "one_to_many")
    master = given.master.filter(given.master["k"].is_valid())
    build_pages(master, tmp_path / "r", on="k", page_rows=8).close()
    changed = master.slice(0, 60).set_column(0, "name", pa.array(["new"] * 60))
    refresh_pages(tmp_path / "r", changed, compact="never").close()
    after = pa.concat_tables([changed.cast(master.schema), master.slice(60)])
    arguments = {"master": tmp_path / "r", "on": "k", "how": "left", "stream_schema": given.stream.schema}
    memory = 4 * smallest_budget(operator, **arguments)
    out: list[pa.RecordBatch] = []
    with open_join(operator, memory=memory, **arguments) as join:
        for batch in given.batches[:2]:
            out += join.push(batch)
        saved = join.snapshot()
    with open_join(operator, memory=memory, **arguments) as join:
        join.restore(saved)
        for batch in given.batches[2:]:
            out += join.push(batch)
        out += join.drain()
    assert_same_rows(pa.Table.from_batches(out), reference_join(given.stream, after, "k", "left"))
