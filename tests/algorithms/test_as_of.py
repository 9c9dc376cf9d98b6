"""As-of joins: of a key's rows those that were valid at the tuple's time, as DuckDB and the reference join say."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.conftest import forms_of
from tests.strategies import HOWS, examples

from semistream import SemiStreamJoin, build_pages, open_join
from semistream.algorithms.registry import ALGORITHMS
from semistream.errors import ConfigError, SchemaError
from semistream.master.memory import MemoryMaster
from semistream.parts.generation import Generations
from semistream.spec import JoinSpec
from semistream.testing import assert_same_rows, colliding_codes, reference_join, run_join, smallest_budget, split

MakeMaster = Callable[..., dict[str, object]]
AS_OF = {"as_of": "event_time", "valid": ("valid_from", "valid_to")}
LEAST, MOST = -(2**63), 2**63 - 1
US = pa.timestamp("us")


def whole(values: list[int | None], kind: pa.DataType) -> pa.Array:
    """Numbers of ticks as a column of any type that tells time."""
    if pa.types.is_integer(kind):
        return pa.array(values, kind)
    return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)


def by_duckdb(stream: pa.Table, master: pa.Table, how: str) -> pa.Table:
    """The same by DuckDB, with the predicate written out."""
    on = (
        "s.k = r.k and s.event_time is not null and (r.valid_from is null or r.valid_from <= s.event_time) "
        "and (r.valid_to is null or s.event_time < r.valid_to)"
    )
    columns = "s.*, r.name, r.valid_from, r.valid_to" if how in ("inner", "left") else "s.*"
    with duckdb.connect() as connection:
        connection.register("s", stream)
        connection.register("r", master)
        found = connection.sql(f"select {columns} from s {how} join r on {on}").to_arrow_table()
    expected = reference_join(stream.slice(0, 0), master, "k", how, **AS_OF)
    return found.cast(expected.schema)


ticks = st.one_of(st.none(), st.integers(0, 12))
rows = st.lists(st.tuples(st.integers(0, 4), ticks, ticks), max_size=40)
tuples = st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 5)), ticks), max_size=40)


def tables(
    tuples: list[tuple[int | None, int | None]], rows: list[tuple[int, int | None, int | None]]
) -> list[pa.Table]:
    stream = pa.table(
        {
            "n": pa.array(range(len(tuples)), pa.int64()),
            "k": pa.array([key for key, _ in tuples], pa.int64()),
            "event_time": whole([time for _, time in tuples], US),
        }
    )
    master = pa.table(
        {
            "k": pa.array([key for key, _, _ in rows], pa.int64()),
            "name": pa.array([f"row {i}" for i in range(len(rows))], pa.string()),
            "valid_from": whole([start for _, start, _ in rows], US),
            "valid_to": whole([end for _, _, end in rows], US),
        }
    )
    return [stream, master]


@examples(25)
@given(
    tuples=tuples, rows=rows, how=st.sampled_from(HOWS), text=st.booleans(), factor=st.sampled_from([1.0, 1.4, 50.0])
)
def test_random_intervals_as_duckdb_joins_them(
    tuples: list[tuple[int | None, int | None]],
    rows: list[tuple[int, int | None, int | None]],
    how: str,
    text: bool,
    factor: float,
) -> None:
    """Overlaps, gaps, empty and backward intervals, equal ends, nulls everywhere; exact and hashed keys."""
    stream, master = tables(tuples, rows)
    if text:
        stream, master = (
            each.set_column(each.schema.get_field_index("k"), "k", each["k"].cast(pa.string()))
            for each in (stream, master)
        )
    expected = by_duckdb(stream, master, how)
    assert_same_rows(reference_join(stream, master, "k", how, **AS_OF), expected)
    opened = MemoryMaster(master, "k", page_rows=4, **(colliding_codes(1) if text else {}))
    arguments = {"master": opened, "on": "k", "how": how, "stream_schema": stream.schema, **AS_OF}
    for operator in sorted(ALGORITHMS):
        memory = int(smallest_budget(operator, **arguments) * factor)
        with open_join(operator, memory=memory, **arguments) as join:
            assert_same_rows(run_join(join, split(stream, [7, 1, 20])), expected)


def history(keys: int, versions: int, seed: int = 3) -> pa.Table:
    """Every key with versions that follow each other, some with a gap behind; the last is still valid."""
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.integers(0, 100 * versions, (keys, versions)), axis=1)
    ends = np.roll(cuts, -1, axis=1) - rng.integers(0, 30, cuts.shape) * (rng.random(cuts.shape) < 0.3)
    count = keys * versions
    still = np.tile(np.arange(versions) == versions - 1, keys)
    table = pa.table(
        {
            "name": [f"имя {i}" for i in range(count)],
            "k": np.repeat(np.arange(keys) * 3, versions),
            "valid_from": pa.array(cuts.ravel()).cast(US),
            "price": rng.random(count),
            "valid_to": pa.array(ends.ravel(), mask=still).cast(US),
        }
    )
    return table.take(pa.array(rng.permutation(count)))


def events(count: int, keys: int, versions: int, seed: int = 4) -> pa.Table:
    rng = np.random.default_rng(seed)
    times = pa.array(rng.integers(-50, 110 * versions, count), mask=rng.random(count) < 0.05).cast(US)
    ids = pa.array(np.minimum(rng.zipf(1.3, count), keys) * 3 % (keys * 3 + 6), mask=rng.random(count) < 0.05)
    return pa.table({"n": range(count), "k": ids, "event_time": times, "tag": [f"t{i % 7}" for i in range(count)]})


HISTORY, EVENTS = history(150, 5), events(3000, 150, 5)


@pytest.mark.parametrize("how", HOWS)
def test_all_operators_and_forms_under_memory_pressure(operator: str, how: str, make_master: MakeMaster) -> None:
    """Cached keys have several rows, runs cross pages, waiting tuples are packed; nobody selects the bounds."""
    selects = itertools.cycle([None, ["name"], [], ["valid_to", "price"]])
    for form, factor in zip(forms_of(operator), itertools.cycle([1.0, 3.0, 1.3]), strict=False):
        select = next(selects)
        arguments = {"on": "k", "how": how, "select": select, "stream_schema": EVENTS.schema, **AS_OF}
        arguments |= make_master(HISTORY, "k", form)
        memory = int(smallest_budget(operator, **arguments) * factor)
        with open_join(operator, memory=memory, **arguments) as join:
            actual = run_join(join, split(EVENTS, [500, 31, 900]))
            assert join.memory.peak_bytes <= join.memory.budget_bytes
            assert join.stats.finished == join.stats.tuples_in
        assert_same_rows(actual, reference_join(EVENTS, HISTORY, "k", how, select, **AS_OF))


@pytest.mark.parametrize("how", HOWS)
def test_the_order_of_the_stream_is_kept(how: str, make_master: MakeMaster) -> None:
    """Also where a key has more rows than the cache takes, and where rows must be confirmed by their keys."""
    long = pa.concat_tables([HISTORY, history(1, 400).set_column(1, "k", pa.array([0] * 400))])
    for text in (False, True):
        stream, master = EVENTS, long
        if text:
            stream, master = (
                each.set_column(each.schema.get_field_index("k"), "k", each["k"].cast(pa.string()))
                for each in (stream, master)
            )
        opened = make_master(master, "k", "pages", page_rows=8)
        arguments = {"on": "k", "how": how, "stream_schema": stream.schema, **AS_OF, **opened}
        memory = int(smallest_budget("orderedjoin", **arguments) * 1.2)
        with open_join("orderedjoin", memory=memory, **arguments) as join:
            actual = run_join(join, split(stream, 700))
        assert actual["n"].to_pylist() == sorted(actual["n"].to_pylist())
        assert_same_rows(actual, reference_join(stream, master, "k", how, **AS_OF))


TYPES = [
    (pa.timestamp("ns"), pa.timestamp("us"), pa.timestamp("s")),
    (pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("ms")),
    (pa.timestamp("us", "UTC"), pa.timestamp("ms", "Europe/Vienna"), pa.timestamp("ns", "+02:00")),
    (pa.timestamp("us"), pa.date32(), pa.date32()),
    (pa.date32(), pa.timestamp("ns"), pa.date64()),
    (pa.int64(), pa.int16(), pa.uint32()),
    (pa.uint8(), pa.int8(), pa.int64()),
    (pa.dictionary(pa.int8(), US), US, US),
]


@pytest.mark.parametrize("kinds", TYPES, ids=lambda kinds: " ".join(map(str, kinds)))
def test_types_and_units_are_compared_exactly(kinds: tuple[pa.DataType, ...]) -> None:
    """At the ends of what a type holds as well, and one tick beside a bound in the finer unit."""
    unit = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}

    def scale(kind: pa.DataType) -> int:
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if pa.types.is_date32(kind):
            return 86_400 * 10**9
        if pa.types.is_date64(kind):
            return 10**6
        return unit[kind.unit] if pa.types.is_timestamp(kind) else 1

    def around(kind: pa.DataType) -> list[int | None]:
        """Ticks near whole days, which every unit has, and the least and the greatest."""
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        day = 86_400 * 10**9 // scale(kind) if not pa.types.is_integer(plain) else 7
        found = {days * day + more for days in (-1, 0, 1, 2) for more in (-1, 0, 1)}
        if pa.types.is_date64(plain):
            return [each * 86_400_000 for each in (-2, 0, 1, 2)]
        signed = not str(plain).startswith("u")
        low, high = (
            (-(2 ** (plain.bit_width - 1)), 2 ** (plain.bit_width - 1) - 1) if signed else (0, 2**plain.bit_width - 1)
        )
        return [*sorted({*(each for each in found if low <= each <= high), low, high}), None]

    def column(values: list[int | None], kind: pa.DataType) -> pa.Array:
        if pa.types.is_dictionary(kind):
            return whole(values, kind.value_type).dictionary_encode().cast(kind)
        return whole(values, kind)

    time, start, end = (around(kind) for kind in kinds)
    pairs = list(itertools.product(start, end))
    master = pa.table(
        {
            "k": pa.array([1] * len(pairs)),
            "row": range(len(pairs)),
            "valid_from": column([a for a, _ in pairs], kinds[1]),
            "valid_to": column([b for _, b in pairs], kinds[2]),
        }
    )
    stream = pa.table({"k": [1] * len(time), "n": range(len(time)), "event_time": column(time, kinds[0])})
    expected = reference_join(stream, master, "k", "left", ["row"], **AS_OF)
    assert 0 < expected.num_rows < len(time) * len(pairs)
    for operator, memory in (("sweepjoin", "8MB"), ("inlj", "1MB"), ("hybridjoin", "1MB"), ("orderedjoin", "1MB")):
        opened = MemoryMaster(master, "k", page_rows=16)
        with open_join(operator, master=opened, on="k", select=["row"], memory=memory, **AS_OF) as join:
            assert_same_rows(run_join(join, split(stream, 5)), expected)


@pytest.mark.parametrize(
    ("time", "bound", "match"),
    [
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), r"local times without a zone cannot .* instants .*Cast one"),
        (pa.timestamp("us", "UTC"), pa.date32(), r"instants with a time zone cannot .* local times"),
        (pa.int64(), pa.timestamp("us"), r"integers cannot be compared with local times"),
        (pa.string(), pa.timestamp("us"), r"'event_time' of the stream has type string, which tells no time .* cast"),
        (pa.int64(), pa.uint64(), r"'valid_from' of the master data has type uint64, .*but for uint64"),
        (pa.float64(), pa.int64(), r"type double, which tells no time"),
    ],
)
def test_what_cannot_be_compared_is_refused(time: pa.DataType, bound: pa.DataType, match: str) -> None:
    master = pa.table({"k": [1], "valid_from": pa.nulls(1, bound), "valid_to": pa.nulls(1, bound)})
    schema = pa.schema([("k", pa.int64()), ("event_time", time)])
    with (
        pytest.raises(SchemaError, match=match),
        open_join("sweepjoin", master=master, on="k", memory="8MB", stream_schema=schema, **AS_OF),
    ):
        pass


@pytest.mark.parametrize(
    ("asked", "match"),
    [
        ({"as_of": "t"}, r"as_of was given without valid; .*for example as_of='event_time'"),
        ({"valid": ("a", "b")}, r"valid was given without as_of"),
        ({"as_of": "t", "valid": "ab"}, r"valid='ab' must be the names of two columns"),
        ({"as_of": "t", "valid": ("a",)}, r"two columns"),
        ({"as_of": "t", "valid": ("a", "a")}, r"two columns"),
        ({"as_of": "", "valid": ("a", "b")}, r"as_of='' must be the name"),
    ],
)
def test_half_a_request_is_refused(asked: dict[str, object], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        JoinSpec.make("k", **asked)


def test_columns_that_are_not_there_are_named() -> None:
    stream = pa.record_batch({"k": [1], "event_time": [1]})
    master = pa.table({"k": [1], "since": [1], "until": [2]})
    with pytest.raises(SchemaError, match=r"valid_from"):
        open_join("sweepjoin", master=master, on="k", **AS_OF)
    with (
        open_join("sweepjoin", master=master, on="k", as_of="at", valid=("since", "until"), memory="8MB") as join,
        pytest.raises(SchemaError, match=r"'at'"),
    ):
        list(join.push(stream))


def test_auto_joins_and_explains_by_time(tmp_path: Path) -> None:
    build_pages(HISTORY, tmp_path / "r", on="k")
    for algorithm in (None, "sweepjoin"):
        batches = split(EVENTS, 500)
        with open_join(algorithm, master=tmp_path / "r", on="k", memory="2MB", sample=batches[0], **AS_OF) as join:
            assert_same_rows(run_join(join, batches), reference_join(EVENTS, HISTORY, "k", **AS_OF))
            said = join.explain()
        assert "valid at the tuple's time: valid_from <= event_time < valid_to" in str(said)
        assert said.to_json()["setting"]["history"] == "valid_from <= event_time < valid_to"
    with open_join("sweepjoin", master=tmp_path / "r", on="k", memory="2MB", sample=EVENTS.to_batches()[0]) as plain:
        assert "history" not in str(plain.explain())


def test_tuples_that_wait_are_restored_with_their_times(tmp_path: Path) -> None:
    build_pages(HISTORY, tmp_path / "r", on="k", page_rows=8)
    arguments = {"master": tmp_path / "r", "on": "k", "how": "left", "stream_schema": EVENTS.schema, **AS_OF}
    for operator in ("meshjoin", "hybridjoin", "orderedjoin"):
        memory = int(smallest_budget(operator, **arguments) * 1.5)
        batches = split(EVENTS, 400)
        with open_join(operator, memory=memory, **arguments) as join:
            rows = [out for batch in batches[:4] for out in join.push(batch)]
            assert join.waiting
            kept = join.snapshot()
            schema = join.output_schema
        with open_join(operator, memory=memory, **arguments) as join:
            join.restore(kept)
            rows += [out for batch in batches[4:] for out in join.push(batch)]
            rows += join.drain()
        actual = pa.Table.from_batches(rows, schema)
        assert_same_rows(actual, reference_join(EVENTS, HISTORY, "k", "left", **AS_OF))


def test_parquet_in_place_is_joined_by_time(tmp_path: Path) -> None:
    """Pages without an index, cut from row groups, and columns of time that nobody selects."""
    pq.write_table(HISTORY, tmp_path / "r.parquet", row_group_size=100)
    with open_join("ssbj", master=tmp_path / "r.parquet", on="k", select=["price"], memory="1MB", **AS_OF) as join:
        actual = run_join(join, split(EVENTS, 500))
    assert actual.column_names == [*EVENTS.column_names, "price"]
    assert_same_rows(actual, reference_join(EVENTS, HISTORY, "k", "left", ["price"], **AS_OF))


def test_an_ordered_cache_keeps_keys_with_several_rows(tmp_path: Path) -> None:
    """Room for the next answers is counted in keys as large as they are, or all of the cache leaves every turn."""
    build_pages(history(4000, 5), tmp_path / "r", on="k")
    stream = events(40_000, 4000, 5)
    with open_join("orderedjoin", master=tmp_path / "r", on="k", memory="400kB", **AS_OF) as join:
        for batch in split(stream, 5000):
            for _ in join.push(batch):
                pass
        assert join.stats.hit_rate > 0.3


def one_by_one(join: SemiStreamJoin, asked: list[tuple[int, int]]) -> tuple[list[list[str | None]], list[bool]]:
    """Push a tuple of this key and time after the other: the names that each meets, and whether the cache answered."""
    names, answered = [], []
    for key, time in asked:
        batch = pa.record_batch({"k": pa.array([key]), "event_time": whole([time], US)})
        hits = join.stats.cache_hits
        met = pa.Table.from_batches(list(join.push(batch)), join.output_schema)
        names.append(sorted(met["name"].to_pylist(), key=str))
        answered.append(join.stats.cache_hits > hits)
    return names, answered


def lasting(*rows: tuple[int, str, int | None, int | None]) -> pa.Table:
    """Rows of R, behind others that fill more than the memory of a small join."""
    others = history(4000, 5)
    mine = pa.table(
        {
            "name": [name for _, name, _, _ in rows],
            "k": [key for key, _, _, _ in rows],
            "valid_from": whole([start for _, _, start, _ in rows], US),
            "price": [0.5] * len(rows),
            "valid_to": whole([end for _, _, _, end in rows], US),
        }
    )
    return pa.concat_tables([others, mine])


def test_a_cached_version_answers_for_its_own_times_only(tmp_path: Path) -> None:
    """Others are missed until they were asked for; where no row was valid all rows of the key are cached."""
    master = lasting((1, "a", None, 10), (1, "b", 10, 20), (1, "c", 30, None))
    build_pages(master, tmp_path / "r", on="k")
    asked = [(1, 5), (1, -7), (1, 9), (1, 10), (1, 19), (1, 5), (1, 25), (1, 20), (1, 30), (1, 5), (1, MOST)]
    with open_join("sweepjoin", master=tmp_path / "r", on="k", how="left", memory="400kB", **AS_OF) as join:
        names, answered = one_by_one(join, asked)
    assert names == [["a"], ["a"], ["a"], ["b"], ["b"], ["a"], [None], [None], ["c"], ["a"], ["c"]]
    assert answered == [False, True, True, False, True, True, False, True, True, True, True]


@pytest.mark.parametrize(
    ("rows", "time", "other", "names"),
    [
        ([("a", 0, 10), ("b", 5, 15), ("c", 20, None)], 3, 7, ["a", "b"]),
        ([("a", 0, None), ("b", MOST, None)], 3, MOST, ["a", "b"]),
        ([("a", None, None), ("b", None, LEAST + 1)], 3, LEAST, ["a", "b"]),
        ([("a", 0, 10), ("a", 0, 10), ("b", 10, None)], 3, 4, ["a", "a"]),
    ],
    ids=["overlap", "the last time", "the first time", "twice the same"],
)
def test_rows_that_overlap_are_cached_together(
    rows: list[tuple[str, int | None, int | None]], time: int, other: int, names: list[str], tmp_path: Path
) -> None:
    build_pages(lasting(*((1, *row) for row in rows)), tmp_path / "r", on="k")
    with open_join("sweepjoin", master=tmp_path / "r", on="k", how="left", memory="400kB", **AS_OF) as join:
        met, answered = one_by_one(join, [(1, time), (1, other)])
    assert met[1] == names
    assert answered == [False, True]


def test_a_cache_of_versions_has_as_many_keys_as_one_of_rows(tmp_path: Path) -> None:
    """A stream that asks for what is true today needs no more memory for a history than for today's rows."""
    versions = history(4000, 5)
    build_pages(versions, tmp_path / "versions", on="k")
    today = versions.filter(pc.is_null(versions["valid_to"]))
    build_pages(today, tmp_path / "today", on="k")
    stream = events(60_000, 4000, 5)
    stream = stream.set_column(2, "event_time", whole([10_000] * len(stream), US))
    rates = []
    for name, asked in (("versions", AS_OF), ("today", {})):
        select = ["name", "valid_from", "valid_to"]
        with open_join("sweepjoin", master=tmp_path / name, on="k", select=select, memory="400kB", **asked) as join:
            run_join(join, split(stream, 5000))
            rates.append(join.stats.hit_rate)
    assert rates[0] > 0.95 * rates[1]


