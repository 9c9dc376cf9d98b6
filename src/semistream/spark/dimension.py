"""One enrichment as a worker process needs to know it: a frozen value that travels with the task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from semistream.algorithms.registry import resolve
from semistream.engine.join import SemiStreamJoin
from semistream.errors import SchemaError, StoreError
from semistream.master.base import Master
from semistream.master.compatibility import misfits
from semistream.master.open import open_master
from semistream.master.reading import Reading, choose_reading
from semistream.planner.open import check_request
from semistream.planner.policy import Policy
from semistream.sealed import digest
from semistream.spark.missing import Missing
from semistream.spec import JoinRequest, JoinSpec

#: what an enrichment has unless it says otherwise: memory of an executor, algorithm
DEFAULT_MEMORY, DEFAULT_ALGORITHM = "256MB", "sweepjoin"
#: part of an executor's budget that its worker processes share as one cache
SHARED_PART = 0.7


@dataclass(frozen=True)
class Dimension:
    """What to join with, how, and inside how many bytes.

    `request` is what the caller asked for; its memory is that of an executor, which the executor's `tasks` divide.
    `policy` holds the thresholds of "auto".
    `version` and `fixed`, its identity, are those of a batch job, which sees one R from the first task to the last; a
    streaming query finds its version batch by batch (`versioned`). `lineage` names the master data whatever its
    version; `stream` and `columns` are the schemas of the stream and of what is read from the master data as they were
    when the enrichment was described, as bytes that can travel.
    """

    name: str
    master: str
    request: JoinRequest
    tasks: int
    versioned: bool
    policy: Policy = field(default_factory=Policy)
    version: int | None = None
    fixed: str = ""
    lineage: str = ""
    stream: bytes = b""
    columns: bytes = b""
    #: a file in the query's checkpoint for the operator that "auto" has found by trial; None: there is no checkpoint
    choice: str | None = None
    #: what becomes of tuples without a match, if that is more than `how` says
    missing: Missing = field(default_factory=Missing)

    def with_algorithm(self, algorithm: str) -> Dimension:
        """The same enrichment by another algorithm."""
        return replace(self, request=replace(self.request, algorithm=algorithm))

    @property
    def shared_bytes(self) -> int:
        """Budget of the cache that the worker processes of an executor share; 0 if the algorithm keeps none."""
        request = self.request
        return int(request.memory_bytes * SHARED_PART) if resolve(request.algorithm).shares_cache else 0

    @property
    def private_bytes(self) -> int:
        """Budget of one worker process."""
        return (self.request.memory_bytes - self.shared_bytes) // self.tasks

    @cached_property
    def stream_schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.stream))

    @cached_property
    def identity(self) -> str:
        """A name for all that this enrichment depends on but the version of R.

        Whatever outlives a task is found under it, together with the identity of that version, and under nothing less.
        """
        request = self.request
        meaning = {**self.meaning, "memory": request.memory_bytes, "tasks": self.tasks, "reads": request.reads}
        return digest(json.dumps(meaning, sort_keys=True).encode())

    @cached_property
    def meaning(self) -> dict[str, Any]:
        """What decides which rows come out, in plain values: all of the enrichment but its budget and reads."""
        spec, options = self.request.spec, self.request.options
        return {
            "master data": self.lineage or self.master,
            "on": [list(pair) for pair in spec.pairs],
            "how": spec.how,
            "select": None if spec.select is None else list(spec.select),
            "algorithm": self.request.algorithm,
            "suffix": spec.suffix,
            "names without case": spec.fold_case,
            "options": {name: _plain(options[name]) for name in sorted(options)},
            "stream": _columns(self.stream),
            "columns": _columns(self.columns),
            **({} if spec.valid is None else {"as of": spec.as_of, "valid": list(spec.valid)}),
            **({"on missing": self.missing.meaning} if self.missing.is_apart else {}),
        }

    def open_master(self, version: int | None) -> Master:
        """R in one version; refuses one that has not got the columns that this enrichment was described with."""
        master = open_master(self.master, self.request.spec.master_on, version=version)
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

    def reading(self, master: Master) -> Reading:
        """How this machine best reads R: all of the executor's budget is taken from what it can keep of R."""
        return choose_reading(master, self.request.reads, self.request.memory_bytes)

    def join_with(self, master: Master, budget: int | None = None, reading: Reading | None = None) -> SemiStreamJoin:
        """The join with master data that was opened for it, and is closed with it."""
        request = replace(self.request, memory_bytes=budget or self.private_bytes)
        return join_owning(master, request, reading, follows=True)


def join_owning(
    master: Master, request: JoinRequest, reading: Reading | None = None, *, follows: bool = False
) -> SemiStreamJoin:
    """A join by the algorithm that the request names, which closes the master data with itself."""
    try:
        algorithm, options, size = resolve(request.algorithm), request.options, request.memory_bytes
        reading = choose_reading(master, request.reads, size) if reading is None else reading
        join = SemiStreamJoin(algorithm, master, request.spec, size, options, direct=reading.direct, follows=follows)
    except BaseException:
        master.close()
        raise
    join.owns_master = True
    return join


def checked(request: JoinRequest) -> JoinRequest:
    """The request with its algorithm's own name; refuses an unknown algorithm and options that it does not take."""
    # How long a tuple may wait is a matter of micro-batches on Spark, so every algorithm may be given that.
    check_request(replace(request, max_delay_s=None))
    return request if request.is_auto else replace(request, algorithm=resolve(request.algorithm).name)


def request_meant(meaning: Mapping[str, Any], memory_bytes: int) -> JoinRequest:
    """The request behind the `meaning` of a dimension, inside other bytes."""
    spec = JoinSpec.make(
        dict(meaning["on"]),
        meaning["how"],
        meaning["select"],
        meaning["suffix"],
        meaning["names without case"],
        meaning.get("as of"),
        meaning.get("valid"),
    )
    return JoinRequest(spec, memory_bytes, meaning["algorithm"], meaning["options"])


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | None) else repr(value)


def _columns(schema: bytes) -> list[str]:
    """A schema's columns in their order, each as text."""
    if not schema:
        return []
    found = pa.ipc.read_schema(pa.py_buffer(schema))
    return [f"{column.name}: {column.type}{'' if column.nullable else ' not null'}" for column in found]
