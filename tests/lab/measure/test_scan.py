"""A scan reads every byte of its files, whatever their sizes; the limit is one scan per batch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from semistream import build_pages
from semistream.errors import ChecksumError, StoreError
from semistream.lab.measure import scan
from semistream.lab.measure.scan import CheckedScan, ScanLimit, scan_seconds
from semistream.lab.measure.turns import take_turns
from semistream.lab.workloads.relation import KEY, master_table


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{number}.bin" for number in range(3)]
    for path, size in zip(paths, (3 * 4096, 10_001, 1), strict=True):
        path.write_bytes(b"x" * size)
    return paths


@pytest.mark.parametrize("readers", [1, 2, 5])
@pytest.mark.parametrize("piece", [4096, 1 << 20])
def test_every_byte_is_read(files: list[Path], readers: int, piece: int) -> None:
    # Another number of bytes than the files have is an error of the scan.
    assert scan_seconds(files, readers, piece) > 0


def test_a_scan_that_misses_bytes_is_refused(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = scan._read
    monkeypatch.setattr(scan, "_read", lambda pieces, size: whole(pieces[1:], size))
    with pytest.raises(StoreError, match=r"read 10002 bytes of 22290"):
        scan_seconds(files, 1, 1 << 20)


def test_the_limit_is_a_batch_per_scan(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "scan_seconds", lambda paths, readers: {1: 0.5, 2: 0.25}[readers])
    limit = ScanLimit(files, 1000)
    take_turns([limit], 3, 0.4)
    assert limit.rates == [4000.0] * 3
    assert limit.n_bytes == 3 * 4096 + 10_001 + 1
    assert limit.bytes_per_second == limit.n_bytes / 0.25
    limit.change_batches(10)
    take_turns([limit], 1, 0.1)
    assert limit.rates == [40.0]


@pytest.mark.parametrize("page", [0, 57, -1])
def test_a_checked_scan_looks_at_every_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    """With buffers so small that each is used several times."""
    monkeypatch.setattr(scan, "BUFFER_BYTES", 1 << 15)
    master = build_pages(master_table(2000, 1), tmp_path / "r", on=KEY, page_rows=16)
    checked = CheckedScan(master, 1000)
    take_turns([checked], 1, 0.0)
    assert (checked.tuples_in, checked.rates[0] > 0) == (1000, True)
    with master.open([KEY]) as reader:
        page %= master.n_pages
        at = reader.page_offset(page) + 200
    with master.page_files[0].path.open("r+b") as file:
        byte = os.pread(file.fileno(), 1, at)[0]
        os.pwrite(file.fileno(), bytes((byte ^ 1,)), at)
    with pytest.raises(ChecksumError, match=f"page {page} of"):
        checked.batch()
