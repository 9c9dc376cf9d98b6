"""Through the page cache or past it: as a function of numbers, and as this machine answers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semistream import build_pages, open_join
from semistream.errors import ConfigError
from semistream.lab.workloads.relation import KEY, master_table, stream_batches
from semistream.master import reading
from semistream.master.base import PageFile
from semistream.master.memory import MemoryMaster
from semistream.master.open import open_master
from semistream.master.reading import SMALL_BYTES, choose_reading, decide, is_open, takes_direct, timed_reads
from semistream.testing import assert_same_rows, reference_join

GB = 10**9
QUICK, SLOW = (6e-6, 90e-6), (200e-6, 90e-6)


@pytest.mark.parametrize(
    ("r_bytes", "room", "seconds", "direct"),
    [
        # What is small is mapped, whatever the memory.
        (SMALL_BYTES, 0, None, False),
        (SMALL_BYTES + 1, 0, None, True),
        (SMALL_BYTES + 1, None, None, False),
        # The sizes decide: room for R twice, or not even once. Times do not count there.
        (2 * GB, 4 * GB, SLOW, False),
        (2 * GB, 2 * GB - 1, QUICK, True),
        # Between them the times do, and without them R is taken to stay.
        (2 * GB, 4 * GB - 1, QUICK, False),
        (2 * GB, 4 * GB - 1, SLOW, True),
        (2 * GB, 2 * GB, QUICK, False),
        (2 * GB, 2 * GB, SLOW, True),
        (2 * GB, 2 * GB, (180e-6, 90e-6), False),
        (2 * GB, 2 * GB, (181e-6, 90e-6), True),
        (2 * GB, 2 * GB, None, False),
    ],
)
def test_what_is_decided(r_bytes: int, room: int | None, seconds: tuple[float, float] | None, direct: bool) -> None:
    found = decide(r_bytes, room, seconds)
    assert found.direct is direct
    assert found.name == ("direct" if direct else "mapped")
    assert found.why.endswith(": reads go past the page cache" if direct else ": reads go through the page cache")


@pytest.mark.parametrize(
    ("r_bytes", "room", "expected"),
    [
        (2 * GB, 2 * GB - 1, False),
        (2 * GB, 2 * GB, True),
        (2 * GB, 4 * GB - 1, True),
        (2 * GB, 4 * GB, False),
        (2 * GB, None, False),
        (SMALL_BYTES, SMALL_BYTES, False),
    ],
)
def test_when_reads_are_timed(r_bytes: int, room: int | None, expected: bool) -> None:
    assert is_open(r_bytes, room) is expected


def test_the_sentence_has_the_numbers() -> None:
    past = "reads go past the page cache"
    assert decide(6_200_000_000, 3_100_000_000).why == f"R has 6.2 GB, the machine can keep 3.1 GB: {past}"
    assert decide(2 * GB, 3 * GB, SLOW).why == (
        "R has 2 GB, the machine can keep 3 GB, and a read takes 200 µs through the page cache and 90 µs past it: "
        f"{past}"
    )


# ---------------------------------------------------------------------------------------- this machine


@dataclass(frozen=True)
class Files:
    """As much of master data as decides how it is read: files that may say they are larger than they are."""

    page_files: Sequence[PageFile] | None


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A system with 1,000,000 kB to spare."""
    (tmp_path / "system/proc/self").mkdir(parents=True)
    (tmp_path / "system/proc/meminfo").write_text("MemAvailable: 1000000 kB\n")
    return tmp_path / "system"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pages"
    path.write_bytes(os.urandom(1 << 20))
    return path


def chosen(path: Path, size: int, root: Path, budget: int = 0) -> str:
    return choose_reading(Files([PageFile(path, size)]), "auto", budget, root).why  # type: ignore[arg-type]


def test_the_budget_of_the_join_is_no_room_for_r(file: Path, root: Path) -> None:
    assert chosen(file, 500_000_000, root) == (
        "R has 500 MB, the machine can keep 1.02 GB: reads go through the page cache"
    )
    assert chosen(file, 500_000_000, root, budget=824_000_000) == (
        "R has 500 MB, the machine can keep 200 MB: reads go past the page cache"
    )
    assert "can keep 0 bytes" in chosen(file, 500_000_000, root, budget=5 * GB)


def test_a_file_system_that_refuses_is_read_through_the_page_cache(root: Path) -> None:
    """Files of /proc cannot be opened for reads past the page cache."""
    refusing = Path("/proc/self/status")
    assert not takes_direct(PageFile(refusing, 1000))
    assert timed_reads([PageFile(refusing, 1 << 20)]) is None
    assert chosen(refusing, 2 * GB, root) == (
        "R has 2 GB, the machine can keep 1.02 GB: reads go past the page cache, but the file system refuses that, so "
        "they go through the page cache"
    )
    assert chosen(refusing, 700_000_000, root).endswith("can keep 1.02 GB: reads go through the page cache")


