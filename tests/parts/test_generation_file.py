"""Files of generations: whatever is wrong with one, it is not used, and no row comes out wrong."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import semistream
from semistream.engine.join import SemiStreamJoin
from semistream.loops.resident import fill, resident_bytes, resident_keys
from semistream.parts.cache import Cache
from semistream.parts.generation import Generations

LIMIT = 200_000
KEYS = 40
#: where the header has its text and its checksum; between them are zeros
_FIELDS = {*range(512), *range(4088, 4096)}
_DIRECTORY_BYTES = 4096
_COUNT_BYTES = {12, 13, 14, 15}


class _Clock:
    """A clock that stands still until it is told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys with one and two rows, strings of all lengths and nulls."""
    keys = [*range(KEYS), *range(0, KEYS, 5)]
    texts = [None if i % 7 == 0 else "y" * i + str(i) for i in range(len(keys))]
    path = tmp_path_factory.mktemp("store") / "r"
    semistream.build_pages(pa.table({"k": keys, "s": texts}), path, on="k", page_rows=8)
    return path


@pytest.fixture
def join(store: Path) -> Iterator[SemiStreamJoin]:
    with semistream.open_join("sweepjoin", master=store, on="k", how="left", memory="500KB") as opened:
        opened.start(_stream().schema)
        yield opened


def _stream() -> pa.RecordBatch:
    """All keys, and some that R does not have."""
    return pa.record_batch({"k": pa.array(np.arange(-3, KEYS + 3))})


def _rows(join: SemiStreamJoin) -> list[tuple[object, ...]]:
    batches = [*join.push(_stream()), *join.drain()]
    return sorted((row for batch in batches for row in zip(*batch.to_pydict().values(), strict=True)), key=repr)


def _generations(folder: Path, join: SemiStreamJoin, clock: _Clock | None = None, limit: int = LIMIT) -> Generations:
    return Generations(folder, "v1", limit, join.work.row_layout, clock=clock or _Clock())


def _built(folder: Path, join: SemiStreamJoin) -> Path:
    """A generation with what the join has met."""
    list(join.push(_stream()))
    shared = _generations(folder, join)
    shared.saw(_stream().num_rows)
    with shared.building() as mine:
        assert mine
        shared.merge(join.loop.cache)  # type: ignore[attr-defined]
    assert shared.failures == 0, shared.last_failure
    (path,) = folder.glob("generation-*")
    return path


def _flip(handle: int, at: int) -> None:
    byte = os.pread(handle, 1, at)[0]
    os.pwrite(handle, bytes([byte ^ 1 << at % 8]), at)


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.thorough)])
def test_every_byte_that_is_flipped_is_noticed_or_changes_no_row(
    step: int, join: SemiStreamJoin, tmp_path: Path
) -> None:
    """All bytes that say what the file is; of the others every 7th: each place in an entry of 16 bytes has its turn."""
    path = _built(tmp_path, join)
    expected = _rows(join)
    unnoticed = []
    size = path.stat().st_size
    handle = os.open(path, os.O_RDWR)
    flipped = [at for at in range(size) if at in _FIELDS or at % step == 0]
    for at in flipped:
        _flip(handle, at)
        shared = _generations(tmp_path, join)
        if shared.refresh():
            unnoticed.append(at)
            join.shared = shared.current
            assert _rows(join) == expected, f"byte {at} of {size}"
            join.shared = None
        else:
            assert shared.failures == 1
        _flip(handle, at)
    os.close(handle)
    # What processes write while they use it: the tallies, and in the directory the counts.
    assert [at for at in unnoticed if at < 8192] == [at for at in flipped if 4096 <= at < 8192]
    assert all(at % 16 in _COUNT_BYTES and at < 8192 + _DIRECTORY_BYTES for at in unnoticed if at >= 8192)


def test_damaged_counts_do_not_harm_the_next_generation(join: SemiStreamJoin, tmp_path: Path) -> None:
    """Tallies and counts have no checksum: whatever stands there, the generation built from them is right."""
    path = _built(tmp_path, join)
    expected = _rows(join)
    original = path.read_bytes()
    for value in (0x00, 0x01, 0x7F, 0x80, 0xFF):
        damaged = bytearray(original)
        damaged[4096:8192] = bytes([value]) * 4096
        for at in range(8192, 8192 + _DIRECTORY_BYTES, 16):
            if damaged[at + 8 : at + 16] != b"\xff" * 8:
                damaged[at + 12 : at + 15] = bytes([value]) * 3
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        path.write_bytes(damaged)
        shared = _generations(tmp_path, join)
        assert shared.refresh()
        join.shared = shared.current
        assert _rows(join) == expected
        shared.saw(1)
        shared.merge(join.loop.cache)  # type: ignore[attr-defined]
        assert shared.refresh(), shared.last_failure
        join.shared = shared.current
        assert _rows(join) == expected


@pytest.mark.parametrize("length", [0, 1, 100, 4088, 4096, 8191, 8192, 8193, 12_288, -4096, -1])
def test_a_truncated_file_is_not_used(length: int, join: SemiStreamJoin, tmp_path: Path) -> None:
    path = _built(tmp_path, join)
    os.truncate(path, length if length >= 0 else path.stat().st_size + length)
    shared = _generations(tmp_path, join)
    assert not shared.refresh()
    assert shared.failures == 1
    assert shared.current is None


def test_a_longer_file_is_not_used(join: SemiStreamJoin, tmp_path: Path) -> None:
    path = _built(tmp_path, join)
    with path.open("ab") as file:
        file.write(b"\0")
    assert not _generations(tmp_path, join).refresh()


def test_rows_of_another_layout_are_not_used(join: SemiStreamJoin, tmp_path: Path) -> None:
    """The same signature, and rows that are packed in another way."""
    _built(tmp_path, join)
    other = pa.table({"k": np.arange(KEYS), "n": np.arange(KEYS, dtype=np.int32)})
    with semistream.open_join("sweepjoin", master=other, on="k", how="left", memory="500KB") as second:
        second.start(_stream().schema)
        assert not _generations(tmp_path, second).refresh()


@pytest.mark.parametrize("make", ["folder", "fifo", "link", "garbage"])
def test_whatever_has_the_name_is_passed_over_and_outnumbered(make: str, join: SemiStreamJoin, tmp_path: Path) -> None:
    """A thing nobody can use, with the highest number, does not keep the next builder from publishing."""
    strange = tmp_path / "generation-000041"
    if make == "folder":
        strange.mkdir()
    elif make == "fifo":
        os.mkfifo(strange)
    elif make == "link":
        strange.symlink_to(tmp_path / "nowhere")
    else:
        strange.write_bytes(os.urandom(30_000))
    (tmp_path / "generation-²").write_bytes(b"no number")
    clock = _Clock()
    shared = _generations(tmp_path, join, clock)
    assert not shared.refresh()
    assert shared.failures == 1
    list(join.push(_stream()))
    shared.saw(1)
    assert not shared.is_due(join.loop.cache)  # type: ignore[attr-defined]
    clock.now += 1000
    assert not shared.refresh()
    assert shared.failures == 1, "what was refused is not looked at again"
    assert shared.is_due(join.loop.cache)  # type: ignore[attr-defined]
    with shared.building() as mine:
        assert mine
        shared.merge(join.loop.cache)  # type: ignore[attr-defined]
    assert shared.refresh(), shared.last_failure
    assert shared.current is not None
    assert shared.current.number == 42
    assert make == "folder" or not strange.exists()


def test_a_good_generation_beside_a_damaged_one_is_used(join: SemiStreamJoin, tmp_path: Path) -> None:
    path = _built(tmp_path, join)
    (tmp_path / "generation-000002").write_bytes(path.read_bytes()[:-1])
    shared = _generations(tmp_path, join)
    assert shared.refresh()
    assert shared.failures == 1
    assert shared.current is not None
    assert shared.current.number == 1


def test_space_is_allocated_before_it_is_mapped(
    join: SemiStreamJoin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hole in a mapped file that the disk has no block for is a signal, not an error."""
    seen = []

    def look(cache: Cache) -> bool:
        (scratch,) = tmp_path.glob(".generation-*")
        status = scratch.stat()
        seen.append(status.st_blocks * 512 >= status.st_size)
        return fill(join.loop, cache)

    _generations(tmp_path, join, limit=2_000_000).load(resident_keys(join.plan.r.rows), look)

    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no such call on this file system")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    shared = _generations(tmp_path, join, limit=2_000_000)
    shared.load(resident_keys(join.plan.r.rows), look)
    assert seen == [True, True]
    assert shared.refresh()
    join.shared = shared.current
    assert len(_rows(join)) == KEYS + KEYS // 5 + 6


