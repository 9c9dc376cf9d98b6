"""What the page cache can have, from the files in which a system says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from semistream.master.room import cache_room, is_memory

GB = 10**9


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A system with 8,000,000 kB to spare, and nothing said of groups."""
    (tmp_path / "proc/self").mkdir(parents=True)
    text = "MemTotal: 16000000 kB\nMemFree: 1000000 kB\nMemAvailable: 8000000 kB\n"
    (tmp_path / "proc/meminfo").write_text(text)
    return tmp_path


def v2(root: Path, group: str, used: int, cached: int, **limits: str) -> None:
    folder = root / "sys/fs/cgroup" / group
    folder.mkdir(parents=True, exist_ok=True)
    for name, limit in {"max": "max", "high": "max", **limits}.items():
        (folder / f"memory.{name}").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\nfile {cached}\ninactive_file {cached}\nactive_file 0\nshmem 7\n")


def v1(root: Path, group: str, limit: int, used: int, cached: int) -> None:
    folder = root / "sys/fs/cgroup/memory" / group
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{used}\n")
    own = "inactive_file 0\nactive_file 0\n"
    (folder / "memory.stat").write_text(f"{own}total_inactive_file 0\ntotal_active_file {cached}\n")


def in_groups(root: Path, *lines: str) -> None:
    (root / "proc/self/cgroup").write_text("\n".join(lines) + "\n")


def test_the_machine_alone(root: Path) -> None:
    assert cache_room(root) == 8_000_000 * 1024


def test_a_system_that_says_nothing(tmp_path: Path) -> None:
    assert cache_room(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemAvailable: much\n")
    assert cache_room(tmp_path) is None


def test_a_group_may_have_its_limit_less_what_is_no_cache(root: Path) -> None:
    in_groups(root, "0::/work")
    v2(root, "work", used=3 * GB, cached=2 * GB, max=str(4 * GB))
    assert cache_room(root) == 3 * GB


def test_a_group_gives_its_cache_back_from_its_high_mark_on(root: Path) -> None:
    in_groups(root, "0::/work")
    v2(root, "work", used=3 * GB, cached=2 * GB, max=str(4 * GB), high=str(2 * GB))
    assert cache_room(root) == GB


@pytest.mark.parametrize("tight", ["", "pod", "pod/container"])
def test_the_tightest_group_up_to_the_root_counts(root: Path, tight: str) -> None:
    in_groups(root, "0::/pod/container")
    for group in ("", "pod", "pod/container"):
        v2(root, group, used=GB, cached=0, max=str(2 * GB if group == tight else 6 * GB))
    assert cache_room(root) == GB


def test_a_group_without_a_limit_bounds_nothing(root: Path) -> None:
    in_groups(root, "0::/work")
    v2(root, "work", used=3 * GB, cached=0)
    assert cache_room(root) == 8_000_000 * 1024


def test_a_full_group_has_no_room(root: Path) -> None:
    in_groups(root, "0::/work")
    v2(root, "work", used=5 * GB, cached=0, max=str(4 * GB))
    assert cache_room(root) == 0


def test_groups_of_the_older_kind(root: Path) -> None:
    in_groups(root, "5:cpu,cpuacct:/job", "4:memory:/job", "0::/")
    v1(root, "job", 4 * GB, used=3 * GB, cached=2 * GB)
    v1(root, "", 2**63 - 4096, used=9 * GB, cached=0)
    assert cache_room(root) == 3 * GB


@pytest.mark.parametrize("path", ["/docker/0123", "/../../docker/0123", "/"])
def test_in_a_container_the_mount_is_the_group(path: str, root: Path) -> None:
    """There the path may be that of the host, where nothing is to be found."""
    in_groups(root, f"4:memory:{path}")
    v1(root, "", 2 * GB, used=GB, cached=GB // 2)
    assert cache_room(root) == 3 * GB // 2


def test_files_that_make_no_sense_bound_nothing(root: Path) -> None:
    in_groups(root, "nonsense", "0::/work")
    v2(root, "work", used=0, cached=0, max=str(GB))
    (root / "sys/fs/cgroup/work/memory.stat").write_text("no numbers here\n")
    assert cache_room(root) == 8_000_000 * 1024


def test_this_machine_has_some(tmp_path: Path) -> None:
    if Path("/proc/meminfo").exists():
        room = cache_room()
        assert room is not None
        assert room >= 0


def test_a_file_system_that_is_memory(root: Path, tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    assert not is_memory(tmp_path, root)
    for kind, expected in (("tmpfs", True), ("ext4", False)):
        lines = f"1 0 0:1 / /proc rw - proc proc rw\n2 0 {number} / /x rw shared:1 - {kind} none rw\n"
        (root / "proc/self/mountinfo").write_text(lines)
        assert is_memory(tmp_path, root) is expected
    assert not is_memory(tmp_path / "nowhere", root)