def test_a_missing_file_is_for_the_join_to_refuse(tmp_path: Path, root: Path) -> None:
    assert chosen(tmp_path / "nowhere", 700_000_000, root).endswith("reads go through the page cache")
    assert chosen(tmp_path / "nowhere", 2 * GB, root).endswith("so they go through the page cache")


def test_reads_of_several_files_are_timed(file: Path, tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"x" * 100)
    files = [PageFile(tmp_path / "short", 100), PageFile(file, 1 << 20), PageFile(tmp_path / "short", 100)]
    found = timed_reads(files)
    assert found is not None
    assert min(found) > 0
    assert timed_reads(files[:1]) is None


# --------------------------------------------------------------------------------------------- a store


ROWS = 5_000


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return master_table(ROWS, seed=1)


@pytest.fixture(scope="module")
def store(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reading") / "r"
    build_pages(table, path, on=KEY, page_rows=32)
    return path


@pytest.mark.parametrize("reads", ["auto", "mapped", "direct"])
@pytest.mark.parametrize("algorithm", ["auto", "sweepjoin", "cachejoin", "meshjoin"])
def test_all_ways_join_exactly_and_explain_says_which(algorithm: str, reads: str, store: Path, table: pa.Table) -> None:
    batches = list(stream_batches(6_000, int(ROWS * 1.2), 0.8, 3, batch_rows=2_000))
    with open_join(algorithm, master=store, on=KEY, how="left", memory="400kB", reads=reads) as join:
        rows = list(join.run(batches))
        said = join.explain()
        joined = pa.Table.from_batches(rows, join.output_schema)
    assert_same_rows(joined, reference_join(pa.Table.from_batches(batches), table, KEY, "left"))
    why = said.reading.why
    assert f"  reads    {why}\n" in str(said)
    setting = said.to_json()["setting"]
    assert setting["reads"] == why
    assert setting["direct"] is said.reading.direct is said.chosen.situation.r.direct is (reads == "direct")
    if reads == "auto":
        assert why.startswith("R has ")
        assert why.endswith("which is little: reads go through the page cache")
    else:
        assert why.startswith(f"reads='{reads}' was asked for")


@pytest.mark.parametrize("algorithm", ["auto", "sweepjoin", "meshjoin"])
def test_r_that_outgrows_the_memory_is_read_past_the_page_cache(
    algorithm: str, store: Path, table: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine is one without memory to spare, for which R of any size is large."""
    monkeypatch.setattr(reading, "SMALL_BYTES", 0)
    monkeypatch.setattr(reading, "cache_room", lambda root: 0)
    batches = list(stream_batches(2_000, ROWS, 0.8, 3, batch_rows=1_000))
    with open_join(algorithm, master=store, on=KEY, how="left", memory="400kB") as join:
        joined = pa.Table.from_batches(list(join.run(batches)), join.output_schema)
        said = join.explain()
    assert said.reading.why.endswith("the machine can keep 0 bytes: reads go past the page cache")
    assert said.chosen.situation.r.direct
    assert_same_rows(joined, reference_join(pa.Table.from_batches(batches), table, KEY, "left"))


def test_the_bytes_of_a_store_are_those_of_its_pages(store: Path) -> None:
    master = open_master(store)
    files = master.page_files
    assert files is not None
    assert [file.path.stat().st_size for file in files] == [file.size for file in files]
    assert [file.path.name for file in files] == ["pages-00000.arrow"]
    master.close()


def test_only_a_page_store_can_be_read_past_the_page_cache(table: pa.Table, tmp_path: Path) -> None:
    pq.write_table(table, tmp_path / "r.parquet")
    for master in (MemoryMaster(table, KEY), tmp_path / "r.parquet"):
        for reads in ("auto", "mapped"):
            with open_join("meshjoin", master=master, on=KEY, reads=reads) as join:
                list(join.run(stream_batches(100, ROWS, 0.0, 3, batch_rows=100)))
                assert join.explain().reading.why.startswith("R is no page store")
        for algorithm in (None, "meshjoin"):
            with pytest.raises(ConfigError, match=r"reads='direct' .* only a page store .* build_pages"):
                open_join(algorithm, master=master, on=KEY, reads="direct")


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no /dev/shm")
def test_a_store_in_memory_is_mapped(table: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SMALL_BYTES", 0)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        build_pages(table, Path(folder) / "r", on=KEY, page_rows=32)
        master = open_master(Path(folder) / "r")
        monkeypatch.setattr(reading, "cache_room", lambda root: 0)
        with open_join("sweepjoin", master=master, on=KEY, how="left") as join:
            batches = list(stream_batches(1_000, ROWS, 0.0, 3, batch_rows=1_000))
            joined = pa.Table.from_batches(list(join.run(batches)), join.output_schema)
            why = join.explain().reading.why
        assert why == "R lies in a file system that is memory: reads go through the page cache"
        assert_same_rows(joined, reference_join(pa.Table.from_batches(batches), table, KEY, "left"))
        master.close()
