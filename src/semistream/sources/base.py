"""What a source of master data can do: describe itself, give all its rows, and those that changed since a position.

    with source.look() as scan:         one consistent look: a snapshot, a transaction
        scan.schema, scan.position
        scan.rows()                     everything
        scan.changes(since)             what changed, or the reason why only a rebuild will do
        scan.keys()                     of a database: for what a watermark cannot see, deletes

Databases are sources of builds and refreshes only. No batch looks into one: a live table cannot give a replay the rows
that it had.
"""

from __future__ import annotations

import json
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import pyarrow as pa

from semistream.columns.plain import plain_type
from semistream.errors import ConfigError, SemiStreamError, SourceError
from semistream.master.base import require_columns
from semistream.sources.address import Address
from semistream.sources.secrets import Secrets
from semistream.sources.where import Condition, expression

BATCH_BYTES = 16 << 20
BATCH_ROWS = 1 << 16
DELETES = ("none", "reconcile")


@dataclass(frozen=True)
class Wanted:
    """What is read of a source, and how its changes are found."""

    on: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    where: tuple[Condition, ...] = ()
    watermark: str | None = None
    deletes: str | None = None
    lag: str | float | None = None

    def __post_init__(self) -> None:
        if self.watermark is None and (self.deletes is not None or self.lag is not None):
            raise ConfigError("deletes and lag say how a watermark is used; give watermark, or leave them out")
        if self.watermark is not None and self.deletes not in DELETES:
            said = "is missing" if self.deletes is None else f"{self.deletes!r} is unknown"
            raise ConfigError(
                f"deletes {said}: a watermark cannot see rows that were deleted. 'none': there are none, or they may "
                "stay; 'reconcile': the keys of the source are read and compared at every refresh"
            )

    def chosen(self, schema: pa.Schema, name: str) -> list[str]:
        """The columns to read, in the order of the source: those asked for, and the key."""
        need = [*self.on, *(self.columns or ()), *(one.column for one in self.where)]
        need += [] if self.watermark is None else [self.watermark]
        require_columns(schema, need, name)
        return [one for one in schema.names if self.columns is None or one in {*self.on, *self.columns}]


