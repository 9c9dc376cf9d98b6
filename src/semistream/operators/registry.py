"""Every operator by name, and the one way to open a join."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from semistream.errors import ConfigError, UnknownAlgorithmError
from semistream.master.open import MasterSource, open_master
from semistream.operators.base import SemiStreamJoin
from semistream.operators.cache_join import CacheJoin
from semistream.operators.hybrid_join import HybridJoin
from semistream.operators.inlj import IndexNestedLoopJoin
from semistream.operators.mesh_join import MeshJoin
from semistream.operators.opcache_join import OPCacheJoin
from semistream.operators.ordered_join import OrderedJoin
from semistream.operators.oxhybrid_join import OptimisedXHybridJoin
from semistream.operators.partition_join import PartitionJoin
from semistream.operators.pcache_join import PCacheJoin
from semistream.operators.rmesh_join import RMeshJoin
from semistream.operators.ssbj import SSBJ
from semistream.operators.ssij import SSIJ
from semistream.operators.ssj import SSJ
from semistream.operators.sweep_join import SweepJoin
from semistream.operators.xhybrid_join import XHybridJoin
from semistream.spec import JoinSpec, parse_bytes

OPERATORS: dict[str, type[SemiStreamJoin]] = {
    operator.name: operator
    for operator in (
        IndexNestedLoopJoin,
        OrderedJoin,
        PartitionJoin,
        SSIJ,
        MeshJoin,
        HybridJoin,
        XHybridJoin,
        OptimisedXHybridJoin,
        RMeshJoin,
        SSJ,
        CacheJoin,
        PCacheJoin,
        OPCacheJoin,
        SSBJ,
        SweepJoin,
    )
}


def resolve(name: str) -> type[SemiStreamJoin]:
    """The operator of a name or alias; an unknown name is answered with its neighbours."""
    wanted = str(name).lower().replace("-", "").replace("_", "")
    known = {alias: operator for operator in OPERATORS.values() for alias in (operator.name, *operator.aliases)}
    if wanted in known:
        return known[wanted]
    near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "see `semistream algorithms`"
    raise UnknownAlgorithmError(f"unknown algorithm {name!r}; {hint} Known are {', '.join(OPERATORS)}.")


def open_join(
    algorithm: str,
    *,
    master: MasterSource,
    on: str | Sequence[str] | Mapping[str, str],
    how: str = "inner",
    select: Sequence[str] | None = None,
    memory: str | int = "64MB",
    suffix: str = "_right",
    stream_schema: pa.Schema | None = None,
    fold_case: bool = False,
    **options: Any,
) -> SemiStreamJoin:
    """Open a semi-stream join.

    `master` is the path of a page store or of Parquet data, an Arrow table, or an opened `Master`; `on` names the
    key (one column, several, or {stream column: master column}); `select` the master columns wanted (all others
    are neither cached nor carried); `memory` the bytes the join may hold. With `stream_schema` the schemas are
    checked at once instead of at the first push. With `fold_case` names that differ in case only count as equal, so the
    suffix keeps them apart. `options` belong to the algorithm: see its class.
    """
    operator = resolve(algorithm)
    spec = JoinSpec.make(on, how, select, suffix, fold_case)
    budget = parse_bytes(memory)
    check_options(operator, options)
    opened = open_master(master, spec.master_on)
    try:
        join = operator(opened, spec, budget, **options)
    except BaseException:
        if opened is not master:
            opened.close()
        raise
    # An opened Master is its owner's to close.
    join.owns_master = opened is not master
    try:
        if stream_schema is not None:
            join.start(stream_schema)
    except BaseException:
        join.close()
        raise
    return join


def check_options(operator: type[SemiStreamJoin], options: Iterable[str]) -> None:
    """Refuse an option that the algorithm does not have."""
    allowed = _options(operator)
    for name in options:
        if name not in allowed:
            near = difflib.get_close_matches(name, allowed, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(sorted(allowed))}"
            raise ConfigError(f"{operator.name} has no option {name!r}; {hint}")


def _options(operator: type[SemiStreamJoin]) -> set[str]:
    names: set[str] = set()
    for kind in operator.__mro__:
        if "__init__" in vars(kind) and issubclass(kind, SemiStreamJoin):
            parameters = inspect.signature(kind.__init__).parameters.values()
            names |= {p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    return names
