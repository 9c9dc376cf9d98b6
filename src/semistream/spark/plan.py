"""One enrichment as a worker process needs to know it: a frozen value that travels with the task."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from semistream.errors import SchemaError, StoreError
from semistream.master.base import Master
from semistream.master.compatibility import misfits
from semistream.master.open import open_master
from semistream.operators.base import SemiStreamJoin
from semistream.operators.registry import open_join, resolve
from semistream.sealed import digest

#: part of an executor's budget that its worker processes share as one cache
SHARED_PART = 0.7


@dataclass(frozen=True)
class Dimension:
    """What to join with, how, and inside how many bytes.

    `version` and `fixed`, its identity, are those of a batch job, which sees one R from the first task to the last; a
    streaming query finds its version batch by batch (`versioned`). `options` are the algorithm's, as sorted pairs.
    `lineage` names the master data whatever its version; `stream` and `columns` are the schemas of the stream and of
    what is read from the master data as they were when the enrichment was described, as bytes that can travel.
    """

    name: str
    master: str
    on: tuple[tuple[str, str], ...]
    how: str
    select: tuple[str, ...] | None
    algorithm: str
    suffix: str
    options: tuple[tuple[str, Any], ...]
    memory: int
    tasks: int
    versioned: bool
    version: int | None = None
    fixed: str = ""
    lineage: str = ""
    stream: bytes = b""
    columns: bytes = b""
    fold_case: bool = False

    @property
    def shared_bytes(self) -> int:
        """Budget of the cache that the worker processes of an executor share; 0 if the algorithm keeps none."""
        return int(self.memory * SHARED_PART) if resolve(self.algorithm).shares_cache else 0

    @property
    def private_bytes(self) -> int:
        """Budget of one worker process."""
        return (self.memory - self.shared_bytes) // self.tasks

    @cached_property
    def stream_schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.stream))

    @cached_property
    def identity(self) -> str:
        """A name for all that this enrichment depends on but the version of R.

        Whatever outlives a task is found under it, together with the identity of that version, and under nothing less.
        """
        meaning = {**self.meaning, "memory": self.memory, "tasks": self.tasks}
        return digest(json.dumps(meaning, sort_keys=True).encode())

    @cached_property
    def meaning(self) -> dict[str, Any]:
        """What decides which rows come out, in plain values: all of the enrichment but its budget."""
        return {
            "master data": self.lineage or self.master,
            "on": [list(pair) for pair in self.on],
            "how": self.how,
            "select": None if self.select is None else list(self.select),
            "algorithm": self.algorithm,
            "suffix": self.suffix,
            "names without case": self.fold_case,
            "options": {name: _plain(value) for name, value in self.options},
            "stream": _columns(self.stream),
            "columns": _columns(self.columns),
        }

    def open_master(self, version: int | None) -> Master:
        """R in one version; refuses one that has not got the columns that this enrichment was described with."""
        master = open_master(self.master, [there for _, there in self.on], version=version)
        try:
            self._check(master)
        except BaseException:
            master.close()
            raise
        return master

    def _check(self, master: Master) -> None:
        if self.fixed and master.identity != self.fixed:
            raise StoreError(
                f"{self.master} was replaced after enrich had been called with it; call enrich again for the new data"
            )
        if not self.columns:
            return
        wrong = misfits(pa.ipc.read_schema(pa.py_buffer(self.columns)), master.schema)
        if wrong:
            which = f"version {master.version} of {self.master}" if self.versioned else self.master
            raise SchemaError(
                f"{which} does not fit the enrichment {self.name!r}, whose result was fixed when it was described: "
                f"{'; '.join(wrong)}. Build a version with these columns as they were, or start the query again with "
                "enrich described anew"
            )

    def open(self, version: int | None, budget: int | None = None) -> SemiStreamJoin:
        """The join of one worker process, inside its part of the budget unless told otherwise."""
        return self.join_with(self.open_master(version), budget)

    def join_with(self, master: Master, budget: int | None = None) -> SemiStreamJoin:
        """The join with master data that was opened for it, and is closed with it."""
        try:
            join = open_join(
                self.algorithm,
                master=master,
                on=dict(self.on),
                how=self.how,
                select=self.select,
                memory=budget or self.private_bytes,
                suffix=self.suffix,
                fold_case=self.fold_case,
                **dict(self.options),
            )
        except BaseException:
            master.close()
            raise
        join.owns_master = True
        return join


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | None) else repr(value)


def _columns(schema: bytes) -> list[str]:
    """A schema's columns in their order, each as text."""
    if not schema:
        return []
    found = pa.ipc.read_schema(pa.py_buffer(schema))
    return [f"{column.name}: {column.type}{'' if column.nullable else ' not null'}" for column in found]
