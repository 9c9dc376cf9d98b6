"""The mistakes seen in public implementations of these algorithms, one test each.

The contract suite would catch most of them too; here each has a name and an input made for it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.strategies import HOWS, PAGE_ROWS

from semistream import open_join
from semistream.algorithms.registry import ALGORITHMS
from semistream.algorithms.ssbj import BalancedFront
from semistream.engine.join import SemiStreamJoin
from semistream.errors import SemiStreamError
from semistream.lab.workloads.relation import KEY, STREAM_SCHEMA, master_table, stream_batches
from semistream.loops.scan import ScanLoop
from semistream.master.memory import MemoryMaster
from semistream.testing import (
    FaultyMaster,
    assert_same_rows,
    reference_join,
    run_join,
    smallest_budget,
    split,
)

MakeMaster = Callable[..., dict[str, object]]


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """A livelock must fail, not hang."""

    def late(*_: object) -> None:
        raise AssertionError(f"no end after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def stream_of(keys: object, kind: pa.DataType | None = None) -> pa.Table:
    column = pa.array(keys, kind)
    return pa.table({"k": column, "n": pa.array(np.arange(len(column)))})


def master_of(keys: object, kind: pa.DataType | None = None) -> pa.Table:
    column = pa.array(keys, kind)
    return pa.table({"k": column, "m": pa.array(np.arange(len(column)))})


def check(operator: str, stream: pa.Table, master: pa.Table, opened: dict[str, object], batch_rows: int = 32) -> None:
    """All four joins in little memory, so that tuples have to wait and caches to evict."""
    for how in HOWS:
        arguments = {"on": "k", "how": how, "stream_schema": stream.schema, **opened}
        least = smallest_budget(operator, **arguments)
        with open_join(operator, memory=int(1.2 * least), **arguments) as join:
            actual = run_join(join, split(stream, batch_rows))
        assert_same_rows(actual, reference_join(stream, master, "k", how))


def test_expiring_a_chunk_keeps_younger_tuples_of_its_keys(operator: str, make_master: MakeMaster) -> None:
    """A third to two thirds of a skewed stream was lost where the oldest chunk was expired key by key."""
    rng = np.random.default_rng(1)
    master = master_of(rng.permutation(160))
    # The hot keys are in every chunk: whenever one chunk leaves, younger ones hold the same keys.
    stream = stream_of(np.where(rng.random(3000) < 0.7, rng.integers(0, 4, 3000), rng.integers(0, 160, 3000)))
    check(operator, stream, master, make_master(master, "k"))


@pytest.mark.parametrize(
    "absent",
    [
        pytest.param([999], id="above_the_greatest_key"),
        pytest.param([-7], id="below_the_smallest_key"),
        pytest.param([101], id="in_a_gap"),
        pytest.param([-7, 101, 999, 55, 1001], id="everywhere"),
    ],
)
def test_absent_key_at_the_queue_head_leaves(operator: str, absent: list[int], make_master: MakeMaster) -> None:
    """The head of the queue picks the load; a key that no page holds must not pick the same page for ever."""
    master = master_of(np.arange(0, 200, 2))
    keys = np.resize(np.array(absent), 600)
    keys[1::3] = 2 * np.arange(200) % 200
    with within(60):
        check(operator, stream_of(keys), master, make_master(master, "k"))


def test_stream_of_absent_keys_alone_ends(operator: str, make_master: MakeMaster) -> None:
    master = master_of(np.arange(0, 200, 2))
    with within(60):
        check(operator, stream_of(np.arange(1, 4000, 2)), master, make_master(master, "k"))


@pytest.mark.parametrize("kind", ["int64", "string"])
def test_unmatched_keys_leave_in_few_batches(operator: str, kind: str, make_master: MakeMaster) -> None:
    """Not key by key, which took fifty times as long."""
    keys = pa.array(range(0, 9_000, 3)).cast(kind)
    master = pa.table({"k": keys, "v": pa.array(range(len(keys)))})
    stream = pa.table({"k": pa.array(range(12_000)).cast(kind)})
    with open_join(operator, on="k", how="left", memory="400KB", **make_master(master, "k")) as join:
        out = run_join(join, split(stream, 2_000))
        assert join.stats.batches_out < 12_000 / 20
    assert_same_rows(out, reference_join(stream, master, "k", "left"))


def test_all_master_tuples_of_a_key_are_emitted(operator: str, make_master: MakeMaster) -> None:
    """Not the first one only: neither from the disk phase nor, once the key is hot, from the cache."""
    master = master_of(np.repeat(np.arange(40), 3))
    check(operator, stream_of(np.resize([7, 7, 8, 30], 800)), master, make_master(master, "k"))


def test_run_is_not_cut_at_a_page_border(operator: str, make_master: MakeMaster) -> None:
    """Every key's run of five rows crosses a page border somewhere in R: pages hold eight."""
    assert PAGE_ROWS % 5
    master = master_of(np.repeat(np.arange(40), 5))
    check(operator, stream_of(np.resize(np.arange(40), 500)), master, make_master(master, "k"))


