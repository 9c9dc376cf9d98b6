"""Finished runs, one JSON object per line, found again by their settings.

Figures share runs, and one that was broken off goes on where it stopped. A line is written when its run is complete;
the last line of a killed process may be torn, and is then made anew. Processes that share the file make no run twice.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import semistream
from semistream.cost.profile import machine_info
from semistream.errors import ConfigError, SemiStreamError
from semistream.lab.measure.together import Together

_PACKAGES = ("numpy", "pyarrow", "numba")
#: 97.5 % quantiles of Student's t by degrees of freedom; beyond the table that of the normal law, a little widened
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % confidence interval over n values."""

    mean: float
    low: float
    high: float
    n: int

    @staticmethod
    def of(values: Sequence[float]) -> Estimate:
        """Student's interval; of a single value nothing more is known than itself.

        >>> Estimate.of([1.0, 2.0, 3.0]).mean
        2.0
        """
        n = len(values)
        mean = math.fsum(values) / n
        if n < 2:
            return Estimate(mean, mean, mean, n)
        spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n)
        t = _STUDENT[n - 2] if n - 2 < len(_STUDENT) else 1.96 + 2.5 / n
        return Estimate(mean, mean - t * spread, mean + t * spread, n)

    @staticmethod
    def ratio(over: Sequence[float], under: Sequence[float]) -> Estimate:
        """Sum over sum, with the interval of a ratio estimator.

        A mean of ratios would be led by the turns with next to nothing below the line: a turn without a load is not
        a thousand times faster than the others, it is one of them. No interval reaches below 0.

        >>> Estimate.ratio([1.0, 1.0], [1.0, 3.0]).mean
        0.5
        """
        total = math.fsum(under)
        if total <= 0:
            return Estimate(0.0, 0.0, 0.0, len(under))
        mean, each = math.fsum(over) / total, total / len(under)
        rest = Estimate.of([(a - mean * b) / each for a, b in zip(over, under, strict=True)])
        half = rest.high - rest.mean
        return Estimate(mean, max(mean - half, 0.0), mean + half, rest.n)

    def scaled(self, factor: float) -> Estimate:
        return Estimate(self.mean * factor, self.low * factor, self.high * factor, self.n)


def versions() -> dict[str, str]:
    """Versions of what the results depend on."""
    found = {"semistream": semistream.__version__}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


class NotRemembered(SemiStreamError):
    """A run that is not in the log was asked for where none may be made."""


class RunLog:
    """A file of finished runs, all made with the same number of CPUs: others would be other wall times."""

    def __init__(self, path: Path, together: Together | None = None) -> None:
        self.path = path
        self._together = together or Together()
        self._only_remembered = False
        self._found: dict[str, dict[str, Any]] = {}
        self._read = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._catch_up()

    def __len__(self) -> int:
        return len(self._found)

    def remembered(self) -> RunLog:
        """The same runs, and no others: what is not among them raises `NotRemembered`."""
        view = copy.copy(self)
        view._only_remembered = True
        return view

    def once(
        self, settings: Mapping[str, Any], make: Callable[[], Mapping[str, Any]], *, alone: bool = True
    ) -> dict[str, Any]:
        """The result of these settings: found in the log, or made now and written there.

        Both are JSON values. What is found and what was just made are the same, digit for digit. A run is made alone,
        unless it sees to that by itself where it has to, or takes no times.
        """
        name = _name(settings)
        if name in self._found:
            return self._found[name]
        if self._only_remembered:
            raise NotRemembered(f"there is no run with the settings {name}; measure the figure first")
        with self._together.making(name):
            self._catch_up()
            if name not in self._found:
                with self._together.alone() if alone else contextlib.nullcontext():
                    made = json.loads(json.dumps(make()))
                record = {"settings": settings, "result": made, "versions": versions(), "machine": machine_info()}
                with self._together.writing(), self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record, sort_keys=True) + "\n")
                    file.flush()
                    os.fsync(file.fileno())
                self._found[name] = made
        return self._found[name]

    def _catch_up(self) -> None:
        """Read what was written since; a line that a killed process left unfinished would spoil the next one."""
        if not self.path.exists():
            return
        with self._together.writing(), self.path.open("r+b") as file:
            file.seek(self._read)
            lines, newline, torn = file.read().rpartition(b"\n")
            whole = self._read + len(lines) + len(newline)
            if torn:
                file.truncate(whole)
        cpus = machine_info()["cpus"]
        for line in lines.splitlines():
            record = json.loads(line)
            known = record.get("machine", {}).get("cpus", cpus)
            if known != cpus:
                raise ConfigError(
                    f"{self.path} holds runs with {known} CPUs, and this process may use {cpus}: their times cannot be "
                    f"compared. Give it {known} CPUs (taskset), or choose another out folder"
                )
            self._found[_name(record["settings"])] = record["result"]
        self._read = whole


def _name(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)
