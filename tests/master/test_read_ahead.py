"""Threads that read groups of pages: what they read is what one call reads, and they need nobody's lock for it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from tests.master.decoding import assert_same_table, block_table, every_type

from semistream import build_pages
from semistream.errors import ChecksumError, ConfigError, StoreError
from semistream.lab.workloads.relation import KEY, master_table
from semistream.master.base import aligned_buffer
from semistream.master.pages import PageMaster
from semistream.master.read_ahead import ReadAhead

PAGES = 8


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> PageMaster:
    return build_pages(every_type(3000), tmp_path_factory.mktemp("ahead") / "r", on="k", page_rows=16)


def groups_of(n_pages: int) -> list[np.ndarray]:
    """Sorted pages with gaps, in groups."""
    chosen = np.unique(np.random.default_rng(3).integers(0, n_pages, 150))
    return [chosen[at : at + PAGES] for at in range(0, len(chosen), PAGES)]


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("readers", [1, 3])
def test_threads_read_what_one_call_reads(master: PageMaster, direct: bool, readers: int) -> None:
    columns = ["word", "k", "list"]
    with master.open(columns, direct) as reader, master.open(columns, direct) as other:
        size = reader.buffer_bytes(4 * PAGES)
        buffers, plain = [aligned_buffer(size) for _ in range(4)], aligned_buffer(size)
        groups = groups_of(master.n_pages)
        with reader.read_ahead(buffers, PAGES, 1 << 12, readers) as ahead:
            for first in range(0, len(groups), 4):
                four = groups[first : first + 4]
                for buffer, pages in enumerate(four):
                    ahead.ask(buffer, pages)
                # In another order than they were asked for.
                for buffer, pages in reversed(list(enumerate(four))):
                    found, expected = ahead.wait(buffer), other.read_runs(pages, plain, 1 << 12)
                    assert (found.pages, found.reads, found.bytes) == (expected.pages, expected.reads, expected.bytes)
                    assert found.block.pages.tolist() == pages.tolist()
                    assert_same_table(block_table(reader, found.block), block_table(other, expected.block))


PINGS = """
import sys
import numpy as np
from semistream.master.base import aligned_buffer
from semistream.master.open import open_master

master = open_master(sys.argv[1])
with master.open(["k"]) as reader:
    buffers = [aligned_buffer(reader.buffer_bytes(1)) for _ in range(4)]
    for _ in range(20):
        with reader.read_ahead(buffers, 1, 0, 3) as ahead:
            for page in range(100):
                for buffer in range(4):
                    ahead.ask(buffer, np.array([page + buffer]))
                for buffer in range(4):
                    assert ahead.wait(buffer).block.pages.tolist() == [page + buffer]
"""


def test_threads_share_no_memory_of_their_own(master: PageMaster) -> None:
    """What one thread has freed another one gets at once: where a thread works with freed memory, they disturb it."""
    tunables = {"GLIBC_TUNABLES": "glibc.malloc.arena_max=1:glibc.malloc.tcache_count=0"}
    command = [sys.executable, "-c", PINGS, str(master.path)]
    subprocess.run(command, env={**os.environ, **tunables}, check=True, timeout=60)


def test_no_more_pipes_or_threads(master: PageMaster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is the system's, and nothing stays open."""
    with master.open(["k"]) as reader:
        buffers = [aligned_buffer(reader.buffer_bytes(1))]
        before, threads, made = sorted(os.listdir("/proc/self/fd")), threading.active_count(), os.pipe

        def one_pipe() -> tuple[int, int]:
            monkeypatch.setattr(os, "pipe", no_pipe)
            return made()

        def no_pipe() -> tuple[int, int]:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(os, "pipe", one_pipe)
        with pytest.raises(OSError, match="Too many open files"):
            reader.read_ahead(buffers, 1, 0, 2)
        monkeypatch.setattr(os, "pipe", made)
        start = threading.Thread.start

        def second_fails(thread: threading.Thread) -> None:
            if thread.name == "semistream reader 1":
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", second_fails)
        with pytest.raises(RuntimeError, match="can't start"):
            reader.read_ahead(buffers, 1, 0, 2)
        assert sorted(os.listdir("/proc/self/fd")) == before
        assert threading.active_count() == threads


def test_refusals(master: PageMaster) -> None:
    with master.open(["k"]) as reader, reader.read_ahead([aligned_buffer(100)], 2, 0, 1) as ahead:
        with pytest.raises(ConfigError, match=f"R has {master.n_pages} pages"):
            ahead.ask(0, np.array([0, master.n_pages]))
        ahead.ask(0, np.array([0, 1]))
        with pytest.raises(ConfigError, match="too small"):
            ahead.wait(0)


@pytest.mark.parametrize("harm", ["changed", "cut"])
def test_damage_belongs_to_the_buffer_that_has_it(tmp_path: Path, harm: str) -> None:
    master = build_pages(master_table(2000, 1), tmp_path / "r", on=KEY, page_rows=16)
    [file] = master.page_files
    with master.open([KEY], direct=True) as reader:
        with file.path.open("r+b") as handle:
            if harm == "cut":
                handle.truncate(file.size // 2)
            else:
                at = reader.page_offset(100) + 200
                byte = os.pread(handle.fileno(), 1, at)[0]
                os.pwrite(handle.fileno(), bytes((byte ^ 1,)), at)
        buffers = [aligned_buffer(reader.buffer_bytes(PAGES)) for _ in range(2)]
        with reader.read_ahead(buffers, PAGES, 0, 2) as ahead:
            ahead.ask(0, np.arange(0, PAGES))
            ahead.ask(1, np.arange(98, 98 + PAGES))
            error, words = (StoreError, file.path.name) if harm == "cut" else (ChecksumError, "page 100 of")
            with pytest.raises(error, match=words):
                ahead.wait(1)
            assert ahead.wait(0).block.pages.tolist() == list(range(PAGES))


def test_a_read_needs_no_lock(master: PageMaster) -> None:
    """The caller holds the interpreter's lock all the time, and the pages come in."""
    with master.open(["k"]) as reader:
        buffer = aligned_buffer(reader.buffer_bytes(PAGES))
        with reader.read_ahead([buffer], PAGES, 0, 1) as ahead:
            ahead.ask(0, np.arange(PAGES))
            ahead.wait(0)
            buffer[:] = 0
            ahead.ask(0, np.arange(PAGES))
            interval, until = sys.getswitchinterval(), time.monotonic() + 60
            sys.setswitchinterval(1000)
            try:
                while not buffer[0] and time.monotonic() < until:
                    pass
                assert buffer[0]
            finally:
                sys.setswitchinterval(interval)
            assert ahead.wait(0).pages == PAGES


def test_a_forked_process_leaves_the_threads_alone(master: PageMaster) -> None:
    with master.open(["k"]) as reader:
        with reader.read_ahead([aligned_buffer(reader.buffer_bytes(PAGES))], PAGES, 0, 2) as ahead:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if not child:
                try:
                    ahead.close()
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            read = threading.Thread(target=_read_again, args=(ahead,), daemon=True)
            read.start()
            read.join(60)
            assert not read.is_alive()
        assert not [
            thread
            for thread in threading.enumerate()
            if thread.name.startswith(("semistream reader", "semistream checker"))
        ]


def _read_again(ahead: ReadAhead) -> None:
    for _ in range(3):
        ahead.ask(0, np.arange(PAGES))
        assert ahead.wait(0).pages == PAGES