def test_run_that_fills_its_pages_exactly(operator: str, make_master: MakeMaster) -> None:
    """The border case of the border case: the run starts and ends with a page, its neighbours do too."""
    master = master_of(np.repeat(np.arange(12), PAGE_ROWS))
    check(operator, stream_of(np.resize(np.arange(-1, 13), 200)), master, make_master(master, "k"))


def test_pending_table_keeps_all_tuples_of_a_key(operator: str, make_master: MakeMaster) -> None:
    """H_S is a multi-map: a later tuple with the same key must not take the place of an earlier one."""
    master = master_of(np.arange(100))
    check(operator, stream_of(np.full(700, 42)), master, make_master(master, "k"), batch_rows=700)
    check(operator, stream_of(np.full(100, 42)), master, make_master(master, "k"), batch_rows=1)


def test_cache_follows_the_stream(operator: str, make_master: MakeMaster) -> None:
    """A cache that keeps its first matches for ever is right but useless.

    Operators that ask for R in order of frequency keep a static cache by design; the others must follow.
    """
    rng = np.random.default_rng(5)
    master = master_of(rng.permutation(2000))
    opened = make_master(master, "k", page_rows=32)
    least = smallest_budget(operator, on="k", stream_schema=stream_of([1]).schema, **opened)
    with open_join(operator, on="k", memory=least + 12_000, **opened) as join:
        rates = []
        for hot in (100, 1100):
            for rows in (30_000, 5_000):
                before = join.stats.cache_hits
                run_join(join, split(stream_of(hot + rng.integers(0, 25, rows)), 1000))
            rates.append((join.stats.cache_hits - before) / 5_000)
    if not ALGORITHMS[operator].wants_frequency_order:
        assert rates[1] >= 0.9 * rates[0]


def test_key_enters_the_cache_with_all_its_master_tuples(operator: str, tmp_path: Path) -> None:
    """A key switched into the cache with only the tuples seen so far answers wrongly from then on.

    R is in no order, so the tuples of the hot keys lie far apart; they are pushed long after the switch.
    """
    rng = np.random.default_rng(3)
    master = master_of(rng.permutation(np.concatenate((np.repeat(np.arange(6), 15), np.arange(6, 300)))))
    stream = stream_of(np.where(rng.random(4000) < 0.8, rng.integers(0, 6, 4000), rng.integers(0, 330, 4000)))
    if ALGORITHMS[operator].needs_index:
        opened: dict[str, object] = {"master": MemoryMaster(master, "k", page_rows=PAGE_ROWS)}
    else:
        pq.write_table(master, tmp_path / "r.parquet", row_group_size=16)
        opened = {"master": tmp_path / "r.parquet"}
    arguments = {"on": "k", "stream_schema": stream.schema, **opened}
    least = smallest_budget(operator, **arguments)
    for extra in (0, 2_000, 20_000):
        with open_join(operator, memory=least + extra, **arguments) as join:
            actual = run_join(join, split(stream, 100))
        assert_same_rows(actual, reference_join(stream, master, "k"))


def test_short_reads_leak_no_slots(operator: str, make_master: MakeMaster) -> None:
    """The last page is short. Where the slots of a short read are never freed, w falls to 0 and all stops."""
    master = master_of(np.arange(8 * PAGE_ROWS + 1))
    stream = stream_of(np.resize([8 * PAGE_ROWS, 8 * PAGE_ROWS, 3, 10_000], 8000))
    with within(60):
        check(operator, stream, master, make_master(master, "k"), batch_rows=500)


@pytest.mark.parametrize("rows", [1, PAGE_ROWS - 1, PAGE_ROWS, PAGE_ROWS + 1, 97, 101])
def test_master_size_is_no_multiple_of_the_partitions(operator: str, rows: int, make_master: MakeMaster) -> None:
    master = master_of(np.arange(rows))
    check(operator, stream_of(np.arange(-2, rows + 2)), master, make_master(master, "k"))


def test_empty_master_data(operator: str, make_master: MakeMaster) -> None:
    master = master_of([], pa.int64())
    with within(60):
        check(operator, stream_of(np.arange(100)), master, make_master(master, "k"))


def test_empty_stream(operator: str, make_master: MakeMaster) -> None:
    master = master_of(np.arange(50))
    check(operator, stream_of([], pa.int64()), master, make_master(master, "k"))


