"""The papers' algorithms without what we have added to them: as exact and as bounded, and what each addition is for."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from tests.algorithms.conftest import forms_of
from tests.strategies import HOWS, SHAPES, case, pressing_case

from semistream import SemiStreamJoin, open_join
from semistream.algorithms.ssbj import BalancedFront
from semistream.kernels import cache as kernel
from semistream.lab.workloads.relation import KEY, STREAM_SCHEMA, master_table, stream_batches
from semistream.loops.scan import ScanLoop
from semistream.testing import assert_same_rows, reference_join, run_join, smallest_budget, split

MakeMaster = Callable[..., dict[str, object]]

MODES = [
    ("ssbj", {"literal": True}),
    ("ssbj", {"absence_filter": False}),
    ("ssbj", {"chance_test": False}),
    ("ssbj", {"probation": False}),
    ("ssbj", {"cap": False}),
    ("rmeshjoin", {"w": 5}),
    ("rmeshjoin", {"w": 1, "b": 500}),
]


def name(mode: tuple[str, dict[str, object]]) -> str:
    return f"{mode[0]} {' '.join(mode[1])}"


@pytest.mark.parametrize("mode", MODES, ids=name)
def test_literal_modes_equal_the_relational_join(mode: tuple[str, dict[str, object]], make_master: MakeMaster) -> None:
    operator, options = mode
    settings = list(product(forms_of(operator), (1.0, 1.5, 4.0, None)))
    for i, (shape, how) in enumerate(product(SHAPES, HOWS)):
        given = case("int64", shape)
        form, tightness = settings[5 * i % len(settings)]
        arguments = {"on": given.on, "how": how, "stream_schema": given.stream.schema, **options}
        arguments |= make_master(given.master, given.on, form)
        memory = "64MB" if tightness is None else int(tightness * smallest_budget(operator, **arguments))
        with open_join(operator, memory=memory, **arguments) as join:
            actual = run_join(join, given.batches)
            assert join.memory.peak_bytes <= join.memory.budget_bytes
        assert_same_rows(actual, given.expected(how))


@pytest.mark.parametrize("mode", MODES, ids=name)
@pytest.mark.parametrize("kind", ["int64", "string"])
def test_literal_modes_under_memory_pressure(
    mode: tuple[str, dict[str, object]], kind: str, make_master: MakeMaster
) -> None:
    operator, options = mode
    for skew, how, tightness in ((0.3, "left", 1.0), (1.1, "inner", 1.25), (1.1, "anti", 2.0)):
        given = pressing_case(kind, seed=5, skew=skew)
        arguments = {"on": given.on, "how": how, "stream_schema": given.stream.schema, **options}
        arguments |= make_master(given.master, given.on, "pages", page_rows=16)
        memory = int(tightness * smallest_budget(operator, **arguments))
        with open_join(operator, memory=memory, **arguments) as join:
            actual = run_join(join, given.batches)
            assert join.memory.peak_bytes <= join.memory.budget_bytes
        assert_same_rows(actual, given.expected(how))


# --------------------------------------------------------------------------------------- R-MESHJOIN


@pytest.mark.parametrize("how", HOWS)
def test_rmeshjoin_goes_on_in_the_middle_of_a_load(how: str) -> None:
    """Chunks are smaller than what a load brings in by itself, and a snapshot may come between two pieces of a load."""
    table, rows = master_table(3_000, 1, repeat=True), []
    batches = list(stream_batches(20_000, 3_000, 0.5, seed=2, batch_rows=1_000))
    sizes: dict[str, object] = {"memory": "200kB", "b": 1_000, "w": 100, "stream_schema": STREAM_SCHEMA}
    middles = 0
    join = open_join("rmeshjoin", master=table, on=KEY, how=how, **sizes)
    for batch in batches:
        rows += list(join.push(batch))
        loop = join.loop
        assert isinstance(loop, ScanLoop)
        assert loop.pieces > 1
        assert max(tuples for tuples, _ in loop.chunks) <= 105
        middles += loop.scan.position % loop.pieces != 0
        snapshot = join.snapshot()
        join.close()
        join = open_join("rmeshjoin", master=table, on=KEY, how=how, **sizes)
        join.restore(snapshot)
    rows += list(join.drain())
    join.close()
    assert middles > 5
    expected = reference_join(pa.Table.from_batches(batches), table, KEY, how)
    assert_same_rows(pa.Table.from_batches(rows, expected.schema), expected)


def test_rmeshjoin_reads_as_meshjoin_whatever_the_chunks() -> None:
    table = master_table(20_000, 1)
    counts = {}
    for operator, options in (("meshjoin", {}), ("rmeshjoin", {"w": 50})):
        with open_join(operator, master=table, on=KEY, memory="300kB", **options) as join:
            for batch in stream_batches(200_000, 20_000, 0.5, seed=2, batch_rows=5_000):
                list(join.push(batch))
            stats = join.stats
            counts[operator] = (stats.finished / stats.pages_read, stats.iterations / stats.reads)
    assert counts["rmeshjoin"][0] == pytest.approx(counts["meshjoin"][0], rel=0.02)
    assert counts["meshjoin"][1] == 1.0
    assert counts["rmeshjoin"][1] > 2.0


# --------------------------------------------------------------------------------------------- SSBJ


def balanced(join: SemiStreamJoin) -> BalancedFront:
    """The cache of a running SSBJ."""
    assert isinstance(join.loop, ScanLoop)
    assert isinstance(join.loop.front, BalancedFront)
    return join.loop.front


def skewed(**options: object) -> SemiStreamJoin:
    """SSBJ over a small R, after twelve R-cycles of a skewed stream."""
    table = master_table(20_000, 1, repeat=True)
    join = open_join("ssbj", master=table, on=KEY, memory="300kB", stream_schema=STREAM_SCHEMA, **options)
    for batch in stream_batches(1 << 40, 20_000, 1.0, seed=2, batch_rows=5_000):
        for _ in join.push(batch):
            pass
        if join.stats.r_cycles >= 12:
            return join
    raise AssertionError("the stream has no end")


def test_literal_ssbj_has_no_filter_of_absent_keys() -> None:
    with skewed() as ours, skewed(absence_filter=False) as without, skewed(literal=True) as literal:
        assert balanced(ours).filter is not None
        assert balanced(without).filter is None
        assert balanced(literal).filter is None
        assert without.memory.peak["cache"] > 0


def test_without_the_chance_test_more_keys_come_in_and_leave() -> None:
    with skewed() as ours, skewed(chance_test=False) as without:
        assert without.stats.switched > 1.2 * ours.stats.switched
        assert without.stats.evicted > 1.2 * ours.stats.evicted


def test_without_probation_keys_leave_every_tenth_cycle_only() -> None:
    table = master_table(20_000, 1)
    evicted: dict[bool, set[int]] = {}
    for probation in (True, False):
        options = {"probation": probation, "chance_test": False}
        with open_join("ssbj", master=table, on=KEY, memory="300kB", **options) as join:
            before, cycles = 0, set()
            for batch in stream_batches(400_000, 20_000, 0.8, seed=2, batch_rows=500):
                list(join.push(batch))
                if join.stats.evicted > before:
                    before = join.stats.evicted
                    cycles.add(balanced(join).rc)
            evicted[probation] = cycles
    assert evicted[False]
    assert all(cycle % 10 == 0 for cycle in evicted[False])
    assert any(cycle % 10 != 0 for cycle in evicted[True])


@pytest.mark.parametrize(("share", "is_cached"), [(0.05, False), (0.5, True)])
def test_ssbj_counts_master_tuples_past_a_byte(share: float, is_cached: bool) -> None:
    """A key with 2,000 master tuples comes often enough to pay for 255 of them, or for all."""
    random = np.random.default_rng(1)
    keys = np.concatenate((np.arange(1, 20_000), np.zeros(2_000, dtype=np.int64)))
    random.shuffle(keys)
    table = pa.table({"k": keys, "m": np.arange(len(keys))})
    asked = np.where(random.random(200_000) < share, 0, random.integers(1, 20_000, 200_000))
    stream = pa.table({"k": asked, "n": np.arange(len(asked))})
    out, shown = [], False
    with open_join("ssbj", master=table, on="k", memory="300kB", how="semi") as join:
        for batch in split(stream, [5_000] * 40):
            out += list(join.push(batch))
            cache = balanced(join).cache
            entries = cache.entries.reshape(-1, 2)
            meta = entries[(entries[:, 0] == 0) & (entries[:, 1] != kernel.EMPTY), 1]
            shown |= bool(len(meta) and meta[0] & kernel.SWITCHING == 0)
        waiting = share * join.stats.tuples_in / join.stats.r_cycles * balanced(join)._pending.tuple_bytes
        assert waiting > 1.5 * 255 * cache.pool.slot_bytes, "the key does not come often enough to be named"
        assert (waiting > 2_000 * cache.pool.slot_bytes) == is_cached
        assert shown == is_cached
        out += list(join.drain())
    assert_same_rows(pa.Table.from_batches(out), reference_join(stream, table, "k", "semi"))
