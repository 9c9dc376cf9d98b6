"""Threads of the join command: bounded in bytes, and whatever ends one of them ends the command and leaves nothing."""

from __future__ import annotations

import errno
import os
import resource
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from semistream.cli.app import app
from semistream.cli.output import ParquetOutput
from semistream.cli.overlap import ByteQueue, Stopped, read_ahead, write_behind
from semistream.testing import assert_same_rows, reference_join

STREAM = pa.table({"k": pa.array([i * 7 % 5000 for i in range(200_000)], pa.int64()), "n": range(200_000)})
MASTER = pa.table({"k": range(5000), "text": [f"{i * i:x}" * 8 for i in range(5000)]})
BATCH = pa.record_batch({"n": pa.array(range(1000), pa.int64())})


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("semistream")}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEMISTREAM_CACHE", str(tmp_path / "cache"))
    pq.write_table(STREAM, "s.parquet", row_group_size=20_000)
    pq.write_table(MASTER, "r.parquet")
    Path("out").mkdir()
    before = threads()
    yield tmp_path
    assert threads() <= before


def join(out: str, *more: str) -> Result:
    words = "join --stream s.parquet --master r.parquet --on k --memory 4MB --batch-rows 5000 --out"
    return CliRunner().invoke(app, [*shlex.split(words), f"out/{out}", *more])


def refused(result: Result, *expected: str) -> None:
    """One line, status 2, nothing left."""
    assert result.exit_code == 2, result.output
    (line,) = [line for line in result.stderr.splitlines() if not line.startswith("master data:")]
    assert line.startswith("error: ")
    assert all(word in line for word in expected)
    assert list(Path("out").iterdir()) == []


# ------------------------------------------------------------------------------------------------- queues


def test_a_queue_holds_as_many_bytes_as_it_may() -> None:
    """The giver waits at the fourth batch until one is taken, however slow the taker is."""
    queue = ByteQueue(3 * BATCH.nbytes)
    fourth_is_in = threading.Event()

    def give() -> None:
        for _ in range(4):
            queue.put(BATCH)
        fourth_is_in.set()
        queue.end()

    giver = threading.Thread(target=give)
    giver.start()
    assert not fourth_is_in.wait(0.2)
    assert queue.take() is BATCH
    assert fourth_is_in.wait(60)
    assert [queue.take() is None for _ in range(4)] == [False, False, False, True]
    giver.join()
    assert queue.most_bytes == 3 * BATCH.nbytes


