"""What the machine is worth while turns are taken: a fixed piece of work and a fixed read, timed between them.

Runs of a figure may be hours apart, and a machine that others use is not the same then. Counts do not care; wall times
do. So each run says how fast its machine was, and a verdict whether that was the same for all who are compared.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from semistream.engine.join import SemiStreamJoin
from semistream.lab.measure.yardstick import Yardstick
from semistream.master.base import aligned_buffer
from semistream.master.files import open_file
from semistream.master.pages import PageMaster

#: what is read from the beginning of R: long enough to be a rate, and short beside the turns
_PIECES, _PIECE_BYTES = 16, 4 << 20


class Pace:
    """How long the same work takes now, and did before."""

    @cached_property
    def _yardstick(self) -> Yardstick:
        return Yardstick()

    def watch(self, join: SemiStreamJoin) -> Watch:
        """The machine from now on, while this join's times are taken."""
        return Watch(self, join)

    def now(self, join: SemiStreamJoin) -> dict[str, float]:
        """Seconds of the yardstick and, where R is read past the page cache and has a few MB, per byte of it."""
        found = {"work_s": self._yardstick.seconds(time.perf_counter)}
        if join.direct and isinstance(join.master, PageMaster):
            read = _read_seconds_per_byte(join.master.page_files[0].path)
            if read is not None:
                found["read_s_per_byte"] = read
        return found


class Watch:
    """Looks at the machine, from before the first of some turns until after the last."""

    def __init__(self, pace: Pace, join: SemiStreamJoin) -> None:
        self._pace, self._join = pace, join
        self._found: list[dict[str, float]] = []
        self.look()

    def look(self) -> None:
        self._found.append(self._pace.now(self._join))

    def taken(self) -> dict[str, Any]:
        """When the times were taken and how fast the machine was, as JSON values."""
        return {"at": datetime.now(UTC).isoformat(timespec="seconds"), "pace": self._found}


def taken_of(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """When a run's times were taken, and how fast its machine usually was; None if nobody noted it."""
    taken = result.get("taken")
    return None if taken is None else {"at": taken["at"], **usual_pace(taken["pace"])}


def _read_seconds_per_byte(path: Path) -> float | None:
    """Of the middle one of the pieces; whole ones, round and round where they are few. None where there is none."""
    file, buffer = open_file(path, direct=True), aligned_buffer(_PIECE_BYTES).data
    try:
        whole, times = os.fstat(file).st_size // _PIECE_BYTES, []
        if not whole:
            return None
        for number in range(_PIECES):
            begun = time.perf_counter()
            os.preadv(file, [buffer], number % whole * _PIECE_BYTES)
            times.append(time.perf_counter() - begun)
        return statistics.median(times) / _PIECE_BYTES
    finally:
        os.close(file)


def usual_pace(paces: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The middle one of some paces, part by part, in what all of them have."""
    parts = set.intersection(*(set(pace) for pace in paces))
    return {part: statistics.median(pace[part] for pace in paces) for part in sorted(parts)}


def taken_together(taken: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """The same of several runs behind one point: when the last was, and the mean; None if nobody noted it of one.

    >>> taken_together([{"at": "1:00", "work_s": 1.0}, {"at": "2:00", "work_s": 2.0}])
    {'at': '2:00', 'work_s': 1.5}
    """
    known = [one for one in taken if one is not None]
    if not known or len(known) < len(taken):
        return None
    parts = sorted(set.intersection(*(set(one) for one in known)) - {"at"})
    means = {part: statistics.fmean(one[part] for one in known) for part in parts}
    return {"at": max(one["at"] for one in known), **means}