@dataclass(frozen=True)
class Changes:
    """Changed rows: with `_change_type`, or as states: all rows that the keys in `touched` have, or some keys more."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    touched: Iterator[pa.RecordBatch] | None = None


@dataclass(frozen=True)
class Rebuild:
    """Changes cannot be told: all rows have to be read again."""

    reason: str


@dataclass(frozen=True)
class Position:
    """How far a source has been read: what it is, and a mark of its own; `step` counts, so that positions have order.

    The mark tells nothing of how the source is reached, and is kept in the manifest of the store.
    """

    digest: str
    mark: Mapping[str, Any] = field(default_factory=dict)
    step: int = 0

    def __str__(self) -> str:
        body = json.dumps({"source": self.digest, **self.mark}, sort_keys=True, separators=(",", ":"))
        return f"{self.step:09d} {body}"

    @staticmethod
    def read(text: object) -> Position | None:
        """A position as it was written; None for one that somebody else wrote."""
        if not isinstance(text, str):
            return None
        step, _, body = text.partition(" ")
        try:
            mark = json.loads(body)
            return Position(str(mark.pop("source")), mark, int(step))
        except (ValueError, KeyError, AttributeError):
            return None


class Scan(ABC):
    """One consistent look at a source."""

    schema: pa.Schema
    mark: Mapping[str, Any]
    #: when what is seen was made, in seconds since 1970, as far as the source tells
    committed_at: float | None = None
    #: rows that `rows` will give, if known
    n_rows: int | None = None
    #: whether changes may be gone where all rows can still be read
    loses_changes = False

    @abstractmethod
    def rows(self) -> Iterator[pa.RecordBatch]:
        """All rows that are wanted, in batches of moderate size."""

    @abstractmethod
    def changes(self, since: Mapping[str, Any]) -> Changes | Rebuild:
        """What changed since a mark of this source."""

    def unchanged(self, since: Mapping[str, Any]) -> bool:
        """Whether a mark tells that nothing has changed since."""
        return dict(since) == dict(self.mark)


class Source(ABC):
    """A table somewhere. Opening it reaches nothing; `look` does."""

    #: bytes of rows that are handed over at once, where that can be told beforehand
    batch_bytes = BATCH_BYTES
    #: ends scans that are under way, from another thread
    stop: threading.Event | None = None

    def __init__(self, address: Address, wanted: Wanted, secrets: Secrets) -> None:
        self.address, self.wanted, self.secrets = address, wanted, secrets
        self.check()

    def check(self) -> None:
        """Refuse what can be told to be wrong without reaching the source."""
        if self.wanted.watermark is not None:
            raise ConfigError(f"{self.address.shown} is no table of a database: leave the watermark out")

    def with_columns(self, columns: Sequence[str]) -> Self:
        """The same source, read for these columns."""
        same = type(self)(self.address, replace(self.wanted, columns=tuple(columns)), self.secrets)
        same.batch_bytes, same.stop = self.batch_bytes, self.stop
        return same

    @property
    def name(self) -> str:
        """For messages and manifests."""
        filters = " and ".join(map(str, self.wanted.where))
        return self.secrets.redact(self.address.shown) + (f" where {filters}" if filters else "")

    @property
    def digest(self) -> str:
        return self.address.digest

    @abstractmethod
    def look(self) -> AbstractContextManager[Scan]:
        """One look, which ends with the block."""

    def scrubbed(self, error: BaseException | str) -> str:
        """What an error says, as one line without credentials."""
        text = re.sub(r"[a-z]+://[^\s@/]*@", "", " ".join(str(error).split()))
        return self.secrets.redact(text) or type(error).__name__

    @contextmanager
    def errors_named(self) -> Iterator[None]:
        """Turn the errors of a driver into one line that names the source: drivers quote addresses with passwords."""
        try:
            yield
        except SemiStreamError as error:
            raise type(error)(self.scrubbed(error)).with_traceback(None) from None
        except Exception as error:
            raise SourceError(f"{self.name} cannot be read: {self.scrubbed(error)}") from None

    def guarded(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches; errors name the source."""
        try:
            while True:
                if self.stop is not None and self.stop.is_set():
                    raise SourceError(f"reading {self.name} was ended")
                with self.errors_named():
                    batch = next(batches, None)
                if batch is None:
                    return
                yield batch
        finally:
            # Whoever reads may stop early; what reads for them must not go on.
            if isinstance(batches, Generator):
                batches.close()


def filtered(
    batches: Iterator[pa.RecordBatch], where: Sequence[Condition], read: pa.Schema, given: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Batches with the columns of `read`, filtered and then as `given`: its columns, its types, moderate sizes."""
    condition = expression(where, read)
    for batch in batches:
        batch = as_schema(batch, read)
        if condition is not None:
            batch = batch.filter(condition)
        for start in range(0, batch.num_rows, BATCH_ROWS):
            yield as_schema(batch.slice(start, BATCH_ROWS), given)


def as_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of a schema in its order and its types; a value that would not survive the cast is an error."""
    arrays = []
    for one in schema:
        array = batch.column(one.name)
        arrays.append(array if array.type == one.type else array.cast(one.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Without what only tells how a reader keeps its values: large offsets, views, notes on columns."""
    kinds = [one.type if pa.types.is_nested(one.type) else plain_type(one.type) for one in schema]
    return pa.schema([pa.field(one.name, kind, one.nullable) for one, kind in zip(schema, kinds, strict=True)])


def needs_package(kind: str, error: ImportError) -> ConfigError:
    return ConfigError(f"a {kind} source needs another package ({error}): pip install 'semistream[{kind}]'")
