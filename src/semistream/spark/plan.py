"""One enrichment as a worker process needs to know it: a frozen value that travels with the task."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from semistream.master.base import Master
from semistream.master.open import open_master
from semistream.operators.base import SemiStreamJoin
from semistream.operators.registry import open_join, resolve

#: part of an executor's budget that its worker processes share as one cache
SHARED_PART = 0.7


@dataclass(frozen=True)
class Dimension:
    """What to join with, how, and inside how many bytes.

    `version` is fixed for a batch job; a streaming query finds its version batch by batch (`versioned`), and master
    data without versions has neither. `options` are the algorithm's, as sorted pairs.
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

    @property
    def shared_bytes(self) -> int:
        """Budget of the cache that the worker processes of an executor share; 0 if the algorithm keeps none."""
        return int(self.memory * SHARED_PART) if resolve(self.algorithm).shares_cache else 0

    @property
    def private_bytes(self) -> int:
        """Budget of one worker process."""
        return (self.memory - self.shared_bytes) // self.tasks

    @property
    def signature(self) -> str:
        """A name for everything that cached rows depend on, but for the version of R."""
        told = json.dumps([self.master, self.on, self.how, self.select, self.algorithm, self.memory, self.tasks])
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    def open_master(self, version: int | None) -> Master:
        return open_master(self.master, [there for _, there in self.on], version=version)

    def open(self, version: int | None, budget: int | None = None) -> SemiStreamJoin:
        """The join of one worker process, inside its part of the budget unless told otherwise."""
        master = self.open_master(version)
        try:
            join = self._join(master, budget or self.private_bytes)
        except BaseException:
            master.close()
            raise
        join.owns_master = True
        return join

    def _join(self, master: Master, budget: int) -> SemiStreamJoin:
        return open_join(
            self.algorithm,
            master=master,
            on=dict(self.on),
            how=self.how,
            select=self.select,
            memory=budget,
            suffix=self.suffix,
            **dict(self.options),
        )
