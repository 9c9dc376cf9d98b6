"""The life of a join, for every operator and "auto": nothing that was pushed is lost, and closed is closed."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from semistream import build_pages, open_join
from semistream.algorithms.registry import ALGORITHMS
from semistream.errors import BudgetError, ConfigError, SchemaError, SemiStreamError, StoreError
from semistream.testing import assert_same_rows, reference_join, split

EVERY = [*sorted(ALGORITHMS), "auto"]
#: a call that has not come back after so many seconds never will
HANGS_AFTER = 60.0

MASTER = pa.table({"key": np.arange(2_000), "name": [f"name {i}" * (i % 5) for i in range(2_000)]})
STREAM = pa.table({"key": np.arange(6_000) * 7 % 2_400, "n": np.arange(6_000)})
BATCHES = split(STREAM, 1_000)


@pytest.fixture(params=EVERY)
def algorithm(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lifecycle") / "r"
    build_pages(MASTER, path, on="key", page_rows=32)
    return path


@pytest.fixture
def opened(algorithm: str, store: Path) -> Iterator[Any]:
    """A left join with little memory: small chunks, so that a push gives several batches."""
    with open_join(algorithm, master=store, on="key", how="left", memory="400kB") as join:
        yield join


def assert_exact(join: Any, rows: list[pa.RecordBatch], stream: pa.Table = STREAM) -> None:
    expected = reference_join(stream, MASTER, "key", "left")
    assert_same_rows(pa.Table.from_batches(rows, join.output_schema), expected)


def still_open() -> tuple[int, int]:
    """Threads and files of this process; what earlier tests left to the collector does not count."""
    gc.collect()
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def in_time(call: Callable[[], Any]) -> Any:
    """What a call gives or raises, in a thread of its own, so that one that hangs fails the test and no more."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(HANGS_AFTER)
    assert found, "it did not come back"
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


# ------------------------------------------------------------------------------------------ nothing is lost


def test_a_push_that_was_never_iterated_is_not_lost(opened: Any) -> None:
    rows = [*opened.push(BATCHES[0])]
    opened.push(BATCHES[1])
    for call in (lambda: opened.push(BATCHES[2]), opened.drain, opened.snapshot):
        with pytest.raises(SemiStreamError, match=r"last push were not consumed.*join\.resume\(\)"):
            call()
    rows += opened.resume()
    for batch in BATCHES[2:]:
        rows += opened.push(batch)
    opened.drain()
    with pytest.raises(SemiStreamError, match="last drain were not consumed"):
        opened.push(BATCHES[0])
    rows += opened.resume()
    assert list(opened.resume()) == []
    assert_exact(opened, rows)


def test_the_first_push_may_be_dropped_too(opened: Any) -> None:
    opened.push(BATCHES[0])
    rows = [*opened.resume(), *opened.drain()]
    assert_exact(opened, rows, STREAM.slice(0, 1_000))


def test_an_iterator_goes_on_where_it_was_left(opened: Any) -> None:
    rows: list[pa.RecordBatch] = []
    for batch in BATCHES:
        outputs = opened.push(batch)
        rows += [found for found in [next(outputs, None)] if found is not None]
        del outputs
        for found in opened.resume():
            rows.append(found)
            break
        rows += opened.resume()
    outputs = opened.drain()
    rows += [found for found in [next(outputs, None)] if found is not None]
    rows += outputs
    assert_exact(opened, rows)


def test_a_refused_call_does_not_disturb_the_iterator(opened: Any) -> None:
    outputs = opened.push(BATCHES[0])
    with pytest.raises(SemiStreamError, match="were not consumed"):
        opened.push(BATCHES[1])
    rows = [*outputs, *opened.push(BATCHES[1]), *opened.drain()]
    assert list(outputs) == []
    assert_exact(opened, rows, STREAM.slice(0, 2_000))


class Frame:
    """Something that looks like a table and is none."""

    schema = STREAM.schema
    num_rows = 5


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (None, "NoneType"),
        ([{"key": 1}], "list"),
        (STREAM.schema, r"pyarrow\.Schema"),
        (Frame(), "Frame"),
    ],
    ids=["None", "list", "schema", "frame"],
)
def test_what_is_no_batch(opened: Any, wrong: Any, name: str) -> None:
    rows: list[pa.RecordBatch] = []
    for batch in BATCHES[:2]:
        with pytest.raises(ConfigError, match=rf"push takes Arrow data, not .*{name}: .*from_pylist"):
            opened.push(wrong)
        rows += opened.push(batch)
    rows += opened.drain()
    assert_exact(opened, rows, STREAM.slice(0, 2_000))


def test_a_refused_schema_leaves_the_join_usable(opened: Any) -> None:
    for _ in range(2):
        with pytest.raises(SchemaError, match="'key'"):
            opened.push(pa.record_batch({"n": [1]}))
    rows = [*opened.push(BATCHES[0])]
    with pytest.raises(SchemaError, match="'other'"):
        opened.push(BATCHES[1].rename_columns(["key", "other"]))
    rows += [*opened.push(BATCHES[1]), *opened.drain()]
    assert_exact(opened, rows, STREAM.slice(0, 2_000))


def test_a_schema_is_fixed_once(opened: Any) -> None:
    opened.start(STREAM.schema)
    with pytest.raises(SemiStreamError, match="open a new one"):
        opened.start(STREAM.schema)