def test_a_batch_above_the_limit_goes_through_alone() -> None:
    queue = ByteQueue(BATCH.nbytes // 2)
    for _ in range(3):
        queue.put(BATCH)
        assert queue.take() is BATCH
    assert queue.most_bytes == BATCH.nbytes


def test_whoever_waits_hears_that_the_other_side_gave_up() -> None:
    full, empty = ByteQueue(1), ByteQueue(1)
    full.put(BATCH)
    found: list[BaseException] = []

    def wait(call: object) -> None:
        try:
            call()  # type: ignore[operator]
        except BaseException as error:
            found.append(error)

    waiting = [threading.Thread(target=wait, args=(call,)) for call in (partial(full.put, BATCH), empty.take)]
    for thread in waiting:
        thread.start()
    full.stop()
    empty.stop(OSError("gone"))
    empty.stop(ValueError("later"))
    for thread in waiting:
        thread.join(60)
    assert sorted(map(repr, found)) == sorted([repr(OSError("gone")), repr(Stopped())])


def test_what_is_read_ahead_is_bounded_and_the_reader_ends_with_the_block() -> None:
    given = []
    many = threading.Event()
    before = threads()

    def batches() -> Iterator[pa.RecordBatch]:
        while True:
            given.append(1)
            if len(given) > 3:
                many.set()
            yield BATCH

    with read_ahead(batches(), 2 * BATCH.nbytes) as ahead:
        assert next(ahead) is BATCH
        # One was taken, two wait, one is in the reader's hand.
        assert many.wait(60)
    assert threads() <= before
    assert len(given) == 4


def test_an_error_while_reading_is_raised_where_batches_are_taken() -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield BATCH
        raise OSError("torn")

    with pytest.raises(OSError, match="torn"), read_ahead(batches(), 1) as ahead:
        for _ in ahead:
            pass


def test_rows_are_written_in_order_and_all_of_them() -> None:
    written: list[pa.RecordBatch] = []
    rows = [BATCH.slice(i, 10) for i in range(0, 1000, 10)]
    with write_behind(written.append, 100) as writer:
        for each in rows:
            writer.write(each)
        writer.finish()
        assert written == rows


def test_an_error_while_writing_is_raised_at_the_end_at_the_latest() -> None:
    def write(batch: pa.RecordBatch) -> None:
        raise OSError("full")

    with write_behind(write, 1 << 20) as writer:
        writer.write(BATCH)
        with pytest.raises(OSError, match="full"):
            writer.finish()


# ---------------------------------------------------------------------------------------------- the command


@pytest.mark.parametrize("out", ["x.parquet", "folder"])
def test_the_join_is_whole(data: Path, out: str) -> None:
    assert join(out).exit_code == 0
    assert_same_rows(pq.read_table(data / "out" / out), reference_join(STREAM, MASTER, "k"))


@pytest.mark.parametrize("out", ["x.parquet", "folder"])
def test_a_stream_that_is_torn_in_the_middle(data: Path, out: str) -> None:
    """Its footer is whole, so the join begins, and rows are written before the reader meets the gap."""
    file = pq.ParquetFile("s.parquet")
    at = file.metadata.row_group(6).column(0).data_page_offset
    content = bytearray(Path("s.parquet").read_bytes())
    content[at : at + 4000] = bytes(4000)
    Path("s.parquet").write_bytes(content)
    refused(join(out))


@pytest.mark.parametrize("out", ["x.parquet", "folder"])
def test_a_disk_that_fills_up(data: Path, out: str) -> None:
    """A limit on the size of files, in a process of its own, stands for the disk; nothing is left of what was begun."""
    assert join("warm").exit_code == 0
    size = sum(file.stat().st_size for file in Path("out/warm").iterdir())
    for file in [*Path("out/warm").iterdir(), Path("out/warm")]:
        file.rmdir() if file.is_dir() else file.unlink()

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2))

    words = shlex.split("join --stream s.parquet --master r.parquet --on k --memory 4MB --batch-rows 5000 --out")
    command = [sys.executable, "-m", "semistream.cli", *words, f"out/{out}"]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limited, check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert os.strerror(errno.EFBIG) in done.stderr
    assert list(Path("out").iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_end_that_comes_while_all_three_work(
    data: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """A signal is raised in the main thread, here between two batches that it hands to the writer."""
    begun = threading.Event()
    whole = ParquetOutput.write
    count = 0

    def written(self: ParquetOutput, batch: pa.RecordBatch) -> None:
        whole(self, batch)
        begun.set()

    put = ByteQueue.put

    def interrupted(self: ByteQueue, batch: pa.RecordBatch) -> None:
        nonlocal count
        put(self, batch)
        if threading.current_thread() is threading.main_thread():
            count += 1
            if count == 5:
                assert begun.wait(60)
                raise error(143)

    monkeypatch.setattr(ParquetOutput, "write", written)
    monkeypatch.setattr(ByteQueue, "put", interrupted)
    assert join("x.parquet").exit_code == (130 if error is KeyboardInterrupt else 143)
    assert list(Path("out").iterdir()) == []


def test_memory_that_waits_is_bounded_in_the_command(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a writer that rests at every batch, the queues are full, and not fuller."""
    queues: list[ByteQueue] = []
    limits: list[int] = []
    before = ByteQueue.__init__

    def noted(self: ByteQueue, limit_bytes: int) -> None:
        before(self, limit_bytes)
        queues.append(self)
        limits.append(limit_bytes)

    monkeypatch.setattr(ByteQueue, "__init__", noted)
    assert join("x.parquet").exit_code == 0
    assert len(queues) == 2
    for queue, limit in zip(queues, limits, strict=True):
        assert 0 < queue.most_bytes <= limit <= 1 << 20