def test_more_of_r_than_there_is_room_for(tmp_path: Path) -> None:
    """The size of R is estimated from its first rows: those that come later may be larger than there is room for."""
    texts = ["x" * (300 if i > 3000 else 1) for i in range(9000)]
    pq.write_table(pa.table({"k": np.arange(9000), "s": texts}), tmp_path / "r.parquet")
    with semistream.open_join("ssj", master=tmp_path / "r.parquet", on="k", how="left", memory="2MB") as scanning:
        scanning.start(_stream().schema)
        room = resident_bytes(scanning.plan.r) + (1 << 16)
        shared = _generations(tmp_path / "cache", scanning, limit=room)
        assert not shared.load(resident_keys(scanning.plan.r.rows), lambda cache: fill(scanning.loop, cache), room)
        assert shared.failures == 1
        assert not list((tmp_path / "cache").glob("*generation-*"))


_FULL = """
import numpy as np, pyarrow as pa, semistream, sys
from pathlib import Path
from semistream.parts.cache import Cache
from semistream.parts.generation import Generations
n = 20_000
master = pa.table({"k": np.arange(n), "a": np.arange(n), "b": np.arange(n), "c": np.arange(n)})
batch = pa.record_batch({"k": pa.array(np.arange(n))})
with semistream.open_join("sweepjoin", master=master, on="k", memory="3MB") as join:
    join.start(batch.schema)
    rows = sum(out.num_rows for out in join.push(batch))
    shared = Generations(Path(sys.argv[1]), "v1", 4_000_000, join.work.row_layout)
    shared.saw(n)
    with shared.building() as mine:
        assert mine
        shared.merge(join.loop.cache)
    rows += sum(out.num_rows for out in join.push(batch))
    assert rows == 2 * n
    print(shared.failures, shared.last_failure, list(Path(sys.argv[1]).glob("*generation-*")))
"""


def test_a_full_disk_costs_the_cache_and_nothing_else(tmp_path: Path) -> None:
    """A disk of 100 kB, mounted in a name space of its own."""
    mount = f"mount -t tmpfs -o size=100k none {tmp_path}"
    unshare = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*unshare, mount], capture_output=True, check=False).returncode
    ):
        pytest.skip("name spaces are not allowed here")
    done = subprocess.run(
        [*unshare, f'{mount} && exec "$0" -c "$1" {tmp_path}', sys.executable, _FULL],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != -signal.SIGBUS
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 building a generation in")
    assert "No space left" in done.stdout
    assert done.stdout.strip().endswith("[]")


def test_a_size_limit_costs_the_cache_and_nothing_else(tmp_path: Path) -> None:
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n" + _FULL
    done = subprocess.run([sys.executable, "-c", limited, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 building a generation in")
