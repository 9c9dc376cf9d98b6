"""Bad input gets a clear error: it names what was refused, what is allowed, and what to do."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semistream import build_pages, open_join
from semistream.algorithms.registry import ALGORITHMS
from semistream.errors import (
    BudgetError,
    ConfigError,
    IndexRequiredError,
    KeyTypeError,
    SchemaError,
    SemiStreamError,
    StoreError,
    UnknownAlgorithmError,
)
from semistream.testing import run_join

#: Where it does not matter which operator is opened.
ANY = next(iter(ALGORITHMS))

MASTER = pa.table({"key": pa.array(range(100), pa.int64()), "name": [f"n{i}" for i in range(100)]})
STREAM = pa.table({"key": pa.array(range(50), pa.int64()), "n": range(50)})


def test_unknown_algorithm_names_the_near_ones() -> None:
    with pytest.raises(UnknownAlgorithmError, match=r"meshjion.*meshjoin"):
        open_join("meshjion", master=MASTER, on="key")


def test_unknown_algorithm_with_nothing_near_names_them_all() -> None:
    with pytest.raises(UnknownAlgorithmError) as caught:
        open_join("nestedloops", master=MASTER, on="key")
    assert all(name in str(caught.value) for name in ALGORITHMS)


def test_every_name_and_alias_opens() -> None:
    for name, operator in ALGORITHMS.items():
        for alias in (name, name.upper(), *operator.aliases):
            with open_join(alias, master=MASTER, on="key", stream_schema=STREAM.schema) as join:
                assert join.algorithm is operator


@pytest.mark.parametrize("memory", ["64 parsecs", "", "MB", "-5MB", "0", 0, -1, "1.5.2GB", "64 M B", "nan", "infMB"])
def test_malformed_budget(memory: object) -> None:
    with pytest.raises(BudgetError, match=r"64 ?(MB|MiB)|bytes"):
        open_join(ANY, master=MASTER, on="key", memory=memory)


def test_malformed_budget_names_the_value() -> None:
    with pytest.raises(BudgetError, match="64 parsecs"):
        open_join(ANY, master=MASTER, on="key", memory="64 parsecs")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64MB", 64_000_000),
        ("64 MB", 64_000_000),
        ("64MiB", 64 << 20),
        ("1.5 GB", 1_500_000_000),
        (10**7, 10**7),
    ],
)
def test_budget_spellings(text: object, size: int) -> None:
    with open_join(ANY, master=MASTER, on="key", memory=text) as join:
        assert join.memory.budget_bytes == size


def test_budget_too_small_names_the_smallest(operator: str) -> None:
    with pytest.raises(BudgetError) as caught:
        open_join(operator, master=MASTER, on="key", memory=100, stream_schema=STREAM.schema)
    least = caught.value.minimum_bytes
    assert least is not None
    assert least > 100
    assert f"{least:,}" in str(caught.value) or str(least) in str(caught.value)


def test_bad_how(operator: str) -> None:
    with pytest.raises(ConfigError, match=r"outer.*inner.*left.*semi.*anti"):
        open_join(operator, master=MASTER, on="key", how="outer")


def test_missing_master_key(operator: str) -> None:
    with pytest.raises(SchemaError, match=r"kye.*key"):
        open_join(operator, master=MASTER, on={"key": "kye"})


def test_missing_stream_key(operator: str) -> None:
    """At construction when the stream's schema is given, else when the first batch shows it."""
    with pytest.raises(SchemaError, match=r"ky.*key"):
        open_join(operator, master=MASTER, on={"ky": "key"}, stream_schema=STREAM.schema)
    with (
        open_join(operator, master=MASTER, on={"ky": "key"}) as join,
        pytest.raises(SchemaError, match=r"ky.*key"),
    ):
        run_join(join, STREAM)


def test_selecting_an_unknown_column(operator: str) -> None:
    with pytest.raises(SchemaError, match=r"nmae.*name"):
        open_join(operator, master=MASTER, on="key", select=["nmae"])


@pytest.mark.parametrize("kind", [pa.string(), pa.float64(), pa.date32(), pa.uint64()], ids=str)
def test_key_type_mismatch_names_both_types(operator: str, kind: pa.DataType) -> None:
    stream = STREAM.set_column(0, pa.field("key", kind), pa.nulls(50, kind))
    with pytest.raises(KeyTypeError, match=rf"{re.escape(str(kind))}.*int64"):
        open_join(operator, master=MASTER, on="key", stream_schema=stream.schema)
    with open_join(operator, master=MASTER, on="key") as join, pytest.raises(KeyTypeError):
        run_join(join, stream)


