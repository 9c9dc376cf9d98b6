"""ORDEREDJOIN's own promise: rows come out in the order of the stream, across pushes and for every join."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from tests.strategies import HOWS, KEY_KINDS, SHAPES, case, pressing_case

from semistream import Snapshot, open_join
from semistream.errors import StoreError
from semistream.testing import (
    assert_same_rows,
    colliding_codes,
    reference_join,
    run_join,
    smallest_budget,
    split,
)

MakeMaster = Callable[..., dict[str, object]]


def assert_in_order(actual: pa.Table, expected: pa.Table) -> None:
    """The reference join gives its rows in the order of the stream, so the tuple numbers must agree."""
    assert_same_rows(actual, expected)
    assert actual["n"].to_pylist() == expected["n"].to_pylist()


@pytest.mark.parametrize("kind", KEY_KINDS)
@pytest.mark.parametrize("how", HOWS)
def test_rows_come_in_arrival_order(how: str, kind: str, make_master: MakeMaster) -> None:
    for (i, shape), batch in product(enumerate(SHAPES), (None, 7)):
        given = case(kind, shape)
        form = ("memory", "pages", "direct", "frequency")[i % 4]
        arguments = {"on": given.on, "how": how, "stream_schema": given.stream.schema, "batch": batch}
        arguments |= make_master(given.master, given.on, form)
        least = smallest_budget("orderedjoin", **arguments)
        with open_join("orderedjoin", memory=(1 + i % 3) * least, **arguments) as join:
            assert_in_order(run_join(join, given.batches), given.expected(how))


@pytest.mark.parametrize("how", HOWS)
def test_order_holds_under_memory_pressure(how: str, make_master: MakeMaster) -> None:
    for kind, form in (("int64", "pages"), ("composite", "frequency")):
        given = pressing_case(kind, seed=6, skew=0.8)
        arguments = {"on": given.on, "how": how, "stream_schema": given.stream.schema}
        arguments |= make_master(given.master, given.on, form, page_rows=16)
        least = smallest_budget("orderedjoin", **arguments)
        with open_join("orderedjoin", memory=least, **arguments) as join:
            assert_in_order(run_join(join, given.batches), given.expected(how))
            assert how in ("semi", "anti") or join.stats.evicted


@pytest.mark.parametrize("how", HOWS)
def test_false_matches_of_colliding_codes_leave_tuples_in_place(how: str, make_master: MakeMaster) -> None:
    """A tuple whose every candidate turns out to be another key is unmatched, there and then."""
    for kind, bits in product(("string", "composite"), (0, 2)):
        given = case(kind, "some_unmatched")
        opened = make_master(given.master, given.on, "pages", **colliding_codes(bits))
        with open_join("orderedjoin", on=given.on, how=how, memory="300KB", **opened) as join:
            assert_in_order(run_join(join, given.batches), given.expected(how))


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("form", ["pages", "direct", "frequency"])
def test_key_with_more_rows_than_the_cache_holds(how: str, form: str, make_master: MakeMaster) -> None:
    rng = np.random.default_rng(3)
    master = pa.table({"k": np.repeat([1, 2, 3, 5], [2, 6000, 1, 900]), "m": rng.integers(0, 99, 6903)})
    stream = pa.table({"k": [1, 2, 4, 3, 2, 5, 1, None, 2, 9, 5, 5], "n": range(12)})
    arguments = {"on": "k", "how": how, "stream_schema": stream.schema, **make_master(master, "k", form)}
    least = smallest_budget("orderedjoin", **arguments)
    with open_join("orderedjoin", memory=least, **arguments) as join:
        assert_in_order(run_join(join, split(stream, 5)), reference_join(stream, master, "k", how))


def test_hit_does_not_overtake_a_waiting_tuple(make_master: MakeMaster) -> None:
    """The cache could answer key 1 at once; while key 2 waits before it, it must not."""
    master = pa.table({"k": np.arange(100), "m": np.arange(100)})
    with open_join("orderedjoin", on="k", memory="1MB", **make_master(master, "k")) as join:
        first = run_join(join, pa.record_batch({"k": [1, 1], "n": [0, 1]}))
        assert first["n"].to_pylist() == [0, 1]
        at_once = list(join.push(pa.record_batch({"k": [1, 2, 1, 1], "n": [2, 3, 4, 5]})))
        assert pa.Table.from_batches(at_once)["n"].to_pylist() == [2]
        assert list(join.push(pa.record_batch({"k": [1], "n": [6]}))) == []
        assert pa.Table.from_batches(list(join.drain()))["n"].to_pylist() == [3, 4, 5, 6]
        assert join.stats.cache_hits + join.stats.cache_misses == 7


@pytest.mark.parametrize("how", HOWS)
def test_order_survives_a_restart(how: str, make_master: MakeMaster) -> None:
    given = case("string", "some_unmatched")
    opened = make_master(given.master, given.on)
    out: list[pa.RecordBatch] = []
    saved: bytes | None = None
    for i, batch in enumerate(given.batches):
        with open_join("orderedjoin", on=given.on, how=how, memory="1MB", **opened) as join:
            if saved is not None:
                join.restore(Snapshot.from_bytes(saved))
            out.extend(join.push(batch))
            if i % 3 == 2 or i == len(given.batches) - 1:
                out.extend(join.drain())
            saved = join.snapshot().to_bytes()
            schema = join.output_schema
    assert_in_order(pa.Table.from_batches(out, schema), given.expected(how))


def test_null_keys_wait_in_their_place_across_a_restart(make_master: MakeMaster) -> None:
    opened = make_master(pa.table({"k": np.arange(100), "m": np.arange(100)}), "k")
    with open_join("orderedjoin", on="k", how="left", memory="1MB", **opened) as join:
        assert list(join.push(pa.record_batch({"k": [3, None, 200, None, 4], "n": range(5)}))) == []
        saved = join.snapshot().to_bytes()
    with open_join("orderedjoin", on="k", how="left", memory="1MB", **opened) as join:
        join.restore(Snapshot.from_bytes(saved))
        rows = pa.Table.from_batches(list(join.drain()))
    assert rows["n"].to_pylist() == [0, 1, 2, 3, 4]
    assert rows["m"].to_pylist() == [3, None, None, None, 4]


@pytest.mark.parametrize("how", ["inner", "semi"])
def test_a_null_key_that_cannot_wait_is_refused_in_a_snapshot(how: str, make_master: MakeMaster) -> None:
    """Where null keys are let go at once, a snapshot that holds one is not of this join."""
    opened = make_master(pa.table({"k": np.arange(100), "m": np.arange(100)}), "k")
    with open_join("orderedjoin", on="k", how=how, memory="1MB", **opened) as join:
        assert list(join.push(pa.record_batch({"k": [3], "n": [0]}))) == []
        saved = join.snapshot()
    damaged = Snapshot(saved.state, pa.table({"k": pa.array([3, None]), "n": [0, 1]}))
    with (
        open_join("orderedjoin", on="k", how=how, memory="1MB", **opened) as join,
        pytest.raises(StoreError, match="null key"),
    ):
        join.restore(damaged)


def test_advance_answers_who_waits_at_the_front(make_master: MakeMaster) -> None:
    given = pressing_case("int64", seed=6, skew=0.8)
    arguments = {"on": given.on, "how": "left", "stream_schema": given.stream.schema}
    arguments |= make_master(given.master, given.on, "pages", page_rows=16)
    out: list[pa.RecordBatch] = []
    with open_join("orderedjoin", memory=smallest_budget("orderedjoin", **arguments), **arguments) as join:
        for batch in given.batches:
            out.extend(join.push(batch))
            waiting = join.waiting
            out.extend(join.advance())
            assert join.waiting < waiting or not waiting
        out.extend(join.drain())
        assert_in_order(pa.Table.from_batches(out, join.output_schema), given.expected("left"))
