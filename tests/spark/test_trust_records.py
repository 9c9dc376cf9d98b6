"""Records of waiting tuples that are missing, damaged or not the right ones: an error that names them, never rows."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.spark.queries import Query, build, outcome, refusal, relation, stream, thorough

from semistream.testing import assert_same_rows, reference_join

R = relation()
FILES = stream()
EXPECTED = reference_join(FILES[0], R, "k", "left")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(R, tmp_path_factory.mktemp("master") / "r")


@pytest.fixture
def query(spark: SparkSession, store: Path, tmp_path: Path) -> Query:
    """A query that was stopped after its first batch, while tuples wait in both shards."""
    query = Query(spark, tmp_path / "query")
    query.feed(FILES[0])
    query.one_batch(query.carrying(store))
    assert query.count() < EXPECTED.num_rows, "nobody waits: the tests show nothing"
    return query


def _refused(query: Query, store: Path) -> str:
    """What the restart says; it has given no row, and gives all of them once the folder is as it was."""
    before = query.count()
    text = refusal(lambda: query.finish(query.carrying(store)), query)
    assert query.count() == before
    return text


def _goes_on(query: Query, store: Path) -> None:
    query.finish(query.carrying(store))
    assert_same_rows(query.rows(), EXPECTED)


def _delete(path: Path) -> None:
    path.unlink()


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0" * 8)


@pytest.mark.parametrize("damage", [_delete, *thorough(_truncate, _empty, _lengthen)])
def test_damaged_record(damage: Callable[[Path], None], query: Query, store: Path) -> None:
    record = query.kept()[0]
    sound = record.read_bytes()
    damage(record)
    text = _refused(query, store)
    record.write_bytes(sound)
    assert record.name in text
    _goes_on(query, store)


def test_flipped_bit(query: Query, store: Path) -> None:
    """In the tuples themselves, where nothing but a checksum can tell."""
    record = query.kept()[0]
    sound = record.read_bytes()
    broken = bytearray(sound)
    broken[len(sound) * 2 // 3] ^= 1
    record.write_bytes(broken)
    text = _refused(query, store)
    assert record.name in text
    record.write_bytes(sound)
    _goes_on(query, store)


def test_all_records_deleted(query: Query, store: Path) -> None:
    folder = query.checkpoint / "semistream"
    folder.rename(query.folder / "aside")
    _refused(query, store)
    shutil.rmtree(folder, ignore_errors=True)
    (query.folder / "aside").rename(folder)
    _goes_on(query, store)


def test_record_of_another_shard(query: Query, store: Path) -> None:
    """A copy under the wrong name is as sound as the original, and still not the one that is wanted."""
    record, other = query.kept()[:2]
    sound = record.read_bytes()
    record.write_bytes(other.read_bytes())
    text = _refused(query, store)
    record.write_bytes(sound)
    assert record.name in text
    _goes_on(query, store)


def test_older_copy_of_the_records_is_put_back(query: Query, store: Path) -> None:
    """Spark is two batches further than the records: those who waited since are in none of them."""
    folder, aside = query.checkpoint / "semistream", query.folder / "aside"
    shutil.copytree(folder, aside)
    query.feed(FILES[1])
    query.one_batch(query.carrying(store))
    query.feed(FILES[2])
    query.one_batch(query.carrying(store))
    newest = query.folder / "newest"
    folder.rename(newest)
    aside.rename(folder)
    _refused(query, store)
    shutil.rmtree(folder)
    newest.rename(folder)
    query.finish(query.carrying(store))
    assert_same_rows(query.rows(), reference_join(pa.concat_tables(FILES), R, "k", "left"))


@pytest.mark.parametrize("damage", [_delete, *thorough(_empty)])
def test_any_other_file_beside_the_records(damage: Callable[[Path], None], query: Query, store: Path) -> None:
    """What is not a record may be made anew; then the rows are right, too."""
    smallest = query.kept()[-1]
    sound = smallest.read_bytes()
    damage(smallest)
    if outcome(lambda: query.finish(query.carrying(store))) is not None:
        smallest.write_bytes(sound)
        query.finish(query.carrying(store))
    assert_same_rows(query.rows(), EXPECTED)