def test_batch_of_another_schema(operator: str) -> None:
    with open_join(operator, master=MASTER, on="key") as join:
        list(join.push(STREAM.to_batches()[0]))
        with pytest.raises(SchemaError, match="n"):
            list(join.push(STREAM.rename_columns(["key", "other"]).to_batches()[0]))


def test_output_names_that_clash_twice(operator: str) -> None:
    """The suffix must not make a name that is there already."""
    stream = STREAM.append_column("name", pa.nulls(50)).append_column("name_right", pa.nulls(50))
    with pytest.raises(SchemaError, match="name_right"):
        open_join(operator, master=MASTER, on="key", stream_schema=stream.schema)


def test_no_key(operator: str) -> None:
    with pytest.raises(SemiStreamError, match="on"):
        open_join(operator, master=MASTER, on=[])


def test_unknown_option(operator: str) -> None:
    with pytest.raises((ConfigError, TypeError), match="page_sise"):
        open_join(operator, master=MASTER, on="key", page_sise=5)


def test_index_operator_on_parquet(operator: str, tmp_path: Path) -> None:
    """Parquet in place has no index and the API builds none behind the caller's back."""
    pq.write_table(MASTER, tmp_path / "r.parquet")
    if ALGORITHMS[operator].needs_index:
        with pytest.raises(IndexRequiredError, match=r"build_pages"):
            open_join(operator, master=tmp_path / "r.parquet", on="key")
    else:
        open_join(operator, master=tmp_path / "r.parquet", on="key").close()
    assert [path.name for path in tmp_path.iterdir()] == ["r.parquet"]


def test_master_path_that_does_not_exist(operator: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nowhere"):
        open_join(operator, master=tmp_path / "nowhere", on="key")


def test_folder_that_is_no_store(operator: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a store")
    with pytest.raises(StoreError, match=tmp_path.name):
        open_join(operator, master=tmp_path, on="key")


def page_file(store: Path) -> Path:
    """The file with the pages: the largest one."""
    return max((path for path in store.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    table = pa.table({"key": np.arange(5000), "name": [f"name {i}" for i in range(5000)]})
    build_pages(table, tmp_path / "store", on="key", page_rows=16)
    return tmp_path / "store"


@pytest.mark.parametrize("reads", ["mapped", "direct"])
def test_truncated_page_file(operator: str, store: Path, reads: str) -> None:
    path = page_file(store)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size * 2 // 3)
    refused_or_raises(operator, store, reads)


@pytest.mark.parametrize("reads", ["mapped", "direct"])
def test_wrong_checksum(operator: str, store: Path, reads: str) -> None:
    """One flipped bit in every page: whichever page is read first, the join must not answer from it."""
    path = page_file(store)
    content = bytearray(path.read_bytes())
    content[300::512] = bytes(byte ^ 1 for byte in content[300::512])
    path.write_bytes(content)
    refused_or_raises(operator, store, reads)


def test_unreadable_manifest(operator: str, store: Path) -> None:
    for path in store.rglob("*.json"):
        path.write_text('{"half": ')
    refused_or_raises(operator, store, "mapped")


def test_deleted_page_file(operator: str, store: Path) -> None:
    page_file(store).unlink()
    refused_or_raises(operator, store, "mapped")


def refused_or_raises(operator: str, store: Path, reads: str) -> None:
    """StoreError at the latest when the first tuples need a page."""
    stream = pa.table({"key": np.arange(0, 5000, 3)})

    def run() -> None:
        with open_join(operator, master=store, on="key", reads=reads) as join:
            run_join(join, stream)

    with pytest.raises(StoreError, match=store.name):
        run()


def test_building_over_an_existing_path(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("keep me")
    with pytest.raises(SemiStreamError):
        build_pages(MASTER, tmp_path, on="key")
    assert (tmp_path / "precious.txt").read_text() == "keep me"
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


@pytest.mark.parametrize("on", ["kye", ["key", "nope"]])
def test_failed_build_leaves_nothing(tmp_path: Path, on: object) -> None:
    with pytest.raises(SchemaError):
        build_pages(MASTER, tmp_path / "store", on=on)
    assert list(tmp_path.iterdir()) == []


def test_closed_join_refuses_work(operator: str) -> None:
    join = open_join(operator, master=MASTER, on="key")
    list(join.push(STREAM.to_batches()[0]))
    join.close()
    join.close()
    with pytest.raises(SemiStreamError, match="closed"):
        list(join.push(STREAM.to_batches()[0]))
