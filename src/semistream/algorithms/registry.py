"""Every algorithm, one line each. A file is imported when its algorithm is asked for: a join runs one of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, MutableMapping
from importlib import import_module

from semistream.engine.algorithm import Algorithm
from semistream.errors import UnknownAlgorithmError

#: the files of this package, in the order in which algorithms are listed; without underscores they are their names
_FILES = (
    "inlj",
    "ordered_join",
    "partition_join",
    "ssij",
    "mesh_join",
    "hybrid_join",
    "xhybrid_join",
    "oxhybrid_join",
    "rmesh_join",
    "ssj",
    "cache_join",
    "pcache_join",
    "opcache_join",
    "ssbj",
    "sweep_join",
)


class _Registry(MutableMapping[str, Algorithm]):
    """Records by name, in order; others may be added."""

    def __init__(self) -> None:
        self._files = {file.replace("_", ""): file for file in _FILES}
        self._records: dict[str, Algorithm | None] = dict.fromkeys(self._files)

    def __getitem__(self, name: str) -> Algorithm:
        found = self._records[name]
        if found is None:
            found = import_module(f"semistream.algorithms.{self._files[name]}").ALGORITHM
            assert found.name == name, f"the file of {found.name} must be called like it"
            self._records[name] = found
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._records

    def __setitem__(self, name: str, record: Algorithm) -> None:
        self._records[name] = record

    def __delitem__(self, name: str) -> None:
        del self._records[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)


ALGORITHMS: MutableMapping[str, Algorithm] = _Registry()


def resolve(name: str) -> Algorithm:
    """The algorithm of a name or alias; an unknown name is answered with its neighbours."""
    wanted = str(name).lower().replace("-", "").replace("_", "")
    if wanted in ALGORITHMS:
        return ALGORITHMS[wanted]
    known = {alias: each for each in ALGORITHMS.values() for alias in (each.name, *each.aliases)}
    if wanted in known:
        return known[wanted]
    near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "see `semistream algorithms`"
    raise UnknownAlgorithmError(f"unknown algorithm {name!r}; {hint} Known are {', '.join(ALGORITHMS)}.")