def test_keys_are_not_dense_integers(operator: str, make_master: MakeMaster) -> None:
    """The ends of the int64 range too: whatever a table uses to mark a free slot is also a key."""
    ends = [np.iinfo(np.int64).min, np.iinfo(np.int64).min + 1, -1, 0, 1, np.iinfo(np.int64).max]
    keys = np.concatenate((np.array(ends), np.random.default_rng(2).integers(-(2**62), 2**62, 90)))
    master = master_of(np.concatenate((keys, keys[:6])))
    check(operator, stream_of(np.concatenate((keys, keys - 5, keys[:6], [7]))), master, make_master(master, "k"))


@pytest.mark.parametrize("fail_at", [1, 2, 3, 7])
def test_failed_read_loses_no_tuple(operator: str, fail_at: int) -> None:
    """Others dropped the tuples whose look-up failed.

    Here the error surfaces, unless no tuple needed that page any more (a load ahead of time). After it the
    join either says that it cannot go on, or goes on and gives every tuple it was handed.
    """
    rng = np.random.default_rng(4)
    master = master_of(np.arange(120))
    stream = stream_of(rng.integers(-5, 140, 400))
    for how in ("inner", "left"):
        faulty = FaultyMaster(MemoryMaster(master, "k", page_rows=PAGE_ROWS), fail_at)
        arguments = {"on": "k", "how": how, "master": faulty, "stream_schema": stream.schema}
        least = smallest_budget(operator, **arguments)
        faulty.accesses = 0
        handed: list[pa.RecordBatch] = []
        out: list[pa.RecordBatch] = []
        try:
            join = open_join(operator, memory=int(1.2 * least), **arguments)
        except (OSError, SemiStreamError):
            continue
        with join:
            try:
                for batch in split(stream, 40):
                    handed.append(batch)
                    out.extend(join.push(batch))
                out.extend(join.drain())
            except (OSError, SemiStreamError):
                try:
                    out.extend(join.drain())
                except SemiStreamError:
                    continue
            schema = join.output_schema
        assert_same_rows(pa.Table.from_batches(out, schema), reference_join(handed, master, "k", how))


def balanced(join: SemiStreamJoin) -> BalancedFront:
    """The cache of a running SSBJ."""
    assert isinstance(join.loop, ScanLoop)
    assert isinstance(join.loop.front, BalancedFront)
    return join.loop.front


def test_ssbj_grows_its_directory_with_what_evictions_freed() -> None:
    """The ledger hears of evictions at the end of a step; a directory that grows before must not be refused."""
    table = master_table(20_000, seed=1).select([KEY, "m01"])
    with open_join("ssbj", master=table, on=KEY, memory="600kB") as join:
        for batch in stream_batches(100_000, 20_000, 1.0, seed=2, batch_rows=20_000):
            list(join.push(batch))
        list(join.drain())
        front = balanced(join)
        keys = front.cache.max_keys
        front._growth_bytes = front.cache.directory_bytes(keys * 3 // 2)
        # As if the cache had been larger a moment ago.
        join.budget.hold("cache", front.cache.bytes_held + join.budget.spare)
        front._grow_directory()
        assert front.cache.max_keys == keys * 3 // 2
        assert join.memory.bytes_now <= 600_000


@pytest.mark.parametrize("how", HOWS)
def test_ssbj_tells_absent_keys_by_a_bit_each_where_codes_are_dense(how: str) -> None:
    """Keys below, among and behind those of R; what a bit says must be what R says."""
    table = master_table(20_000, 1, repeat=True).append_column("m", pa.array(np.arange(20_000)))
    table = table.select([KEY, "m"])
    random = np.random.default_rng(3)
    keys = np.concatenate((random.integers(-5_000, 25_000, 120_000), random.integers(0, 50, 40_000)))
    random.shuffle(keys)
    stream = pa.table({KEY: keys, "n": np.arange(len(keys))})
    with open_join("ssbj", master=table, on=KEY, how=how, memory="160kB") as join:
        rows = [batch for part in split(stream, [4_000] * 40) for batch in join.push(part)]
        found = balanced(join).filter
        assert found is not None
        assert found.ready
        assert found.plan.hashes == 0
        rows += list(join.drain())
        waited = join.stats.appended
    assert_same_rows(pa.Table.from_batches(rows), reference_join(stream, table, KEY, how))
    assert waited < 0.75 * len(keys)


def test_ssbj_drops_a_filter_that_finds_nobody_out() -> None:
    table = master_table(20_000, 1)
    with open_join("ssbj", master=table, on=KEY, memory="300kB", stream_schema=STREAM_SCHEMA) as join:
        front = balanced(join)
        held = front._total
        assert front.filter is not None
        for batch in stream_batches(400_000, 20_000, 0.0, seed=2, batch_rows=10_000):
            for _ in join.push(batch):
                pass
        assert front.filter is None
        assert front._total > held
        assert "key filter" not in {part for part, size in join.memory.now.items() if size}
