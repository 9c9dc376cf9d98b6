"""What INLJ, SSIJ and the partition-based join promise besides the result: whose reads, when, what wait."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from tests.strategies import HOWS

from semistream import SemiStreamJoin, Snapshot, open_join
from semistream.errors import ConfigError
from semistream.testing import assert_same_rows, reference_join, run_join, split

MakeMaster = Callable[..., dict[str, object]]

RNG = np.random.default_rng(12)
MASTER = pa.table({"k": np.arange(4000), "m": RNG.integers(0, 99, 4000)})
PAGE_ROWS = 16


def stream_of(keys: object) -> pa.Table:
    column = pa.array(keys)
    return pa.table({"k": column, "n": pa.array(np.arange(len(column)))})


# ------------------------------------------------------------------------------------------------- inlj


@pytest.mark.parametrize("form", ["pages", "direct"])
def test_inlj_reads_for_every_tuple(form: str, make_master: MakeMaster) -> None:
    """The same page a thousand times is a thousand reads; nothing is shared, whatever the memory."""
    opened = make_master(MASTER, "k", form, page_rows=PAGE_ROWS)
    stream = stream_of(np.repeat([5, 3999, 5], 400))
    for memory in ("200KB", "4MB"):
        with open_join("inlj", on="k", memory=memory, **opened) as join:
            assert_same_rows(run_join(join, split(stream, 500)), reference_join(stream, MASTER, "k"))
            assert join.stats.reads == join.stats.pages_read == 1200
            assert join.stats.cache_hits == 0


@pytest.mark.parametrize("form", ["pages", "direct"])
def test_inlj_reads_all_pages_of_a_run_for_each_tuple(form: str, make_master: MakeMaster) -> None:
    master = pa.table({"k": np.repeat([1, 2, 3], [3, 160, 5]), "m": np.arange(168)})
    stream = stream_of([2, 1, 2, 2])
    with open_join("inlj", on="k", memory="4MB", **make_master(master, "k", form, page_rows=PAGE_ROWS)) as join:
        assert_same_rows(run_join(join, split(stream, 4)), reference_join(stream, master, "k"))
        assert join.stats.pages_read == 3 * 11 + 1
        assert join.stats.reads == 4


# ------------------------------------------------------------------------------------------------- ssij


def open_ssij(opened: dict[str, object], **options: object) -> SemiStreamJoin:
    return open_join("ssij", on="k", memory="400KB", **opened, **options)


def test_ssij_gathers_input_before_it_looks(make_master: MakeMaster) -> None:
    """Pending phase: one-row batches cost nothing until the input buffer reaches its threshold."""
    opened = make_master(MASTER, "k", page_rows=PAGE_ROWS)
    with open_ssij(opened, input_tuples=10, stream_tuples=15) as join:
        out = []
        for i, batch in enumerate(split(stream_of(np.arange(30) * 16), 1), start=1):
            out += list(join.push(batch))
            assert join.stats.cache_misses == i // 10 * 10
            assert join.stats.pages_read == (20 if i >= 20 else 0)
        out += list(join.drain())
        assert pa.Table.from_batches(out).num_rows == 30


def test_ssij_reads_in_disk_order_each_block_once(make_master: MakeMaster) -> None:
    opened = make_master(MASTER, "k", page_rows=PAGE_ROWS)
    keys = RNG.permutation(np.repeat(np.arange(0, 4000, 4), 2))
    with open_ssij(opened) as join:
        out = run_join(join, split(stream_of(keys), 500))
        assert out.num_rows == len(keys)
        assert join.stats.pages_read == MASTER.num_rows // PAGE_ROWS
        assert join.stats.reads == 1


def test_ssij_keeps_the_blocks_of_most_utility(make_master: MakeMaster) -> None:
    opened = make_master(MASTER, "k", page_rows=PAGE_ROWS)
    hot = np.arange(5) * 16 * 40 + 3
    keys = np.where(RNG.random(60_000) < 0.5, RNG.choice(hot, 60_000), RNG.integers(0, 4000, 60_000))
    with open_ssij(opened) as join:
        run_join(join, split(stream_of(keys), 2000))
        assert (join.loop.pages.directory[hot // PAGE_ROWS] >= 0).all()
        before = join.stats.cache_hits
        run_join(join, split(stream_of(np.repeat(hot, 20)), 100))
        assert join.stats.cache_hits - before == 100


def test_ssij_does_not_cache_a_run_longer_than_what_it_reads_at_once(make_master: MakeMaster) -> None:
    """Its blocks come piece by piece, and every tuple of the key meets all of them."""
    master = pa.table({"k": np.repeat([1, 2, 3], [40, 3000, 40]), "m": np.arange(3080)})
    stream = stream_of([2, 1, 3, 2])
    opened = make_master(master, "k", "direct", page_rows=PAGE_ROWS)
    with open_ssij(opened, buffer_bytes=8 << 10) as join:
        assert join.plan.division.pages < 100
        assert_same_rows(run_join(join, split(stream, 4)), reference_join(stream, master, "k"))
        inside = np.arange(3, 189)
        assert (join.loop.pages.directory[inside] < 0).all()
        assert join.loop.waiting == 0


def test_ssij_advances_by_a_join_phase(make_master: MakeMaster) -> None:
    """Without a new tuple those of the input buffer are looked up too, and all that wait are answered."""
    opened = make_master(MASTER, "k", page_rows=PAGE_ROWS)
    with open_ssij(opened, input_tuples=10, how="inner") as join:
        for keys in ([5, 5000], np.arange(12), [3999]):
            assert list(join.push(stream_of(keys).to_batches()[0])) == []
        assert join.waiting == 15
        out = list(join.advance())
        assert join.waiting == 0
        assert sorted(key for batch in out for key in batch["k"].to_pylist()) == sorted([5, *range(12), 3999])
        assert list(join.advance()) == []


# --------------------------------------------------------------------------------------- partitionjoin


def open_partitions(opened: dict[str, object], **options: object) -> SemiStreamJoin:
    return open_join("partitionjoin", on="k", memory="400KB", partition_pages=5, **opened, **options)


def test_no_tuple_waits_longer_than_the_deadline(make_master: MakeMaster) -> None:
    """In the paper the single tuple of a cold partition waits for as long as others are more popular."""
    opened = make_master(MASTER, "k", page_rows=PAGE_ROWS)
    with open_partitions(opened, deadline=2_000) as join:
        assert list(join.push(pa.record_batch({"k": [3990], "n": [-1]}))) == []
        for pushed in range(0, 10_000, 100):
            keys = pa.array(RNG.integers(0, 800, 100))
            out = list(join.push(pa.record_batch({"k": keys, "n": pa.array(np.full(100, pushed))})))
            if any(-1 in batch["n"].to_pylist() for batch in out):
                break
        assert pushed + 100 == 2_000
        list(join.drain())


def test_partition_of_the_oldest_tuple_is_loaded_when_none_comes(make_master: MakeMaster) -> None:
    """No tuple comes, so no deadline passes: whoever waits longest is answered first, however few wait with it."""
    opened = make_master(MASTER, "k", page_rows=PAGE_ROWS)
    with open_partitions(opened) as join:
        for keys in ([3990], [7] * 300, [2000] * 500, [3991]):
            assert list(join.push(stream_of(keys).to_batches()[0])) == []
        answered = [{key for batch in join.advance() for key in batch["k"].to_pylist()} for _ in range(4)]
        assert answered == [{3990, 3991}, {7}, {2000}, set()]
        assert join.waiting == 0


def test_deadline_survives_a_restart(make_master: MakeMaster) -> None:
    opened = make_master(MASTER, "k", page_rows=PAGE_ROWS)
    with open_partitions(opened, deadline=1_000) as join:
        list(join.push(pa.record_batch({"k": [3990], "n": [-1]})))
        list(join.push(pa.record_batch({"k": [7] * 400, "n": [0] * 400})))
        saved = join.snapshot().to_bytes()
    with open_partitions(opened, deadline=1_000) as join:
        join.restore(Snapshot.from_bytes(saved))
        assert list(join.push(pa.record_batch({"k": [3000] * 599, "n": [0] * 599}))) == []
        out = list(join.push(pa.record_batch({"k": [3000], "n": [0]})))
        assert [-1] in [batch["n"].to_pylist() for batch in out]


def test_tuples_without_an_age_in_the_snapshot_are_as_old_as_the_join(make_master: MakeMaster) -> None:
    opened = make_master(MASTER, "k", page_rows=PAGE_ROWS)
    with open_partitions(opened) as join:
        list(join.push(stream_of([3990, 7]).to_batches()[0]))
        saved = join.snapshot()
    with open_partitions(opened) as join:
        join.restore(Snapshot({**saved.state, "waiting": []}, saved.tuples))
        out = [*join.advance(), *join.advance()]
        assert sorted(key for batch in out for key in batch["k"].to_pylist()) == [7, 3990]


def test_partition_with_the_most_waiting_tuples_is_loaded_first(make_master: MakeMaster) -> None:
    opened = make_master(MASTER, "k", page_rows=PAGE_ROWS)
    with open_partitions(opened, cache_share=0.0) as join:
        popular, out = 80 * 20, []
        keys = np.where(np.arange(40_000) % 4 == 0, popular, np.arange(40_000) * 7 % 4000)
        for batch in split(stream_of(keys), 200):
            out = list(join.push(batch))
            if out:
                break
        loaded = {key // 80 for batch in out for key in batch["k"].to_pylist()}
        assert popular // 80 in loaded
        list(join.drain())


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("pages", [1, 3, 1000])
def test_runs_cross_partitions(how: str, pages: int, make_master: MakeMaster) -> None:
    master = pa.table({"k": np.repeat(np.arange(40), RNG.integers(1, 60, 40))})
    master = master.append_column("m", pa.array(np.arange(master.num_rows)))
    stream = stream_of(RNG.integers(-2, 44, 900))
    for form in ("pages", "direct", "frequency"):
        opened = make_master(master, "k", form, page_rows=PAGE_ROWS)
        arguments = {"how": how, "partition_pages": pages, **opened}
        with open_join("partitionjoin", on="k", memory="600KB", **arguments) as join:
            actual = run_join(join, split(stream, 70))
        assert_same_rows(actual, reference_join(stream, master, "k", how))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ssij", {"input_tuples": 0}),
        ("ssij", {"stream_tuples": -1}),
        ("ssij", {"cache_share": 1.5}),
        ("partitionjoin", {"deadline": 0}),
        ("partitionjoin", {"partition_pages": 0}),
        ("orderedjoin", {"queue_share": 0.0}),
        ("orderedjoin", {"batch": 0}),
    ],
)
def test_options_out_of_range_are_refused(name: str, options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        open_join(name, master=MASTER, on="k", memory="1MB", **options)
