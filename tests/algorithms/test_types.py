"""Every Arrow type passes through every kind of operator unharmed, as payload and as key, or is refused by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.arrow_types import ALL, FLAT, NESTED, REFUSED, in_dictionary, in_runs, is_key

import semistream
from semistream import open_join
from semistream.errors import KeyTypeError, SchemaError
from semistream.testing import assert_same_rows, reference_join, run_join

#: one for each way of moving rows: cache and sweep, linked queue, FIFO, cached scan, in order, pages, and the planner
ALGORITHMS = ("sweepjoin", "hybridjoin", "meshjoin", "ssbj", "orderedjoin", "ssij", "auto")
ROWS = 45


def rows_of(table: pa.Table) -> Counter[str]:
    """Rows as text with their counts: equal for equal values of any type, NaN included."""
    return Counter(map(repr, zip(*(column.to_pylist() for column in table.columns), strict=True)))


def joined(stream: pa.Table, master: pa.Table, how: str = "left") -> Counter[str]:
    """The join on `k` over Python values; all columns of the stream, then the others of the master data."""
    others = [name for name in master.column_names if name != "k"]
    found: dict[str, list[tuple[object, ...]]] = {}
    for key, *rest in zip(*(master[name].to_pylist() for name in ["k", *others]), strict=True):
        if key is not None:
            found.setdefault(repr(key), []).append(tuple(rest))
    out: list[str] = []
    for row in zip(*(column.to_pylist() for column in stream.columns), strict=True):
        matches = found.get(repr(row[stream.column_names.index("k")]), [])
        if not matches and how == "left":
            matches = [(None,) * len(others)]
        out += [repr((*row, *match)) for match in matches]
    return Counter(out)


def check(operator: str, stream: pa.Table, master: object, expected: Counter[str], **options: object) -> None:
    with open_join(operator, master=master, on="k", how="left", memory="2MB", **options) as join:
        actual = run_join(join, stream.to_batches(max_chunksize=17))
    actual.validate(full=True)
    assert rows_of(actual) == expected, operator
    for name in stream.column_names:
        assert actual.schema.field(name).type == stream.schema.field(name).type


@pytest.mark.parametrize("name", ALL)
def test_every_type_is_carried_by_both_sides(name: str) -> None:
    values = ALL[name](ROWS, True)
    values.validate(full=True)
    stream = pa.table({"k": np.arange(ROWS) * 7 % 60, "n": np.arange(ROWS), "s": values})
    master = pa.table({"k": np.arange(ROWS), "m": values})
    expected = joined(stream, master)
    for operator in ALGORITHMS:
        check(operator, stream, master, expected)


@pytest.mark.parametrize("name", [name for name in ALL if is_key(name)])
def test_every_flat_type_is_a_key(name: str) -> None:
    """Also with nulls among the keys, on either side."""
    keys = ALL[name](ROWS, True)
    stream = pa.table({"k": keys, "n": np.arange(ROWS)})
    master = pa.table({"k": keys.slice(0, 30), "m": np.arange(30)})
    expected = joined(stream, master)
    for operator in ALGORITHMS:
        check(operator, stream, master, expected)


@pytest.mark.parametrize("name", [name for name in ALL if not is_key(name)])
def test_what_cannot_be_a_key_is_refused_by_name(name: str) -> None:
    keys = ALL[name](3, True)
    for operator in ALGORITHMS:
        with pytest.raises(KeyTypeError, match=r"cannot be a key.*cast the column"):
            open_join(operator, master=pa.table({"k": keys, "m": [1, 2, 3]}), on="k", memory="2MB")
        with open_join(operator, master=pa.table({"k": [1]}), on="k", memory="2MB") as join:
            with pytest.raises(KeyTypeError) as caught:
                join.push(pa.record_batch({"k": keys}))
            assert str(keys.type) in str(caught.value)
            # Nothing was taken in: a batch of the right type is still welcome.
            assert (
                sum(out.num_rows for out in join.push(pa.record_batch({"k": [1]})))
                + sum(out.num_rows for out in join.drain())
                == 1
            )


@pytest.mark.parametrize("name", REFUSED)
def test_unions_are_refused_by_name(name: str) -> None:
    values = REFUSED[name](3, False)
    for operator in ALGORITHMS:
        with pytest.raises(SchemaError, match=r"union.*cannot be carried.*cast it, or leave it out"):
            open_join(operator, master=pa.table({"k": [1, 2, 3], "m": values}), on="k", memory="2MB")
        with (
            open_join(operator, master=pa.table({"k": [1]}), on="k", memory="2MB") as join,
            pytest.raises(SchemaError, match=r"'u'.*union.*cannot be carried"),
        ):
            join.push(pa.record_batch({"k": [1, 2, 3], "u": values}))


def test_every_type_in_a_page_store(tmp_path: Path) -> None:
    """All that pages can hold beside each other in one store, and each that can be a key in a store of its own."""
    keys = np.arange(ROWS)
    stream = pa.table({"k": keys * 7 % 60, "n": keys})
    columns = {"k": pa.array(keys)}
    for name, values in ALL.items():
        column = values(ROWS, True)
        if name.startswith("dictionary<") and isinstance(
            column.type.value_type, pa.BaseExtensionType | pa.DictionaryType
        ):
            with pytest.raises(SchemaError, match=r"'m'.*cannot read back.*cast it"):
                semistream.build_pages(pa.table({"k": keys, "m": column}), tmp_path / "refused", on="k")
        else:
            columns[name] = column
    assert len(columns) > 100
    master = pa.table(columns)
    semistream.build_pages(master, tmp_path / "r", on="k", page_rows=8)
    expected = joined(stream, master)
    for operator in ("sweepjoin", "meshjoin"):
        check(operator, stream, tmp_path / "r", expected)
    for at, (name, values) in enumerate(ALL.items()):
        if is_key(name) and name in columns:
            master = pa.table({"k": values(ROWS, True), "m": keys})
            semistream.build_pages(master, tmp_path / f"key {at}", on="k", page_rows=8)
            other = pa.table({"k": values(ROWS, True), "n": keys})
            check("sweepjoin", other, tmp_path / f"key {at}", joined(other, master))


def test_every_type_that_parquet_holds_in_place(tmp_path: Path) -> None:
    keys = np.arange(ROWS)
    stream = pa.table({"k": keys * 7 % 60, "n": keys})
    written = 0
    for at, values in enumerate(ALL.values()):
        path = tmp_path / f"{at}.parquet"
        try:
            pq.write_table(pa.table({"k": keys, "m": values(ROWS, True)}), path, row_group_size=10)
            back = pa.Table.from_batches(pq.ParquetFile(path).iter_batches(45))
        except (pa.ArrowException, NotImplementedError, OSError):
            continue
        written += 1
        check("meshjoin", stream, path, joined(stream, back))
    assert written > 50


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("wide", ["stream", "master", "both"])
def test_dictionaries_outgrow_their_index(algorithm: str, wide: str) -> None:
    """A thousand values in batches of a hundred: no index of eight bits holds them all, nor an output batch of them."""
    kind = pa.dictionary(pa.int8(), pa.string())
    texts = [f"value {i % 1000}" for i in range(3000)]

    def column(count: int) -> pa.ChunkedArray:
        chunks = [pa.array(texts[start : start + 100]).dictionary_encode().cast(kind) for start in range(0, count, 100)]
        return pa.chunked_array(chunks)

    stream = pa.table({"k": np.arange(3000) % 1100, "n": np.arange(3000)})
    master = pa.table({"k": np.arange(1000)})
    if wide != "master":
        stream = stream.append_column("s", column(3000))
    if wide != "stream":
        master = master.append_column("m", column(1000))
    with open_join(algorithm, master=master, on="k", how="left", memory="4MB") as join:
        out = [batch for part in stream.to_batches(max_chunksize=100) for batch in join.push(part)]
        out.extend(join.drain())
    actual = pa.Table.from_batches(out)
    actual.validate(full=True)
    assert {actual.schema.field(name).type for name in actual.column_names if name in "sm"} == {kind}
    assert rows_of(actual) == joined(stream, master)


@pytest.mark.parametrize("algorithm", ["hybridjoin", "meshjoin", "ssij", "partitionjoin", "orderedjoin", "pcachejoin"])
def test_a_snapshot_holds_more_values_than_an_index(algorithm: str) -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    stream = pa.table({"k": np.arange(1000), "s": [f"value {i}" for i in range(1000)]})
    parts = [
        pa.record_batch({"k": part["k"], "s": part["s"].dictionary_encode().cast(kind)})
        for part in stream.to_batches(max_chunksize=100)
    ]
    master = pa.table({"k": np.arange(1000), "m": np.arange(1000)})
    out: list[pa.RecordBatch] = []
    with open_join(algorithm, master=master, on="k", memory="2MB") as join:
        for part in parts:
            out += join.push(part)
        saved = join.snapshot().to_bytes()
    with open_join(algorithm, master=master, on="k", memory="2MB") as join:
        join.restore(semistream.engine.snapshot.Snapshot.from_bytes(saved))
        out += join.drain()
    assert rows_of(pa.Table.from_batches(out)) == joined(stream, master, "inner")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_runs_longer_than_their_type_counts(algorithm: str) -> None:
    """Eight pushes of many rows each: an output batch of 16-bit run ends holds at most 32,767."""
    runs: Callable[[int, bool], pa.Array] = in_runs(FLAT["string_view"], pa.int16())
    part = pa.record_batch({"k": np.arange(30_000) % 50, "s": runs(30_000, True)})
    master = pa.table({"k": np.arange(50), "m": NESTED["list_of_dictionary"](50, True)})
    with open_join(algorithm, master=master, on="k", memory="64MB") as join:
        actual = run_join(join, [part, part])
    plain = pa.table({"k": part["k"], "s": pa.array(part["s"].to_pylist())})
    texts = pa.table({"k": actual["k"], "s": pa.array(actual["s"].to_pylist())})
    assert_same_rows(texts, pa.concat_tables([plain, plain]))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_keys_of_other_encodings_are_the_same_keys(algorithm: str) -> None:
    """A stream of views or dictionaries meets master data of plain strings, and the other way round."""
    plain = FLAT["string"](ROWS, True)
    encodings = [
        FLAT["string_view"](ROWS, True),
        FLAT["large_string"](ROWS, True),
        plain.dictionary_encode(),
        in_dictionary(FLAT["string_view"], pa.int8())(ROWS, True),
        in_runs(FLAT["large_string"], pa.int32())(ROWS, True),
    ]
    for one, two in [(plain, other) for other in encodings] + [(other, plain) for other in encodings]:
        stream = pa.table({"k": one, "n": np.arange(ROWS)})
        master = pa.table({"k": two, "m": np.arange(ROWS)})
        check(algorithm, stream, master, joined(stream, master))


def test_declared_not_null_and_null_all_the_same() -> None:
    """A column said to hold no nulls gets no room for them in a waiting tuple, so a null in it is refused."""
    schema = pa.schema([pa.field("k", pa.int64()), pa.field("s", pa.int64(), nullable=False)])
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2]), pa.array([1, None])], schema=schema)
    with open_join("hybridjoin", master=pa.table({"k": [1, 2]}), on="k", memory="2MB") as join:
        with pytest.raises(SchemaError, match=r"'s' .* declared as not null and holds 1 null"):
            join.push(batch)
        assert sum(out.num_rows for out in (*join.push(batch.slice(0, 1)), *join.drain())) == 1


def test_reference_join_agrees_on_plain_types() -> None:
    """What these tests expect is what the reference join of the package says, where it knows the type."""
    for name in ("int64", "string", "decimal128(30, 2)", "list", "struct"):
        values = ALL[name](ROWS, True)
        stream = pa.table({"k": np.arange(ROWS) * 7 % 60, "s": values})
        master = pa.table({"k": np.arange(ROWS), "m": values})
        if name != "struct":
            assert rows_of(reference_join(stream, master, "k", "left")) == joined(stream, master)
