"""How long a run of many figures will take, and which stores they will ask for: both before they run.

Figures are asked with a lab that runs nothing and notes what they ask of it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semistream.cost.situation import Options
from semistream.errors import SemiStreamError
from semistream.lab.figure import Figure, Point
from semistream.lab.laboratory import TUNED_FOR, Lab
from semistream.lab.measure.runs import RunLog
from semistream.lab.sources import Source, Synthetic
from semistream.master.base import Master

#: for memory shares of data whose store nobody opens now: about what a tuple of TPC-H or a weather report takes
_ROW_BYTES = 200


class Forecast:
    """Seconds that are left of a list of figures, from what their runs have to read and how long that took so far."""

    def __init__(
        self, work: Mapping[str, float], finished: Mapping[str, float], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._work = dict(work)
        self._spent = {name: seconds for name, seconds in finished.items() if name in self._work}
        self._now = now
        self._begun: str | None = None
        self._at = 0.0

    def finished(self, others: Mapping[str, float]) -> None:
        """These figures are finished, after so many seconds; by others, as far as they were not begun here."""
        self._spent |= {name: others[name] for name in others.keys() & self._work.keys() - self._spent.keys()}

    def begin(self, figure: str) -> None:
        """A figure is begun; the one before it is finished."""
        if self._begun is not None:
            self._spent[self._begun] = self._now() - self._at
        self._begun = None if figure in self._spent else figure
        self._at = self._now()

    def seconds_left(self) -> float | None:
        """None as long as nothing is finished that had anything to read."""
        done = sum(self._work[name] for name in self._spent)
        if not done:
            return None
        pace = sum(self._spent.values()) / done
        left = sum(work for name, work in self._work.items() if name not in self._spent) * pace
        if self._begun is not None:
            # A figure that takes longer than expected takes none of the time of those to come.
            left -= min(self._now() - self._at, self._work[self._begun] * pace)
        return left


def spoken(seconds: float) -> str:
    """A time as it is said.

    >>> spoken(20), spoken(200), spoken(5000), spoken(100_000)
    ('less than a minute', '3 min', '1 h 23 min', '28 h')
    """
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute"
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 600 else f"{round(minutes / 60)} h"


# ------------------------------------------------------------------------------------------- foreseen


@dataclass(frozen=True)
class Foreseen:
    """What a figure will ask for: stores, and runs with the tuples of R that each goes over again and again."""

    stores: frozenset[str]
    runs: Mapping[str, int]


def foresee(figure: Figure, lab: Lab) -> Foreseen:
    """What a figure will ask for, as far as it says so without having any result."""
    noting = _Noting(lab)
    if figure.joins:
        # Without results a figure may stop anywhere; what it does with real ones is not tried here.
        with contextlib.suppress(Exception):
            for _ in figure.run(noting):
                pass
    return Foreseen(frozenset(noting.stores), noting.runs)


def work_of(figures: Sequence[Figure], foreseen: Mapping[str, Foreseen], usual: float) -> dict[str, float]:
    """Tuples of R that each figure's runs go over; runs are made by the first figure that asks for them.

    A figure that says nothing of its runs counts as `usual` many.
    """
    seen: set[str] = set()
    work: dict[str, float] = {}
    for figure in figures:
        runs = foreseen[figure.id].runs
        work[figure.id] = float(sum(rows for run, rows in runs.items() if run not in seen)) if runs else usual
        seen.update(runs)
    return work


class _Noted(SemiStreamError):
    """Nobody makes runs now."""


class _NoRuns(RunLog):
    """A log without runs, in which none is made."""

    def __init__(self) -> None:
        self._found = {}

    def once(
        self, settings: Mapping[str, Any], make: Callable[[], Mapping[str, Any]], *, alone: bool = True
    ) -> dict[str, Any]:
        raise _Noted("no run is made while runs are noted")


class _Noting(Lab):
    """A lab that runs nothing and notes what is asked for; every budget is refused."""

    def __init__(self, lab: Lab) -> None:
        self.__dict__.update(lab.__dict__)
        self.stores: set[str] = set()
        self.runs: dict[str, int] = {}
        self.say = lambda _: None
        self.log = _NoRuns()

    @property
    def direct(self) -> bool:
        return True

    def buffered(self) -> Lab:
        return self

    def path(self, source: Source, form: str = "pages") -> Path:
        self.stores.add(source.store_name)
        raise _Noted("no store is opened while runs are noted")

    def master(self, source: Source) -> Master:
        self.path(source)
        raise AssertionError

    def memory(self, source: Source, share: float) -> int:
        if isinstance(source, Synthetic):
            return super().memory(source, share)
        return int(source.rows * _ROW_BYTES * share)

    def _note(self, source: Source, *run: object) -> None:
        self.stores.add(source.store_name)
        self.runs[repr((source.describe(), *run))] = source.rows

    def measure(
        self,
        algorithm: str,
        source: Source,
        memory: int,
        *,
        options: Options | None = None,
        turns: int | None = None,
    ) -> None:
        self._note(source, algorithm, memory, dict(options or {}), turns)

    def tuned(
        self, algorithm: str, source: Source, memory: int, by: str, fixed: Options | None = None
    ) -> dict[str, Any]:
        """Not searched for now; only told apart from others."""
        return {**(fixed or {}), f"tuned for {by}": 1.0}

    def contest(
        self,
        figure: str,
        algorithm: str,
        x: float,
        source: Source,
        memory: int,
        *,
        fixed: Options | None = None,
        **settings: Any,
    ) -> Iterator[Point]:
        self.measure(algorithm, source, memory, options=fixed)
        for by in dict.fromkeys(TUNED_FOR.values()):
            self.measure(algorithm, source, memory, options=self.tuned(algorithm, source, memory, by, fixed))
        return iter(())
