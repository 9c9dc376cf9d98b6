"""How many bytes this process can have in the page cache: what the machine has to spare, and what groups allow.

    /proc/meminfo         MemAvailable: free memory and caches that can be given back
    /proc/self/cgroup     the groups of this process; each up to the root may bound it, and the smallest room counts
    /proc/self/mountinfo  file systems that are memory themselves

A group's room is its limit less what it uses besides its page cache, for that is what the cache can have.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class _Files:
    """What the files of a group are called."""

    limits: tuple[str, ...]
    usage: str
    #: in memory.stat: pages of files, which can be given back
    cached: tuple[str, str]


_V1 = _Files(("memory.limit_in_bytes",), "memory.usage_in_bytes", ("total_active_file", "total_inactive_file"))
# From memory.high on a group has to give its cache back, long before it reaches memory.max.
_V2 = _Files(("memory.max", "memory.high"), "memory.current", ("active_file", "inactive_file"))


def cache_room(root: Path = Path("/")) -> int | None:
    """Bytes that the page cache can have, those it has included; None where the system does not say."""
    rooms = [room for room in (_available(root), *_bounds(root)) if room is not None]
    return min(rooms, default=None)


def is_memory(path: Path, root: Path = Path("/")) -> bool:
    """Whether a file lies in a file system that keeps its files in memory, as in /dev/shm."""
    with suppress(OSError, ValueError, IndexError):
        device = path.stat().st_dev
        wanted = f"{os.major(device)}:{os.minor(device)}"
        for line in (root / "proc/self/mountinfo").read_text().splitlines():
            about, _, kind = line.partition(" - ")
            if about.split()[2] == wanted:
                return kind.split()[0] in ("tmpfs", "ramfs")
    return False


def _available(root: Path) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) * 1024
    return None


def _bounds(root: Path) -> Iterator[int | None]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        mount, files = (root / "sys/fs/cgroup/memory", _V1) if controllers else (root / "sys/fs/cgroup", _V2)
        # In a container the path may be that of the host, whose folders are not there: its own group is the mount.
        names = [name for name in path.split("/") if name not in ("", "..")]
        for depth in range(len(names), -1, -1):
            yield _room_of(mount.joinpath(*names[:depth]), files)


def _room_of(group: Path, files: _Files) -> int | None:
    """None where the group has no limit, or nothing can be read of it."""
    limits = []
    for name in files.limits:
        # Without a limit the file says "max".
        with suppress(OSError, ValueError):
            limits.append(int((group / name).read_text()))
    try:
        usage = int((group / files.usage).read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        cached = sum(int(stat[name]) for name in files.cached)
    except (OSError, ValueError, KeyError):
        return None
    return max(min(limits) - max(usage - cached, 0), 0) if limits else None
