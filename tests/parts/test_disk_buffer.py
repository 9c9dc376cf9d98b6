"""Disk buffers: several in one piece of memory do not touch each other, and huge pages hold them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from semistream import build_pages
from semistream.engine.facts import MasterFacts
from semistream.lab.measure.resident import resident_bytes
from semistream.lab.workloads.relation import KEY, master_table
from semistream.loops.pages import reading_needs
from semistream.master.base import ALIGNMENT, HUGE_PAGE, Bytes, aligned_buffer
from semistream.parts.disk_buffer import DiskBuffer

_HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def advised_bytes(buffer: Bytes) -> int:
    """Bytes of a buffer for which huge pages were asked."""
    start, stop, found = buffer.ctypes.data, buffer.ctypes.data + buffer.nbytes, 0
    low = high = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if area := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            low, high = (int(part, 16) for part in area.groups())
        elif line.startswith("VmFlags") and "hg" in line.split():
            found += max(min(high, stop) - max(low, start), 0)
    return found


@pytest.mark.skipif(not _HUGE.exists(), reason="this system has no huge pages")
@pytest.mark.parametrize("size", [1 << 16, 2 << 20, 3 << 20, (12 << 20) - ALIGNMENT, (12 << 20) - HUGE_PAGE // 2])
def test_huge_pages_hold_all_of_a_buffer(size: int) -> None:
    buffer = aligned_buffer(size)
    assert buffer.nbytes == size
    assert buffer.ctypes.data % HUGE_PAGE == 0
    buffer[:] = 7
    assert int(buffer[-1]) == 7
    assert advised_bytes(buffer) == size


@pytest.mark.skipif(not resident_bytes(os.getpid()), reason="this system does not say what a process holds")
@pytest.mark.parametrize("size", [1 << 16, HUGE_PAGE // 2, 2 * HUGE_PAGE - HUGE_PAGE // 4])
def test_what_a_huge_page_has_in_excess_is_given_back(size: int) -> None:
    count = 32
    before = resident_bytes(os.getpid())
    buffers = [aligned_buffer(size) for _ in range(count)]
    for buffer in buffers:
        buffer[:] = 1
    assert resident_bytes(os.getpid()) - before <= count * size + 2_000_000


@pytest.mark.parametrize("size", [1, ALIGNMENT, HUGE_PAGE - ALIGNMENT])
def test_small_buffers_are_aligned_too(size: int) -> None:
    buffer = aligned_buffer(size)
    assert (buffer.nbytes, buffer.ctypes.data % ALIGNMENT) == (size, 0)


def test_more_than_the_system_has_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match=r"refuses \d+ bytes"):
        aligned_buffer(1 << 62)


@pytest.mark.parametrize("memory", [60_000_000, 120_000_000, 400_000_000])
def test_buffers_that_are_read_ahead_fill_huge_pages(memory: int) -> None:
    """All but the end of them, and they are charged within their part of the budget."""
    r = MasterFacts.sketch(10_000_000, direct=True)
    needs = reading_needs(r, memory, None, share=0.05)
    assert needs.buffers == 4
    assert needs.buffer_bytes is not None
    pages = r.pages_within(needs.buffer_bytes // needs.buffers)
    memory_read = needs.buffers * r.read_bytes(pages)
    assert 0 <= -memory_read % HUGE_PAGE <= HUGE_PAGE // 16
    assert 0.08 * min(memory, 120_000_000) < needs.buffer_bytes <= 0.1125 * memory
    assert needs.buffer_bytes <= 14 << 20


def test_a_small_budget_keeps_its_buffers() -> None:
    """Where huge pages would cost more than a fifth of the buffers, they are left as they are."""
    r = MasterFacts.sketch(10_000_000, direct=True)
    needs = reading_needs(r, 15_000_000, None, share=0.05)
    assert needs.buffers == 4
    assert needs.buffer_bytes is not None
    assert needs.buffer_bytes > 0.1 * 15_000_000


def test_buffers_in_one_piece_keep_what_they_read(tmp_path: Path) -> None:
    master = build_pages(master_table(4_000, 1), tmp_path / "r", on=KEY, page_rows=64)
    with master.open([KEY], direct=True) as reader:
        disks = DiskBuffer(reader, 5).with_others(3)
        assert [disk.buffer.nbytes for disk in disks] == [reader.buffer_bytes(5)] * 4
        addresses = [disk.buffer.ctypes.data for disk in disks]
        assert np.diff(addresses).tolist() == [reader.buffer_bytes(5)] * 3
        runs = [disk.read_runs(np.arange(5 * i, 5 * i + 5), 0) for i, disk in enumerate(disks)]
        for i, (disk, run) in enumerate(zip(disks, runs, strict=True)):
            block = disk.took(run)
            assert block.pages.tolist() == list(range(5 * i, 5 * i + 5))
            again = DiskBuffer(reader, 5)
            alone = again.took(again.read_runs(block.pages, 0))
            assert (block.base - disk.buffer.ctypes.data).tolist() == (alone.base - again.buffer.ctypes.data).tolist()
            used = int(alone.base[-1] - again.buffer.ctypes.data)
            assert (disk.buffer[:used] == again.buffer[:used]).all()
