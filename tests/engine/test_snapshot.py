"""A join that is stopped and taken up elsewhere gives each row once: before the snapshot or after."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import HOWS, RandomJoin, case, examples, random_joins, wide_table

from semistream import SemiStreamJoin, Snapshot, build_pages, open_join
from semistream.algorithms.registry import ALGORITHMS
from semistream.errors import SemiStreamError, StoreError
from semistream.master.memory import MemoryMaster
from semistream.testing import assert_same_rows, reference_join, smallest_budget, split

MakeMaster = Callable[..., dict[str, object]]


def interrupted(open_again: Callable[[], SemiStreamJoin], parts: list[list[pa.RecordBatch]]) -> pa.Table:
    """Each part in a new join that restores what the one before left, through bytes as on disk."""
    out: list[pa.RecordBatch] = []
    saved: bytes | None = None
    for i, batches in enumerate(parts):
        with open_again() as join:
            if saved is not None:
                join.restore(Snapshot.from_bytes(saved))
            for batch in batches:
                out.extend(join.push(batch))
            saved = join.snapshot().to_bytes()
            if i == len(parts) - 1:
                out.extend(join.drain())
                schema = join.output_schema
    return pa.Table.from_batches(out, schema)


@pytest.mark.parametrize("how", HOWS)
def test_restore_goes_on(operator: str, how: str, make_master: MakeMaster) -> None:
    for kind, shape in (("int64", "skew_1"), ("string", "many_to_many"), ("composite", "some_unmatched")):
        given_case = case(kind, shape)
        opened = make_master(given_case.master, given_case.on)
        arguments = {"on": given_case.on, "how": how, "stream_schema": given_case.stream.schema, **opened}
        least = smallest_budget(operator, **arguments)
        for memory in (int(1.3 * least), 4_000_000):
            batches = given_case.batches
            half = len(batches) // 2
            actual = interrupted(
                partial(open_join, operator, memory=memory, **arguments),
                [batches[:half], [], batches[half:]],
            )
            assert_same_rows(actual, given_case.expected(how))


def test_columns_of_every_type_survive(operator: str, make_master: MakeMaster) -> None:
    rng = np.random.default_rng(6)
    stream, master = wide_table(rng.integers(0, 60, 200), seed=1), wide_table(rng.integers(0, 50, 80), seed=2)
    batches = split(stream, 40)
    opened = make_master(master, "k")

    def open_again() -> SemiStreamJoin:
        return open_join(operator, on="k", how="left", memory="1MB", **opened)

    actual = interrupted(open_again, [batches[:2], batches[2:]])
    assert_same_rows(actual, reference_join(stream, master, "k", "left"))


def test_snapshot_changes_nothing(operator: str, make_master: MakeMaster) -> None:
    """Taking one is free of effects, and two in a row are the same."""
    given_case = case("int64", "one_to_many")
    with open_join(operator, on="k", how="left", memory="1MB", **make_master(given_case.master, "k")) as join:
        out = []
        for batch in given_case.batches:
            out.extend(join.push(batch))
            assert join.snapshot().to_bytes() == join.snapshot().to_bytes()
        out.extend(join.drain())
        assert_same_rows(pa.Table.from_batches(out), given_case.expected("left"))


def test_snapshot_before_the_first_tuple(operator: str, make_master: MakeMaster) -> None:
    given_case = case("int64", "one_to_one")
    opened = make_master(given_case.master, "k")
    actual = interrupted(lambda: open_join(operator, on="k", memory="1MB", **opened), [[], given_case.batches])
    assert_same_rows(actual, given_case.expected("left"))


def test_snapshot_after_drain_holds_no_tuples(operator: str, make_master: MakeMaster) -> None:
    given_case = case("int64", "one_to_one")
    with open_join(operator, on="k", memory="1MB", **make_master(given_case.master, "k")) as join:
        for batch in given_case.batches:
            list(join.push(batch))
        list(join.drain())
        tuples = join.snapshot().tuples
    assert tuples is not None
    assert tuples.num_rows == 0


@examples(20)
@given(random=random_joins(), cuts=st.lists(st.integers(0, 8), min_size=1, max_size=3))
def test_any_interruption_of_any_join(random: RandomJoin, cuts: list[int]) -> None:
    data = random.case
    edges = [0, *sorted(min(cut, len(data.batches)) for cut in cuts), len(data.batches)]
    parts = [data.batches[a:b] for a, b in pairwise(edges)]
    master = MemoryMaster(data.master, data.on, page_rows=random.page_rows)
    expected = reference_join(data.stream, data.master, data.on, random.how, random.select)
    arguments = {"on": data.on, "how": random.how, "select": random.select, "master": master}
    arguments["stream_schema"] = data.stream.schema
    for operator in sorted(ALGORITHMS):
        try:
            memory = int(smallest_budget(operator, **arguments) * random.budget_factor)
            actual = interrupted(
                lambda operator=operator, memory=memory: open_join(operator, memory=memory, **arguments),
                parts,
            )
            assert_same_rows(actual, expected)
        except Exception as error:
            error.add_note(f"operator {operator}")
            raise


def test_refuses_what_it_cannot_go_on_from(operator: str, make_master: MakeMaster) -> None:
    """Another algorithm's, for another version of R, into a join that has begun; bytes that are none."""
    given_case = case("int64", "one_to_one")
    opened = make_master(given_case.master, "k")
    with open_join(operator, on="k", memory="1MB", **opened) as join:
        list(join.push(given_case.batches[0]))
        saved = join.snapshot()
        with pytest.raises(SemiStreamError, match=r"fresh|before"):
            join.restore(saved)
    for name, value in (("algorithm", "other"), ("master_version", -1), ("master", "another")):
        foreign = Snapshot({**saved.state, name: value}, saved.tuples)
        with (
            open_join(operator, on="k", memory="1MB", **opened) as join,
            pytest.raises(SemiStreamError, match=name),
        ):
            join.restore(foreign)
    with pytest.raises(StoreError, match="snapshot"):
        Snapshot.from_bytes(saved.to_bytes()[:40])


def test_refuses_a_store_built_anew(operator: str, tmp_path: Path) -> None:
    """It is version 1 again, but the waiting tuples have seen part of another R."""
    stream = pa.record_batch({"k": np.arange(500)})
    saved = None
    for value in (1, 2):
        shutil.rmtree(tmp_path / "r", ignore_errors=True)
        build_pages(pa.table({"k": np.arange(400), "v": np.full(400, value)}), tmp_path / "r", on="k", page_rows=16)
        with open_join(operator, master=tmp_path / "r", on="k", memory="1MB") as join:
            if saved is not None:
                with pytest.raises(SemiStreamError, match="the snapshot was taken with master "):
                    join.restore(saved)
            else:
                list(join.push(stream))
                saved = join.snapshot()
