"""Page stores on a disk that does not hold all of them: whichever is needed last makes room for the next one.

A store that is removed is built again when a figure asks for it. So nothing depends on knowing all that figures will
ask for, only how often something is built twice.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from semistream.errors import ConfigError

#: a store takes about that much more than its tuples
_FRAME = 1.1
#: the file that every finished store has
_CURRENT = "CURRENT"


class Shelf:
    """The stores in a folder, together no larger than a limit.

    In a folder of one's own every store may be removed, in any other only those that were built meanwhile.
    """

    def __init__(self, folder: Path, limit_bytes: int, *, own: bool) -> None:
        if limit_bytes < 1:
            raise ConfigError(
                f"a limit of {limit_bytes} bytes for master data is out of range; allowed are sizes from 1"
            )
        self.folder, self.limit_bytes = folder, limit_bytes
        self._foreign = set() if own else set(self._stores())
        self._used: list[str] = []
        #: what figures to come will ask for, the next one first
        self.ahead: Sequence[frozenset[str]] = ()

    def _stores(self) -> list[str]:
        return [path.name for path in self.folder.iterdir() if (path / _CURRENT).exists()]

    def fetch(self, store: str, tuple_bytes: int, let_go: Callable[[str], None]) -> None:
        """A store is asked for: if it has to be built, others make room. `let_go` is told before one is removed."""
        if store in self._used:
            self._used.remove(store)
        self._used.append(store)
        if store in self._stores():
            return
        wanted = int(tuple_bytes * _FRAME)
        for victim in self._by_need(store):
            if sum(map(self._bytes, self._stores())) + wanted <= self.limit_bytes:
                return
            self._remove(victim, let_go)

    def clear(self, let_go: Callable[[str], None]) -> None:
        """Remove the stores that no figure to come asks for."""
        needed = frozenset().union(*self.ahead)
        for store in self._stores():
            if store not in needed and store not in self._foreign:
                self._remove(store, let_go)

    def _by_need(self, but: str) -> Iterable[str]:
        """Stores that may go, the one that is needed last first; of the same figure the one used longest ago."""

        def when(store: str) -> tuple[int, int]:
            figure = next((i for i, names in enumerate(self.ahead) if store in names), len(self.ahead))
            age = self._used[::-1].index(store) if store in self._used else len(self._used)
            return figure, age

        return sorted((s for s in self._stores() if s != but and s not in self._foreign), key=when, reverse=True)

    def _remove(self, store: str, let_go: Callable[[str], None]) -> None:
        let_go(store)
        # Without this file a store is no store: one that is half removed is not taken for a whole one.
        (self.folder / store / _CURRENT).unlink()
        shutil.rmtree(self.folder / store)

    def _bytes(self, store: str) -> int:
        return sum(path.stat().st_size for path in (self.folder / store).rglob("*") if path.is_file())
