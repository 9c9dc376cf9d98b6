"""What every operator promises: the multiset of the relational join, whatever the keys, shapes and memory.

Nothing here names an operator. A new one is tested by being registered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from tests.algorithms.conftest import forms_of
from tests.strategies import (
    HOWS,
    KEY_KINDS,
    MORE_KEY_KINDS,
    PAGE_ROWS,
    SHAPES,
    Case,
    case,
    pressing_case,
    wide_table,
)

from semistream import open_join
from semistream.algorithms.registry import resolve
from semistream.engine.join import SemiStreamJoin
from semistream.engine.output import is_apart
from semistream.master.open import open_master
from semistream.spec import JoinSpec
from semistream.testing import (
    assert_same_rows,
    colliding_codes,
    reference_join,
    run_join,
    smallest_budget,
    split,
)

MakeMaster = Callable[..., dict[str, object]]

AMPLE = "64MB"


def check(
    operator: str,
    given: Case,
    opened: dict[str, object],
    how: str,
    tightness: float | None,
    select: Sequence[str] | None = None,
) -> None:
    """Join and compare. `tightness` is the budget as a multiple of the least one; None: one that holds R."""
    arguments = {"on": given.on, "how": how, "stream_schema": given.stream.schema, "select": select, **opened}
    least = smallest_budget(operator, **arguments)
    memory = AMPLE if tightness is None else int(least * tightness)
    with open_join(operator, memory=memory, **arguments) as join:
        actual = run_join(join, given.batches)
        assert join.memory.peak_bytes <= join.memory.budget_bytes
    assert_same_rows(actual, given.expected(how, select))


@pytest.mark.parametrize("kind", KEY_KINDS)
@pytest.mark.parametrize("how", HOWS)
def test_equals_the_relational_join(operator: str, how: str, kind: str, make_master: MakeMaster) -> None:
    """All shapes. Form of R and budget go round robin: every shape meets all of them over kinds and hows."""
    settings = list(product(forms_of(operator), (1.0, 1.5, 4.0, None)))
    start = 7 * HOWS.index(how) + 3 * list(KEY_KINDS).index(kind)
    for i, shape in enumerate(SHAPES):
        form, tightness = settings[(start + 5 * i) % len(settings)]
        given = case(kind, shape)
        try:
            check(operator, given, make_master(given.master, given.on, form), how, tightness)
        except Exception as error:
            error.add_note(f"shape {shape}, master data as {form}, budget {tightness or AMPLE} × the least")
            raise


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("inner", "int64"),
        ("inner", "composite"),
        ("left", "string"),
        ("left", "date32"),
        ("semi", "composite"),
        ("anti", "string"),
    ],
)
def test_under_memory_pressure(operator: str, how: str, kind: str, make_master: MakeMaster) -> None:
    """Neither R nor the waiting tuples fit: chunks expire, keys are evicted, the stream has to stop."""
    for skew, form, tightness in ((0.3, forms_of(operator)[-1], 1.0), (1.1, "pages", 1.25)):
        given = pressing_case(kind, seed=5, skew=skew)
        check(operator, given, make_master(given.master, given.on, form, page_rows=16), how, tightness)


@pytest.mark.parametrize("kind", MORE_KEY_KINDS)
def test_other_key_types(operator: str, kind: str, make_master: MakeMaster) -> None:
    for how, shape in zip(HOWS, ("some_unmatched", "many_to_many", "one_row_batches", "odd_sizes"), strict=True):
        given = case(kind, shape)
        for form, tightness in (("memory", None), (forms_of(operator)[-1], 1.5)):
            check(operator, given, make_master(given.master, given.on, form), how, tightness)


@pytest.mark.parametrize("kind", ["string", "composite", "decimal128"])
@pytest.mark.parametrize("bits", [0, 2])
def test_colliding_key_codes(operator: str, kind: str, bits: int, make_master: MakeMaster) -> None:
    """With two bits of code every key shares its code with a quarter of all others, with none with all."""
    given = case(kind, "some_unmatched")
    for how, form in product(HOWS, ("memory", "pages")):
        opened = make_master(given.master, given.on, form, **colliding_codes(bits))
        check(operator, given, opened, how, 1.5 if form == "pages" else None)


@pytest.mark.parametrize("how", ["inner", "left"])
def test_columns_of_every_type_pass_through(operator: str, how: str, make_master: MakeMaster) -> None:
    """Through the pending table (stream side) and through cache and disk buffer (master side)."""
    rng = np.random.default_rng(7)
    stream = wide_table(rng.choice(np.arange(80), 240, p=np.arange(80, 0, -1) / 3240), seed=1)
    master = wide_table(rng.permutation(np.repeat(np.arange(0, 80, 2), rng.integers(1, 4, 40))), seed=2)
    given = Case("k", stream, master, split(stream, [50, 3, 90]))
    for form, tightness in product(forms_of(operator), (1.2, None)):
        check(operator, given, make_master(master, "k", form), how, tightness)


@pytest.mark.parametrize("select", [[], ["n"], ["live", "name"], ["price", "n", "k"]])
def test_only_the_selected_columns(operator: str, select: list[str], make_master: MakeMaster) -> None:
    """In the order asked for; a key column that is asked for is there already, from the stream."""
    given = case("int64", "some_unmatched")
    for how in ("inner", "left"):
        check(operator, given, make_master(given.master, "k"), how, 1.5, select)


def test_key_columns_with_different_names(operator: str) -> None:
    given = case("composite", "odd_sizes")
    on = {"k2": "text", "k1": "number"}
    master = given.master.rename_columns({"k1": "number", "k2": "text"})
    for how in HOWS:
        with open_join(operator, master=master, on=on, how=how, suffix="_r", memory=AMPLE) as join:
            actual = run_join(join, given.batches)
        assert_same_rows(actual, reference_join(given.stream, master, on, how, suffix="_r"))


@pytest.mark.parametrize(
    ("stream_type", "master_type"),
    [
        (pa.int64(), pa.int32()),
        (pa.int8(), pa.int64()),
        (pa.uint32(), pa.int16()),
        (pa.large_string(), pa.string()),
        (pa.dictionary(pa.int16(), pa.string()), pa.string_view()),
    ],
    ids=str,
)
def test_key_types_that_differ_in_form_only(operator: str, stream_type: pa.DataType, master_type: pa.DataType) -> None:
    """Widths of integers and encodings of strings may differ, alone and in a composite key."""
    stream = pa.table({"k": pa.array(range(0, 100, 3), pa.int32()), "n": range(34)})
    master = pa.table({"k": pa.array(range(0, 100, 2), pa.int32()), "m": range(50)})
    if not pa.types.is_integer(stream_type):
        stream, master = (table.set_column(0, "k", table["k"].cast(pa.string())) for table in (stream, master))
    stream = stream.set_column(0, "k", stream["k"].cast(stream_type))
    master = master.set_column(0, "k", master["k"].cast(master_type))
    both = (table.append_column("k2", pa.array(["é", None] * (table.num_rows // 2))) for table in (stream, master))
    for on, (left, right) in (("k", (stream, master)), (["k2", "k"], tuple(both))):
        with open_join(operator, master=right, on=on, how="left", memory=AMPLE) as join:
            actual = run_join(join, split(left, 7))
        assert_same_rows(actual, reference_join(left, right, on, "left"))


def test_push_after_drain_goes_on(operator: str, make_master: MakeMaster) -> None:
    """Spark drains at the end of each micro-batch: the join must be whole after every drain."""
    given = case("int64", "skew_1")
    opened = make_master(given.master, given.on)
    least = smallest_budget(operator, on=given.on, how="left", stream_schema=given.stream.schema, **opened)
    with open_join(operator, on=given.on, how="left", memory=2 * least, **opened) as join:
        for batch in given.batches:
            part = run_join(join, [batch])
            assert_same_rows(part, reference_join(batch, given.master, given.on, "left"))
        assert list(join.drain()) == []


@pytest.mark.parametrize("how", HOWS)
def test_a_stream_that_pauses_is_finished_turn_by_turn(operator: str, how: str, make_master: MakeMaster) -> None:
    """`advance` brings everybody who waits to an end without a drain, and then there is nothing to do."""
    given = pressing_case("int64", seed=5)
    for form in ("memory", "frequency"):
        arguments = {"on": given.on, "how": how, "stream_schema": given.stream.schema}
        arguments |= make_master(given.master, given.on, form)
        with open_join(operator, memory=int(smallest_budget(operator, **arguments) * 1.3), **arguments) as join:
            rows = [batch for part in given.batches[: len(given.batches) // 2] for batch in join.push(part)]
            turns = 0
            while join.waiting:
                rows += join.advance()
                turns += 1
                assert turns <= 100_000, "nobody leaves"
            assert list(join.advance()) == []
            rows += [batch for part in given.batches[len(given.batches) // 2 :] for batch in join.push(part)]
            while join.waiting:
                rows += join.advance()
            assert join.stats.finished == join.stats.tuples_in
            assert list(join.drain()) == []
            schema = join.output_schema
        assert_same_rows(pa.Table.from_batches(rows, schema), given.expected(how, None))


def test_stream_batches_may_be_slices(operator: str, make_master: MakeMaster) -> None:
    """A sliced batch has offsets into buffers (and into bitmaps) that do not start at a byte."""
    stream = wide_table(np.random.default_rng(3).integers(0, 60, 200), seed=4)
    whole = stream.combine_chunks().to_batches()[0]
    batches = [whole.slice(3, 61), whole.slice(64, 1), whole.slice(77, 100)]
    given = case("int64", "one_to_one")
    master = given.master.set_column(1, "k", pa.array(np.arange(given.master.num_rows) % 50))
    with open_join(operator, how="left", on="k", memory=AMPLE, **make_master(master, "k")) as join:
        actual = run_join(join, batches)
    assert_same_rows(actual, reference_join(batches, master, "k", "left"))


def test_output_schema_is_known_before_the_first_tuple(operator: str, make_master: MakeMaster) -> None:
    given = case("string", "one_to_one")
    opened = make_master(given.master, given.on)
    for how in HOWS:
        with open_join(operator, on="k", how=how, stream_schema=given.stream.schema, **opened) as join:
            expected = given.expected(how).schema
            assert [(f.name, f.type) for f in join.output_schema] == [(f.name, f.type) for f in expected]
            assert list(join.drain()) == []


def test_stats_count_tuples(operator: str, make_master: MakeMaster) -> None:
    given = case("int64", "some_unmatched")
    with open_join(operator, on="k", memory=AMPLE, **make_master(given.master, "k")) as join:
        out = run_join(join, given.batches)
        assert join.stats.tuples_in == given.stream.num_rows
        assert join.stats.rows_out == out.num_rows
        assert (join.stats.batches_out > 0) == (out.num_rows > 0)


def test_operators_share_nothing(operator: str, make_master: MakeMaster) -> None:
    """Two joins side by side, pushed in turn, over the same master data."""
    given = case("string", "one_to_many")
    opened = make_master(given.master, "k")
    least = smallest_budget(operator, on="k", stream_schema=given.stream.schema, **opened)
    joins = [open_join(operator, on="k", how=how, memory=2 * least, **opened) for how in ("inner", "left")]
    outs: list[list[pa.RecordBatch]] = [[], []]
    for batch in given.batches:
        for join, out in zip(joins, outs, strict=True):
            out.extend(join.push(batch))
    for join, out, how in zip(joins, outs, ("inner", "left"), strict=True):
        out.extend(join.drain())
        assert_same_rows(pa.Table.from_batches(out, join.output_schema), given.expected(how))
        join.close()


def test_runs_cross_many_pages(operator: str, make_master: MakeMaster) -> None:
    """A run of 200 rows on pages of 8: longer than any buffer the tightest budget can have."""
    master = pa.table({"k": [1] * 5 + [2] * 200 + [3] * 3, "m": range(208)})
    stream = pa.table({"k": [0, 2, 1, 3, 2, 4, 2], "n": range(7)})
    given = Case("k", stream, master, split(stream, [2, 1]))
    assert master.num_rows > 20 * PAGE_ROWS
    for how, form in product(HOWS, forms_of(operator)):
        check(operator, given, make_master(master, "k", form), how, 1.0)


@pytest.mark.parametrize("kind", ["int64", "composite"])
def test_tuples_without_a_match_come_apart(operator: str, kind: str, make_master: MakeMaster) -> None:
    """In batches of their own, marked, with the stream's columns alone; null keys too."""
    for shape, memory in (("some_unmatched", 64 << 20), ("odd_sizes", 2 << 20), ("empty_master", 2 << 20)):
        given = case(kind, shape)
        spec = replace(JoinSpec.make(given.on, "left"), apart=True)
        opened = open_master(make_master(given.master, given.on, "pages")["master"], spec.master_on)
        with closing(opened), SemiStreamJoin(resolve(operator), opened, spec, memory) as join:
            batches = [batch for part in given.batches for batch in join.push(part)] + list(join.drain())
            found = [batch for batch in batches if not is_apart(batch)]
            alone = [batch for batch in batches if is_apart(batch)]
            assert join.stats.rows_out == sum(batch.num_rows for batch in found)
            assert join.stats.unmatched == sum(batch.num_rows for batch in alone)
        assert alone
        for kept, how in ((found, "inner"), (alone, "anti")):
            expected = given.expected(how)
            rows = pa.Table.from_batches(kept, kept[0].schema) if kept else expected.slice(0, 0)
            assert_same_rows(rows.cast(expected.schema), expected)
