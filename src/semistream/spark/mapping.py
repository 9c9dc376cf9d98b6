"""`mapInArrow` for any column names, under a name that says in the plan what is done.

`DataFrame.explain` shows a Python function by its `__name__`: here the master data, the key, the algorithm.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from semistream.errors import ConfigError
from semistream.spark.dimension import Dimension
from semistream.spark.missing import Letters
from semistream.spec import AUTO

Batches = Iterator[pa.RecordBatch]


def map_batches(
    df: DataFrame,
    work: Callable[[Batches], Batches],
    schema: StructType | str,
    label: str,
    joins: frozenset[str] = frozenset(),
    mail: Mail | None = None,
) -> DataFrame:
    """What `work` makes of the batches of each partition; columns of the result go by their place.

    `joins` are the identities of the joins that the work opens, if it opens them before it asks for a batch: only such
    work can be done in one process with more of its kind (see `fusing.py`). `mail`: the work also gives dead letters,
    apart, and can be done by `write` only.
    """
    names = df.columns
    if _plain(names):
        return df.mapInArrow(Work(label, work, None, joins, mail), schema)
    # mapInArrow looks its columns up by name, as an expression: dots and backticks would mean something.
    places = [f"c{i}" for i in range(len(names))]
    return df.toDF(*places).mapInArrow(Work(label, work, tuple(names), joins, mail), schema)


def label_of(dimensions: Sequence[Dimension], *notes: str) -> str:
    """What a plan shows for enrichments: `enrich(/data/r on k, left, sweepjoin, 256MB, version 3)`."""
    return f"enrich({'; '.join(_described(dimension, notes) for dimension in dimensions)})"


def _described(dimension: Dimension, notes: Sequence[str]) -> str:
    request = dimension.request
    on = " and ".join(here if here == there else f"{here} = {there}" for here, there in request.spec.pairs)
    version = []
    if dimension.versioned:
        version = ["version of the batch" if dimension.version is None else f"version {dimension.version}"]
    algorithm = "auto by trial" if request.is_auto else request.algorithm
    parts = [f"{dimension.master} on {on}", request.spec.how, algorithm, _size(request.memory_bytes)]
    if request.spec.history is not None:
        parts.insert(1, request.spec.history)
    reads = [] if request.reads == AUTO else [f"reads {request.reads}"]
    return ", ".join([*parts, *version, *reads, *dimension.missing.notes(), *notes])


def _size(n_bytes: int) -> str:
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if n_bytes >= scale:
            return f"{n_bytes / scale:.4g}{unit}"
    return f"{n_bytes}B"


def _plain(names: Sequence[str]) -> bool:
    """Whether Spark finds every column under its name, written as it is."""
    alike = len({name.lower() for name in names}) < len(names)
    return not alike and not any(re.search(r"[.`]|^\*?$", name) for name in names)


@runtime_checkable
class Narrowing(Protocol):
    """Work that can leave out columns of its result."""

    def narrowed(self, wanted: Set[int]) -> tuple[Self, tuple[int, ...]]:
        """The work without columns that are not wanted, and the places of those that it still gives."""

    @property
    def joins(self) -> frozenset[str]:
        """See `map_batches`."""

    def __call__(self, batches: Batches) -> Batches: ...


@dataclass(frozen=True)
class Mail:
    """Dead letters of an enrichment: its name, their table, and their columns as an Arrow schema in bytes."""

    name: str
    letters: Letters
    schema: bytes


class Work:
    """A function with a name of its own that travels to the workers."""

    def __init__(
        self,
        label: str,
        work: Callable[[Batches], Batches],
        names: tuple[str, ...] | None,
        joins: frozenset[str],
        mail: Mail | None = None,
    ) -> None:
        self.__name__ = label
        self.joins = joins
        self.mail = mail
        self._work = work
        self._names = names

    def narrowed(self, wanted: Set[int], columns: int) -> tuple[Work, tuple[int, ...]]:
        """The same without those of its columns that are not wanted, if it can, and the places of what is left."""
        if not isinstance(self._work, Narrowing):
            return self, tuple(range(columns))
        work, given = self._work.narrowed(wanted)
        return Work(self.__name__, work, self._names, work.joins, self.mail), given

    def __call__(self, batches: Batches) -> Batches:
        if self.mail is not None:
            raise ConfigError(
                f"{self.__name__} has dead letters, which only semistream.spark.write can put into their table once "
                "per micro-batch: write the enriched DataFrame with it, or choose another on_missing"
            )
        return self.with_letters(batches)

    def with_letters(self, batches: Batches) -> Batches:
        """The same where the dead letters among the batches are told apart (`is_apart`)."""
        if self._names is None:
            return self._work(batches)
        return self._work(batch.rename_columns(list(self._names)) for batch in batches)
