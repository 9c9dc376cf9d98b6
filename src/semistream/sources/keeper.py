"""Keeps a store up to date with its source, in a thread beside whatever uses the store.

A refresh that fails is said at once and leaves the version in force; the next one comes when it is due. How old the
data may become before that matters is `max_age`, and `on_stale` what happens then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from semistream.errors import ConfigError, SemiStreamError, SourceError
from semistream.master.build import DEFAULT_MEMORY_LIMIT
from semistream.master.format import CURRENT
from semistream.master.pages import PageMaster
from semistream.sources.base import Source
from semistream.sources.stores import UNCHANGED, Refreshed, refresh_from

ON_STALE = ("warn", "fail")
_END_SECONDS = 30


@dataclass(frozen=True)
class Schedule:
    """When a store is refreshed, and how old it may become."""

    every_s: float
    max_age_s: float | None = None
    on_stale: str = "warn"

    def __post_init__(self) -> None:
        if self.on_stale not in ON_STALE:
            raise ConfigError(f"on_stale={self.on_stale!r} is unknown; allowed are {', '.join(ON_STALE)}")
        if self.max_age_s is not None and self.max_age_s < self.every_s:
            raise ConfigError(
                f"max_age is {self.max_age_s:g} s, and {self.every_s:g} s pass between two refreshes: data would be "
                "stale before its next one; give more, or refresh more often"
            )


class Keeper:
    """One store, its source, and when it is refreshed; without a schedule it is only built."""

    def __init__(
        self,
        path: Path,
        source: Source,
        schedule: Schedule | None,
        say: Callable[[str], None],
        *,
        keep_versions: int = 1,
        memory_limit: int = DEFAULT_MEMORY_LIMIT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path, self.schedule = path, schedule
        self._source, self._say, self._clock = source, say, clock
        self._keep_versions, self._memory_limit = keep_versions, memory_limit
        self._stop = source.stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._fresh_at = clock()
        self._is_stale = False
        #: what the last refresh that failed said; None after one that did not
        self.failure: str | None = None

    def start(self) -> None:
        """Build the store if there is none, and begin to refresh it; what is too old already is refreshed first."""
        if not (self.path / CURRENT).exists():
            self.refresh()
        elif self.schedule is not None:
            age = self._recorded_age()
            self._fresh_at = self._clock() - age
            if self.schedule.max_age_s is not None and age > self.schedule.max_age_s:
                self._try()
        if self.schedule is not None:
            self._thread = threading.Thread(target=self._run, name=f"refresh of {self.path.name}", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread; a refresh that is under way is given up."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_END_SECONDS)

    def refresh(self) -> Refreshed:
        """Refresh now, and say what came of it."""
        began = self._clock()
        done = refresh_from(self.path, self._source, keep_versions=self._keep_versions, memory_limit=self._memory_limit)
        # What the source had when it was looked at is that old, however long the work took.
        self._fresh_at, self.failure = began, None
        if done.how != UNCHANGED:
            why = f": {done.reason}" if done.reason else ""
            self._say(f"master data {self.path}: {done.how} from {self._source.name}, version {done.version}{why}")
        return done

    @property
    def age_s(self) -> float:
        """Seconds since the store was known to be what its source had."""
        return self._clock() - self._fresh_at

    def check(self) -> None:
        """Say or raise what has to be done about data that is too old; to be called now and then."""
        schedule = self.schedule
        if schedule is None or schedule.max_age_s is None:
            return
        was, self._is_stale = self._is_stale, self.age_s > schedule.max_age_s
        if not self._is_stale:
            return
        because = "" if self.failure is None else f": {self.failure}"
        text = (
            f"master data {self.path} is {self.age_s:.0f} s old, more than max_age = {schedule.max_age_s:g} s, and was "
            f"not refreshed from {self._source.name}{because}"
        )
        if schedule.on_stale == "fail":
            raise SourceError(text)
        if not was:
            self._say(f"warning: {text}")

    def _run(self) -> None:
        assert self.schedule is not None
        due = self._fresh_at + self.schedule.every_s
        while not self._stop.wait(max(due - self._clock(), 0)):
            due = self._clock() + self.schedule.every_s
            self._try()

    def _try(self) -> None:
        try:
            self.refresh()
        except SemiStreamError as error:
            self._failed(str(error))
        except Exception as error:
            # A mistake of ours must not end the refreshes unseen.
            self._failed(f"{self._source.name}: {type(error).__name__}: {self._source.scrubbed(error)}")

    def _failed(self, text: str) -> None:
        if self._stop.is_set():
            return
        self.failure = text
        every = "" if self.schedule is None else f"; tried again in {self.schedule.every_s:g} s"
        self._say(f"warning: master data {self.path} was not refreshed: {text}{every}")

    def _recorded_age(self) -> float:
        """How long ago a version was written, by its manifest; for ever if it does not tell."""
        with closing(PageMaster(self.path)) as master:
            written = master.origin.refreshed_at
        if written is None:
            return float("inf")
        return max((datetime.now(UTC) - datetime.fromisoformat(written)).total_seconds(), 0.0)
