"""Building and verifying generations beside the tasks, so that no tuple waits for it.

    end of a task:      is the next generation due, or is there a newer one? ---> a thread builds it, or maps it
    begin of the next:  what the thread has mapped is taken into use

There is one thread at a time, and none at rest. While it runs, the `Generations` are its own, but for `saw`. It reads
the private cache for a short while at its beginning (`free` waits for that) and waits for nobody, so a process that
ends has it ended soon. A process that is killed leaves a scratch file, as any builder does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from semistream.parts.cache import Cache
from semistream.parts.generation import Generations, GivenUpError


class Upkeep:
    """The thread beside the tasks of one join."""

    def __init__(self, generations: Generations) -> None:
        self.generations = generations
        self._thread: threading.Thread | None = None
        self._private_is_free = threading.Event()
        self._private_is_free.set()
        self._master_is_free = threading.Event()
        self._master_is_free.set()
        self._given_up = threading.Event()

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def free(self) -> None:
        """Wait until the private cache may be changed."""
        self._private_is_free.wait()

    def rest(self) -> None:
        """Wait until nobody reads R beside the tasks."""
        self._master_is_free.wait()

    def follow(self, runs: Sequence[str]) -> None:
        """R has more changes: go on with them. A generation that knows of others is given up, with what is made of it.

        To be called while nobody reads R (`rest`).
        """
        if self.generations.current is not None and not self.generations.current.fits(runs):
            self.wait()
        self.generations.follow(runs)

    def adopt(self) -> bool:
        """Use the newest generation that is ready; True if it is another one than before.

        Whoever has none yet looks for one here: the files are the start of a new process.
        """
        if self.is_busy:
            return False
        if self.generations.current is None:
            return self.generations.refresh()
        return self.generations.adopt()

    def look(self, private: Cache, load: Callable[[Callable[[], None]], bool] | None = None) -> None:
        """After a task: build what is due, or map what others have built.

        `load` puts all of R into a generation, if that is to be tried first; what it is given ends it.
        """
        if self.is_busy:
            return
        if self.generations.is_due(private):
            self._private_is_free.clear()
            if load is not None:
                self._master_is_free.clear()
            self._start(lambda: self._build(private, load))
        elif self.generations.is_outdated:
            self._start(self.generations.look)

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=self._run, args=(work,), name="semistream shared cache")
        try:
            thread.start()
        except RuntimeError as error:
            # The system has no thread for us.
            self._set_free()
            self.generations.note("building beside the tasks in", error)
            return
        self._thread = thread

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            # Nobody is there to hear of it, and a cache is soft state whatever is wrong with it.
            self.generations.note("building a generation in", error)
        finally:
            self._set_free()

    def _set_free(self) -> None:
        self._private_is_free.set()
        self._master_is_free.set()

    def _build(self, private: Cache, load: Callable[[Callable[[], None]], bool] | None) -> None:
        generations = self.generations
        with suppress(GivenUpError):
            with generations.building() as mine:
                loaded = mine and load is not None and load(self._check)
                self._master_is_free.set()
                if mine and not loaded:
                    generations.merge(private, self._private_is_free.set, self._check)
            self._private_is_free.set()
            self._check()
            generations.look()

    def _check(self) -> None:
        if self._given_up.is_set():
            raise GivenUpError

    def wait(self) -> None:
        """Wait for the end of what is being done."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Give up what is being built."""
        self._given_up.set()
        self.wait()
