"""What a shard leaves behind after each micro-batch that it took part in: one record, first writer wins.

Beside Spark's own files in the checkpoint:

    <checkpoint>/semistream/<enrichment>/
      binding                            to which enrichment the records belong, and into how many shards it is divided
      s00003.head                        the newest record of shard 3: its number, its checksum, how many wait in it
      s00003-b000000000012-0.record      shard 3 after batch 12: waiting tuples (Arrow), positions (JSON)
      finish                             while the query only finishes what is there (availableNow)

All but the last are sealed (`sealed.py`). A record names its predecessor by checksum, and the head names the newest
one, so a record that was lost, damaged or put back is noticed before a tuple is joined:

    head -> record n -> record n-1          those two are kept: n to go on from, n-1 to replay the batch of n

A record is put in place before its head, so after a crash the head may be one behind, and only one.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.engine.snapshot import Snapshot
from semistream.errors import ConfigError, SemiStreamError, StoreError
from semistream.sealed import digest, folder_lock, put_file, read_sealed, seal, sealed, sync, unseal

_FORMAT = 1
#: the folder for records in a checkpoint
FOLDER = "semistream"
BINDING, FINISH = "binding", "finish"
#: the last column of parked tuples: the codes of their keys (`parking.py`)
CODE_COLUMN = "__code"
_REMEDY = "restore the checkpoint from a backup, or start the query with another one"
_STALE_SECONDS = 3600.0
_NAME = re.compile(r"s(\d{5})-b(\d{12})-(\d)\.record")


@dataclass(frozen=True)
class Binding:
    """What the records of a folder belong to.

    `meaning` is all that decides which rows come out (`Dimension.meaning`); what waits has been joined in part, so it
    cannot go on under another one.
    """

    name: str
    master: str
    meaning: dict[str, Any]
    shards: int
    #: under which versions of R are kept for these records, whatever their enrichment is called
    token: str

    @property
    def parks(self) -> bool:
        """Whether those that wait are parked until R has their key, and have met no row of it yet."""
        return bool(self.meaning.get("on missing", {}).get("waits"))

    @property
    def identity(self) -> str:
        return digest(json.dumps([self.meaning, self.shards], sort_keys=True).encode())

    def changes(self, other: Mapping[str, Any]) -> list[str]:
        """What is not as it was, in words."""
        found = []
        # What only one of them has, such as the columns of an as-of join, is a change too.
        for what in {**self.meaning, **other}:
            before, now = self.meaning.get(what), other.get(what)
            if before != now:
                found.append(f"{what} was {_short(before)}, now it is {_short(now)}")
        return found


@dataclass(frozen=True)
class Record:
    """How a shard left a micro-batch: what waits, since when, and with which version of R and which budget.

    `writer` names the run of the query and the call of `enrich` that wrote it. `part` is 0, or 1 for what is left by
    an operator who has drained the shard after its batch. `master` is the identity of R.
    """

    query: str
    enrichment: str
    writer: tuple[str, str]
    batch: int
    shard: int
    sequence: int
    predecessor: str
    version: int | None
    master: str
    private_bytes: int
    rows_in: int
    saved_at: float
    #: [tuples, time of arrival], oldest first
    arrivals: list[list[float]]
    snapshot: Snapshot
    #: the last tick that came by
    tick: int = 0
    part: int = 0

    @property
    def waiting(self) -> int:
        return 0 if self.snapshot.tuples is None else self.snapshot.tuples.num_rows

    @property
    def parked(self) -> pa.Table:
        """The tuples that wait, as they came in the stream, where they are parked."""
        table = self.snapshot.tuples
        if table is None or table.column_names[-1] != CODE_COLUMN:
            raise StoreError(f"the record of batch {self.batch}, shard {self.shard} holds no parked tuples: {_REMEDY}")
        return table.select(range(table.num_columns - 1))

    def to_bytes(self) -> tuple[bytes, str]:
        """The content of its file, and the checksum by which others name it."""
        fields = {name: value for name, value in self.__dict__.items() if name != "snapshot"} | {"format": _FORMAT}
        return seal(Snapshot({**self.snapshot.state, "carry": fields}, self.snapshot.tuples).to_bytes())

    @staticmethod
    def from_bytes(raw: bytes) -> tuple[Record, str]:
        content, name = unseal(raw)
        snapshot = Snapshot.from_bytes(content)
        state = dict(snapshot.state)
        fields = _understood(state.pop("carry"))
        fields["writer"] = tuple(fields["writer"])
        return Record(**fields, snapshot=Snapshot(state, snapshot.tuples)), name


@dataclass(frozen=True)
class Head:
    """The newest record of a shard; `keeps` is the oldest batch that a replay may still ask for."""

    sequence: int = 0
    batch: int = -1
    name: str = ""
    waiting: int = 0
    keeps: int = -1
    tick: int = 0
    #: when the oldest of those that wait came, and the identity of R then
    since: float = 0.0
    master: str = ""


@dataclass(frozen=True)
class Kept:
    """A record as it lies in its file."""

    record: Record
    path: Path
    #: the checksum by which its successor and the head name it
    name: str


class Records:
    """The records of one enrichment, in a folder inside the query's checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def checkpoint(self) -> Path:
        return self.folder.parent.parent

    # ----------------------------------------------------------------------------- binding, on the driver

    def bind(self, name: str, master: str, meaning: Mapping[str, Any], shards: int | None, default: int) -> Binding:
        """Make this folder the enrichment's; refuses one with records that it cannot go on with."""
        # As it will be read back: JSON knows no tuples.
        meaning = json.loads(json.dumps(meaning))
        found = self.find_binding()
        if found is None:
            return self._bind_first(Binding(name, master, dict(meaning), shards or default, secrets.token_hex(8)))
        if shards is not None and shards != found.shards:
            raise ConfigError(
                f"shards={shards}, but this checkpoint divides the stream into {found.shards}; leave shards out, "
                "or start with another checkpoint"
            )
        changes = found.changes(meaning)
        for shard in range(found.shards):
            self.shard(shard).check()
        if changes and (self.waiting() or not all_committed(self.checkpoint)):
            raise ConfigError(
                f"the checkpoint {self.checkpoint} holds tuples that wait in the enrichment {found.name!r}, and it is "
                f"not the same any more: {'; '.join(changes)}. Start the query as it was, or finish what waits with "
                f"'semistream carry drain {self.checkpoint}', or use another checkpoint"
            )
        if changes:
            found = replace(found, meaning=dict(meaning), master=master)
            self._write(BINDING, asdict(found))
        return found

    def _bind_first(self, binding: Binding) -> Binding:
        others = [other.folder.name for other in all_records(self.checkpoint) if other.folder != self.folder]
        if numbered(self.checkpoint / "offsets"):
            begun = f"was begun with {', '.join(map(repr, others))}" if others else "was begun without it"
            raise ConfigError(
                f"the checkpoint {self.checkpoint} holds batches of a query, and no records of an enrichment named "
                f"{binding.name!r}: it {begun}, or they were removed. Go on under the same name, rename it with "
                f"'semistream carry rebind', or use another checkpoint"
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{self.folder} cannot be made ({error.strerror})") from error
        for shard in range(binding.shards):
            self.shard(shard).begin()
        self._write(BINDING, asdict(binding))
        return binding

    def find_binding(self) -> Binding | None:
        path = self.folder / BINDING
        try:
            return Binding(**_understood(read_sealed(path)[0]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise StoreError(f"{path} cannot be read ({error}): {_REMEDY}") from error

    def binding(self) -> Binding:
        found = self.find_binding()
        if found is None:
            raise StoreError(f"{self.folder / BINDING} is missing: {_REMEDY}")
        return found

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        put_file(self.folder / name, sealed({**content, "format": _FORMAT})[0], replace=True)

    def rename(self, name: str) -> Records:
        """The same records for an enrichment of another name."""
        self.require_rest()
        binding = self.binding()
        target = records_folder(self.checkpoint, name)
        if target.exists():
            raise ConfigError(f"{target} exists: the checkpoint has an enrichment named {name!r} already")
        self._write(BINDING, asdict(replace(binding, name=name)))
        os.rename(self.folder, target)
        sync(target.parent)
        return Records(target)

    def require_rest(self) -> None:
        """Refuse to go on while a batch is unfinished."""
        if not all_committed(self.checkpoint):
            raise ConfigError(
                f"the last batch of {self.checkpoint} is not finished, and will be attempted again: "
                "start the query, let it finish a batch and stop it first"
            )

    # ------------------------------------------------------------------------------------- for every task

    def check_query(self, query: str) -> None:
        """Refuse a query whose own checkpoint this is not."""
        path = self.checkpoint / "metadata"
        try:
            owner = str(json.loads(path.read_text(encoding="utf-8"))["id"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"checkpoint={str(self.checkpoint)!r} is not the checkpoint of the query {query} ({path}: {error}); "
                "give enrich the checkpointLocation that the query is started with"
            ) from error
        if owner != query:
            raise ConfigError(
                f"checkpoint={str(self.checkpoint)!r} belongs to the query {owner}, this is {query}: what waits can "
                "belong to one query only. Describe an enrichment for each query, with the query's own checkpoint"
            )

    def shard(self, number: int) -> ShardRecords:
        return ShardRecords(self.folder, number)

    def shards(self) -> list[ShardRecords]:
        return [self.shard(number) for number in range(self.binding().shards)]

    def waiting(self) -> int:
        """Tuples that wait in all shards."""
        return sum(shard.head().waiting for shard in self.shards())

    def require_tick(self, tick: int) -> None:
        """Refuse records that have not seen a tick of which the query's log says that its batch is done."""
        for shard in self.shards():
            head = shard.head()
            if head.tick < tick:
                raise StoreError(
                    f"the query {self.checkpoint} has finished the batch of tick {tick}, but the records of shard "
                    f"{shard.shard} in {self.folder} end at tick {head.tick}: they were put back from an older copy, "
                    f"or the sink took a batch without reading all of it; {_REMEDY}"
                )

    def keeps(self) -> int:
        """The oldest batch that some shard may still need: for what waits, or for a replay."""
        return min(shard.head().keeps for shard in self.shards())

    @property
    def finishing(self) -> bool:
        """Whether the query is to end, so that waiting for more tuples to share a scan with is no use."""
        return (self.folder / FINISH).exists()

    def set_finishing(self, on: bool) -> None:
        if on:
            (self.folder / FINISH).touch()
        else:
            (self.folder / FINISH).unlink(missing_ok=True)


class ShardRecords:
    """The chain of one shard's records."""

    def __init__(self, folder: Path, shard: int) -> None:
        self.folder = folder
        self.shard = shard

    @property
    def _head_path(self) -> Path:
        return self.folder / f"s{self.shard:05d}.head"

    def path(self, batch: int, part: int = 0) -> Path:
        return self.folder / f"s{self.shard:05d}-b{batch:012d}-{part}.record"

    def begin(self) -> None:
        """Make the head of a shard that has no record."""
        put_file(self._head_path, _sealed_head(Head()), replace=True)

    def head(self) -> Head:
        path = self._head_path
        try:
            return Head(**_understood(read_sealed(path)[0]))
        except (OSError, ValueError, TypeError) as error:
            raise StoreError(f"{path} cannot be read ({error}): {_REMEDY}") from error

    def _files(self) -> dict[tuple[int, int], Path]:
        found = {}
        for path in self.folder.glob(f"s{self.shard:05d}-b*.record"):
            match = _NAME.fullmatch(path.name)
            if match is not None:
                found[int(match[2]), int(match[3])] = path
        return found

    def newest(self) -> Kept | None:
        """The last record, after checking that it is the last."""
        # The head first: a record that comes into place meanwhile is one more than it says, which is allowed.
        head = self.head()
        files = self._files()
        if not files:
            if head.sequence:
                raise StoreError(
                    f"{self.path(head.batch)} is missing, which holds {head.waiting} waiting tuples: {_REMEDY}"
                )
            return None
        kept = _read(files[max(files)])
        record = kept.record
        same = record.sequence == head.sequence and kept.name == head.name
        next_one = record.sequence == head.sequence + 1 and record.predecessor == head.name
        if not same and not next_one:
            if record.sequence < head.sequence:
                raise StoreError(f"the record after {kept.path} is missing: {_REMEDY}")
            raise StoreError(f"{kept.path} is not the record that {self._head_path} names: {_REMEDY}")
        if record.shard != self.shard or self.path(record.batch, record.part) != kept.path:
            raise StoreError(f"{kept.path} is the record of batch {record.batch}, shard {record.shard}: {_REMEDY}")
        return kept

    def before(self, kept: Kept) -> Kept | None:
        """The record that another one followed."""
        if kept.record.sequence == 1:
            return None
        files = self._files()
        earlier = [key for key in files if key < (kept.record.batch, kept.record.part)]
        found = _read(files[max(earlier)]) if earlier else None
        if found is None or found.name != kept.record.predecessor:
            raise StoreError(f"the record before {kept.path} is missing: {_REMEDY}")
        return found

    def check(self) -> None:
        """Refuse a chain that is not whole."""
        self.newest()

    def mend(self, kept: Kept, previous: Kept | None) -> None:
        """Let the head name a record whose writer died before it could."""
        with folder_lock(self.folder):
            if self.head().sequence == kept.record.sequence - 1:
                put_file(self._head_path, _sealed_head(_head_of(kept.record, kept.name, previous)), replace=True)

    def publish(self, record: Record, previous: Kept | None) -> str:
        """Make a record the one and only of its batch and return its name; refuses if there is one already."""
        path = self.path(record.batch, record.part)
        content, name = record.to_bytes()
        head = _head_of(record, name, previous)
        with folder_lock(self.folder):
            files = self._files()
            last = max(files, default=None)
            if last != (None if previous is None else (previous.record.batch, previous.record.part)) or not put_file(
                path, content, replace=False
            ):
                raise SemiStreamError(
                    f"another attempt at batch {record.batch} has left its record for shard {record.shard}; "
                    "this one is given up, and the next will give the same rows as that one"
                )
            put_file(self._head_path, _sealed_head(head), replace=True)
            self._drop({key: found for key, found in files.items() if key != last})
        return head.name

    def _drop(self, files: Mapping[tuple[int, int], Path]) -> None:
        """Remove what no replay can ask for any more; what cannot be removed now goes with the next record."""
        with suppress(OSError):
            for path in files.values():
                path.unlink(missing_ok=True)
            for path in self.folder.glob(f".s{self.shard:05d}*"):
                if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                    path.unlink(missing_ok=True)


def all_committed(checkpoint: Path) -> bool:
    """Whether every batch that a query has begun is done, so that none is attempted again."""
    begun, done = (numbered(checkpoint / name) for name in ("offsets", "commits"))
    return max(begun, default=-1) <= max(done, default=-1)


def done_before(checkpoint: Path) -> int | None:
    """The batch before which a query needs no version of R any more; None if there is no such query any more."""
    if not checkpoint.exists():
        return None
    if any(records.waiting() for records in all_records(checkpoint) if not records.binding().parks):
        return 0
    return max(numbered(checkpoint / "commits"), default=-1) + 1


def all_records(checkpoint: Path) -> list[Records]:
    """The records of every enrichment in a checkpoint."""
    return [Records(path.parent) for path in sorted((checkpoint / FOLDER).glob(f"*/{BINDING}"))]


def records_folder(checkpoint: Path, name: str) -> Path:
    """Where the records of an enrichment are; different names have different folders."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    if plain != name or plain.startswith("."):
        plain = f"{plain.lstrip('.')}-{digest(name.encode())[:8]}"
    return checkpoint / FOLDER / plain


def remember(path: Path, content: Mapping[str, object]) -> dict[str, Any]:
    """What a small sealed file says; it says `content` from now on if it is not there yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        put_file(path, sealed(content)[0], replace=False)
    try:
        return dict(read_sealed(path)[0])
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(f"{path} cannot be read ({error}): {_REMEDY}") from error


def _read(path: Path) -> Kept:
    try:
        record, name = Record.from_bytes(path.read_bytes())
    except (OSError, StoreError, KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path} holds waiting tuples and cannot be read ({error}): {_REMEDY}") from error
    return Kept(record, path, name)


def _understood(fields: dict[str, Any]) -> dict[str, Any]:
    """What a file says, without the number of its format; ValueError where that is another one."""
    fields = dict(fields)
    found = fields.pop("format", None)
    if found != _FORMAT:
        raise ValueError(f"it has format {found!r}, this release reads {_FORMAT}")
    return fields


def _head_of(record: Record, name: str, previous: Kept | None) -> Head:
    keeps = record.batch if previous is None else previous.record.batch
    since = record.arrivals[0][1] if record.arrivals else 0.0
    return Head(record.sequence, record.batch, name, record.waiting, keeps, record.tick, since, record.master)


def _sealed_head(head: Head) -> bytes:
    return sealed({**asdict(head), "format": _FORMAT})[0]


def numbered(folder: Path) -> list[int]:
    """The batches of which Spark's log in a folder of the checkpoint knows."""
    try:
        return [int(path.name) for path in folder.iterdir() if path.name.isdigit()]
    except FileNotFoundError:
        return []


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
