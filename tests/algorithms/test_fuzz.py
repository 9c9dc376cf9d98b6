"""Random joins: all operators against each other and against the reference.

The seeds are fixed (see conftest), so a failure in one run is a failure in all.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import event, given
from hypothesis import strategies as st
from tests.strategies import HOWS, RandomJoin, examples, pressing_case, random_joins

from semistream import build_pages, open_join
from semistream.algorithms.registry import ALGORITHMS
from semistream.master.memory import MemoryMaster
from semistream.testing import (
    assert_same_rows,
    colliding_codes,
    reference_join,
    run_join,
    smallest_budget,
)

HASHED = ["string", "decimal128", "composite", "short_decimal", "binary", "fixed_binary"]


def joined(operator: str, random: RandomJoin, opened: dict[str, object]) -> pa.Table:
    given = random.case
    arguments = {
        "on": given.on,
        "how": random.how,
        "select": random.select,
        "stream_schema": given.stream.schema,
        **opened,
    }
    least = smallest_budget(operator, **arguments)
    with open_join(operator, memory=int(least * random.budget_factor), **arguments) as join:
        out = run_join(join, given.batches)
        assert join.memory.peak_bytes <= join.memory.budget_bytes
    return out


def compare(random: RandomJoin, opened: dict[str, object], operators: list[str]) -> None:
    """Each with the first, and the first with the reference."""
    expected = reference_join(random.case.stream, random.case.master, random.case.on, random.how, random.select)
    event(f"{'no' if expected.num_rows == 0 else 'some'} output rows")
    for operator in operators:
        try:
            assert_same_rows(joined(operator, random, opened), expected)
        except Exception as error:
            error.add_note(f"operator {operator}")
            raise


@examples(25)
@given(random=random_joins())
def test_operators_agree(random: RandomJoin) -> None:
    master = MemoryMaster(random.case.master, random.case.on, page_rows=random.page_rows)
    compare(random, {"master": master}, sorted(ALGORITHMS))


@examples(25)
@given(random=random_joins(kinds=HASHED), bits=st.integers(0, 4))
def test_operators_agree_when_codes_collide(random: RandomJoin, bits: int) -> None:
    master = MemoryMaster(random.case.master, random.case.on, page_rows=random.page_rows, **colliding_codes(bits))
    compare(random, {"master": master}, sorted(ALGORITHMS))


@examples(15)
@given(random=random_joins(), reads=st.sampled_from(["mapped", "direct"]))
def test_operators_agree_on_a_page_store(random: RandomJoin, reads: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r"
        build_pages(random.case.master, path, on=random.case.on, page_rows=random.page_rows)
        compare(random, {"master": path, "reads": reads}, sorted(ALGORITHMS))


@examples(15)
@given(random=random_joins())
def test_scan_operators_agree_on_parquet(random: RandomJoin) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r.parquet"
        pq.write_table(random.case.master, path, row_group_size=max(random.page_rows, 4))
        scans = [name for name, operator in sorted(ALGORITHMS.items()) if not operator.needs_index]
        compare(random, {"master": path}, scans)


@examples(4)
@given(
    kind=st.sampled_from(["int64", "string", "composite", "float64"]),
    seed=st.integers(0, 10**6),
    skew=st.sampled_from([0.0, 0.5, 1.0, 1.5]),
    n_master=st.sampled_from([17, 500, 2_500]),
    page_rows=st.sampled_from([4, 16, 64]),
    how=st.sampled_from(HOWS),
    factor=st.sampled_from([1.0, 1.1, 1.6, 4.0]),
)
def test_operators_agree_under_pressure(
    kind: str, seed: int, skew: float, n_master: int, page_rows: int, how: str, factor: float
) -> None:
    """Thousands of tuples in the least memory: the small joins above fit into any budget."""
    pressing = pressing_case(kind, seed, skew, n_stream=4_000, n_master=n_master)
    random = RandomJoin(kind, pressing, how, None, page_rows, factor)
    compare(random, {"master": MemoryMaster(pressing.master, pressing.on, page_rows)}, sorted(ALGORITHMS))