@pytest.mark.parametrize("how", HOWS)
def test_versions_in_caches_that_joins_share(how: str, tmp_path: Path) -> None:
    """Keys get one version after the other, with long values, and take them along."""
    stream = events(24_000, 4000, 5)
    master = history(4000, 5)
    build_pages(master, tmp_path / "r", on="k", page_rows=64)
    opened = {"master": tmp_path / "r", "on": "k", "how": how, "stream_schema": stream.schema, **AS_OF}
    memory = int(1.5 * smallest_budget("sweepjoin", **opened))
    joins = [open_join("sweepjoin", memory=memory, **opened) for _ in range(2)]
    sharing = [Generations(tmp_path / "shared", "v1", 250_000, join.work.row_layout) for join in joins]
    output = []
    for turn, batch in enumerate(split(stream, 2000)):
        join, shared = joins[turn % 2], sharing[turn % 2]
        if shared.refresh():
            join.share(shared.current)
        output += [*join.push(batch)]
        shared.saw(batch.num_rows)
        with shared.building() as mine:
            if mine and turn % 3 == 0:
                shared.merge(join.loop.cache)
    expected = reference_join(stream, master, "k", how, **AS_OF)
    assert_same_rows(pa.Table.from_batches(output, expected.schema), expected)
    assert sum(shared.failures for shared in sharing) == 0
    assert min(join.stats.shared_hits for join in joins) > 1000
    for join in joins:
        join.close()
