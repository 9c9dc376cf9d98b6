"""The plans of "auto" on Spark, as small files: which operator is in force, why, and where a trial of some stands.

    executor's folder     plan-<enrichment>-000001, -000002 …     the newest is in force, first writer wins
    query's checkpoint    semistream/<enrichment>/choice          what the last trial has found, for the next start

Both are soft: whoever finds none, or one that cannot be read, plans. No row depends on them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from semistream.algorithms.registry import ALGORITHMS
from semistream.errors import StoreError
from semistream.planner.trial import Shown
from semistream.sealed import put_file, read_sealed, sealed
from semistream.spark.dimension import Dimension

#: what is wrong with a file that is not used
_UNUSABLE = (OSError, ValueError, TypeError, KeyError, AttributeError, StoreError)
#: a choice holds for an R of so many times the tuples, or as many times fewer
_AS_LARGE = 2.0
CHOICE = "choice"


@dataclass(frozen=True)
class Chosen:
    """A plan as it stands in its file: the operator, what is expected of it, and the trial that it is part of."""

    number: int
    algorithm: str
    hit_rate: float
    h_R: float
    rate_per_s: float
    #: why this operator, for people
    why: str = ""
    #: who is to be tried after this one; None: no trial is under way
    waiting: tuple[str, ...] | None = None
    #: what operators have shown on trial, each as often as it had a turn
    shown: Mapping[str, tuple[Shown, ...]] = field(default_factory=dict)
    #: who was to be tried and could not be, and why
    left: Mapping[str, str] = field(default_factory=dict)
    #: the closest are tried a second time
    is_again: bool = False

    @property
    def on_trial(self) -> bool:
        return self.waiting is not None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> Chosen:
        """ValueError where it names an operator that this release has not got."""
        shown = {name: tuple(Shown(**each) for each in every) for name, every in raw["shown"].items()}
        waiting = None if raw["waiting"] is None else tuple(raw["waiting"])
        chosen = replace(Chosen(**raw), waiting=waiting, shown=shown)
        if not {chosen.algorithm, *shown, *(waiting or ())} <= ALGORITHMS.keys():
            raise ValueError("it names an operator that is not known")
        return chosen


class PlanFiles:
    """The plans of one enrichment on one executor."""

    def __init__(self, folder: Path, identity: str) -> None:
        self._folder = folder
        self._stem = f"plan-{identity[:16]}-"
        #: what this process has used last, where there is no file that can be read
        self._last: Chosen | None = None

    def newest(self) -> Chosen | None:
        """The newest plan that can be read."""
        return self._look()[0]

    def publish(self, mine: Chosen) -> Chosen:
        """Put a plan in force, unless another process has been faster; the one in force."""
        newest, last = self._look()
        if newest is not None and newest.number >= mine.number:
            return newest
        # Files that cannot be read are passed over, by all.
        mine = replace(mine, number=max(mine.number, last + 1))
        if newest is None:
            self._last = mine
        with suppress(OSError, StoreError):
            self._folder.mkdir(parents=True, exist_ok=True)
            put_file(self._path(mine.number), sealed(mine.to_json())[0], replace=False)
        return self.newest() or mine

    def _look(self) -> tuple[Chosen | None, int]:
        """The newest plan that can be read, and the number of the last file."""
        found = {}
        for path in self._folder.glob(f"{self._stem}*"):
            tail = path.name.removeprefix(self._stem)
            if tail.isdigit():
                found[int(tail)] = path
        for number in sorted(found, reverse=True):
            with suppress(*_UNUSABLE):
                self._last = replace(Chosen.from_json(read_sealed(found[number])[0]), number=number)
                break
        return self._last, max(found, default=0)

    def age_s(self, chosen: Chosen) -> float:
        """For how long a plan has been in force; 0 where nobody knows."""
        with suppress(OSError):
            return max(time.time() - self._path(chosen.number).stat().st_mtime, 0.0)
        return 0.0

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._stem}{number:06d}"


def remember_choice(dimension: Dimension, chosen: Chosen) -> None:
    """Keep what a trial has found in the query's checkpoint, where the enrichment knows one."""
    if dimension.choice is None:
        return
    path = Path(dimension.choice)
    with suppress(*_UNUSABLE):
        # A path that is not the checkpoint of a query is left alone.
        if (path.parent.parent.parent / "metadata").exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            put_file(path, sealed({**_setting(dimension), "chosen": chosen.to_json()})[0], replace=True)


def remembered_choice(dimension: Dimension) -> Chosen | None:
    """What an earlier run has found, if the setting is still much the same."""
    with suppress(*_UNUSABLE):
        if dimension.choice is None or not Path(dimension.choice).exists():
            return None
        found = read_sealed(Path(dimension.choice))[0]
        setting = _setting(dimension)
        chosen = Chosen.from_json(found["chosen"])
        is_as_large = abs(math.log((found["rows"] + 1) / (setting["rows"] + 1))) <= math.log(_AS_LARGE)
        is_same = all(found[what] == setting[what] for what in ("identity", "direct"))
        if is_as_large and is_same and not chosen.on_trial:
            return replace(chosen, number=1, why=f"the checkpoint remembers {chosen.why}")
    return None


def _setting(dimension: Dimension) -> dict[str, Any]:
    """What a choice depends on: all of the enrichment, how R is read here, and its size."""
    with closing(dimension.open_master(dimension.version)) as master:
        direct, rows = dimension.reading(master).direct, master.n_rows
    return {"identity": dimension.identity, "direct": direct, "rows": rows}
