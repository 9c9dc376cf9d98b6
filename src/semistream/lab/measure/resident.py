"""Memory of a process, seen from outside: what the kernel says it holds.

Anonymous and shared pages count. Pages mapped from files do not, for the kernel takes them back when it wants to;
where nothing is mapped, as with reads past the page cache, they may be counted too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

#: what may be added to the budget: some of it, and the pools of interpreter and Arrow
_FACTOR, _SLACK_BYTES = 1.25, 64_000_000


def allowed_bytes(budget: int, beside: int = 0) -> int:
    """By how much a process may grow that joins within a budget and holds `beside` bytes outside of the join.

    >>> allowed_bytes(16_000_000)
    84000000
    """
    return int(_FACTOR * budget) + _SLACK_BYTES + beside


def resident_bytes(pid: int, *, files: bool = False) -> int:
    """Anonymous and shared bytes of a process, with `files` those mapped from files as well; 0 when it is gone."""
    kinds = ("RssAnon:", "RssShmem:", *(("RssFile:",) if files else ()))
    return _sum(Path(f"/proc/{pid}/status"), kinds)


def proportional_bytes(pid: int, *, files: bool = False) -> int:
    """The same with a page that several processes share divided among them: their sum counts it once."""
    kinds = ("Pss:",) if files else ("Pss_Anon:", "Pss_Shmem:")
    return _sum(Path(f"/proc/{pid}/smaps_rollup"), kinds)


def _sum(path: Path, kinds: tuple[str, ...]) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(kinds))


def spark_workers() -> list[int]:
    """Spark's Python workers among the processes that this one has started; none where the system does not say so."""
    return [pid for pid in _below(os.getpid()) if _is_worker(pid)]


def _below(ancestor: int) -> Iterator[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
    for pid in parents:
        above = parents[pid]
        while above in parents and above != ancestor:
            above = parents[above]
        if above == ancestor:
            yield pid


def _is_worker(pid: int) -> bool:
    try:
        return b"semistream.spark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
