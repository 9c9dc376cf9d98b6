"""Every algorithm, one line each."""

from __future__ import annotations

import difflib
from importlib import import_module

from semistream.engine.algorithm import Algorithm
from semistream.errors import UnknownAlgorithmError

#: the files of this package, in the order in which algorithms are listed
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


def _described(file: str) -> Algorithm:
    found: Algorithm = import_module(f"semistream.algorithms.{file}").ALGORITHM
    return found


ALGORITHMS: dict[str, Algorithm] = {each.name: each for each in map(_described, _FILES)}


def resolve(name: str) -> Algorithm:
    """The algorithm of a name or alias; an unknown name is answered with its neighbours."""
    wanted = str(name).lower().replace("-", "").replace("_", "")
    known = {alias: each for each in ALGORITHMS.values() for alias in (each.name, *each.aliases)}
    if wanted in known:
        return known[wanted]
    near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "see `semistream algorithms`"
    raise UnknownAlgorithmError(f"unknown algorithm {name!r}; {hint} Known are {', '.join(ALGORITHMS)}.")