def test_a_snapshot_is_restored_once(opened: Any, algorithm: str, store: Path) -> None:
    rows = [row for batch in BATCHES[:3] for row in opened.push(batch)]
    saved = opened.snapshot()
    with open_join(algorithm, master=store, on="key", how="left", memory="400kB") as join:
        join.restore(saved)
        if saved.tuples is not None and saved.tuples.num_rows:
            with pytest.raises(SemiStreamError, match="fresh join"):
                join.restore(saved)
        rows += [row for batch in BATCHES[3:] for row in join.push(batch)]
        rows += join.drain()
        assert_exact(join, rows)


# ----------------------------------------------------------------------------------------------- failing


def test_a_failed_iteration_does_not_look_like_an_end(algorithm: str, tmp_path: Path) -> None:
    build_pages(MASTER, tmp_path / "r", on="key", page_rows=32)
    for path in tmp_path.rglob("*.arrow"):
        if path.name.startswith("pages"):
            content = bytearray(path.read_bytes())
            content[300::512] = bytes(byte ^ 1 for byte in content[300::512])
            path.write_bytes(content)
    with open_join(algorithm, master=tmp_path / "r", on="key", memory="400kB") as join:
        outputs: Iterator[pa.RecordBatch] | None = None
        with pytest.raises(StoreError):  # noqa: PT012 (whichever of them reads the first page)
            outputs = join.push(BATCHES[0])
            list(outputs)
            outputs = join.drain()
            list(outputs)
        failed = r"failed before \(ChecksumError.*restore its last snapshot"
        # Who loads all of R when it starts has not taken the batch.
        calls = [] if outputs is None else [lambda: next(outputs)]
        for call in (*calls, lambda: join.push(BATCHES[1]), join.drain, join.snapshot, join.resume):
            with pytest.raises(SemiStreamError, match=failed):
                in_time(call)


# ----------------------------------------------------------------------------------------------- closing


@pytest.mark.parametrize("taken", [0, 1])
@pytest.mark.parametrize("draining", [False, True])
def test_an_iterator_ends_when_the_join_is_closed(opened: Any, taken: int, draining: bool) -> None:
    if draining:
        for batch in BATCHES[:5]:
            list(opened.push(batch))
    outputs = opened.drain() if draining else opened.push(BATCHES[5])
    finished = taken and next(outputs, None) is None
    in_time(opened.close)
    if finished:
        assert list(outputs) == []
        return
    for _ in range(2):
        with pytest.raises(SemiStreamError, match="is closed; open a new one"):
            in_time(lambda: next(outputs))


def test_closing_lets_threads_and_files_go(algorithm: str, store: Path) -> None:
    """Also half-way through a push, and when the iterator is dropped after that."""
    before = still_open()
    for _ in range(3):
        join = open_join(algorithm, master=store, on="key", how="left", memory="400kB")
        list(join.push(BATCHES[0]))
        outputs = join.push(BATCHES[1])
        next(outputs, None)
        in_time(join.close)
        in_time(join.close)
        del outputs
        for call in (lambda join=join: join.push(BATCHES[0]), join.drain, join.snapshot, join.resume):
            with pytest.raises(SemiStreamError, match="closed"):
                call()
    assert still_open() == before


def test_closing_after_a_start_that_failed(algorithm: str, store: Path) -> None:
    wide = pa.schema([("key", pa.int64()), *((f"c{i}", pa.float64()) for i in range(2_000))])
    before = still_open()
    join = open_join(algorithm, master=store, on="key", memory="250kB")
    least = 0
    try:
        in_time(lambda: join.start(wide))
    except BudgetError as error:
        # Some keep no tuples, and need no room for wide ones.
        least = error.minimum_bytes or 0
    if least and algorithm != "auto":
        with pytest.raises(SemiStreamError, match="failed before"):
            join.push(BATCHES[0])
    in_time(join.close)
    if least:
        with pytest.raises(BudgetError):
            open_join(algorithm, master=store, on="key", memory="250kB", stream_schema=wide)
    with pytest.raises(BudgetError):
        open_join(algorithm, master=store, on="key", memory=1_000, stream_schema=STREAM.schema)
    assert still_open() == before


def test_closed_from_another_thread(algorithm: str, store: Path) -> None:
    """Whoever iterates either gets what is being made, or is told; nobody hangs and nothing is read that is gone."""
    for wait in (0.0, 0.002, 0.01):
        join = open_join(algorithm, master=store, on="key", how="left", memory="400kB")
        closer = threading.Timer(wait, join.close)
        closer.start()

        def run(join: Any = join) -> None:
            for batch in BATCHES:
                list(join.push(batch))
            list(join.drain())

        try:
            in_time(run)
        except SemiStreamError as error:
            if "closed" not in str(error):
                raise
        closer.join(HANGS_AFTER)
        assert not closer.is_alive()


# ---------------------------------------------------------------------------------------------- the budget


def test_more_memory_than_the_machine_has(algorithm: str, store: Path) -> None:
    with pytest.raises(BudgetError, match=r"a budget of 200000000000000 bytes.*this machine has \d+ bytes.*less"):
        open_join(algorithm, master=store, on="key", memory="200TB")


REFUSED_BY_THE_SYSTEM = """
import resource, sys
import pyarrow as pa
from semistream import open_join
from semistream.errors import BudgetError
schema = pa.schema([("key", pa.int64())])
with open_join(sys.argv[1], master=sys.argv[2], on="key", memory="1MB", stream_schema=schema):
    pass
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (100 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    open_join(sys.argv[1], master=sys.argv[2], on="key", memory="512MB", stream_schema=schema)
except BudgetError as error:
    print(error)
"""


def test_memory_that_the_system_refuses(store: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", REFUSED_BY_THE_SYSTEM, "cachejoin", str(store)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "a budget of 512000000 bytes cannot be had" in done.stdout, done.stderr
    assert "this machine has" in done.stdout
