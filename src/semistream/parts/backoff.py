"""Leaving alone for a while what has just failed."""

from __future__ import annotations

from collections.abc import Callable

_FIRST_SECONDS = 2.0
_LONGEST_SECONDS = 600.0


class BackOff:
    """Says whether to try again: not for a pause after a failure, which doubles with each one until something works.

    >>> now = 0.0
    >>> off = BackOff(lambda: now)
    >>> off.failed()
    >>> off.waiting
    True
    >>> now = 2.0
    >>> off.waiting
    False
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pause_seconds = 0.0
        self._until: float | None = None

    @property
    def waiting(self) -> bool:
        return self._until is not None and self._clock() < self._until

    def failed(self) -> None:
        self._pause_seconds = min(max(2 * self._pause_seconds, _FIRST_SECONDS), _LONGEST_SECONDS)
        self._until = self._clock() + self._pause_seconds

    def worked(self) -> None:
        self._pause_seconds = 0.0
        self._until = None
