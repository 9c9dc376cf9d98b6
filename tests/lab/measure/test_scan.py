"""A scan reads every byte of its files, whatever their sizes; the limit is one scan per batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from semistream.errors import StoreError
from semistream.lab.measure import scan
from semistream.lab.measure.scan import ScanLimit, scan_seconds
from semistream.lab.measure.turns import take_turns


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
