"""What a shard leaves behind after each micro-batch in which tuples wait: one record, first writer wins.

Beside Spark's own files in the checkpoint:

    <checkpoint>/semistream/<enrichment>/
      layout.json                       how many shards the stream is divided into, decided once
      s00003-b000000000012.arrow        shard 3 after batch 12: waiting tuples (Arrow), positions (JSON in its schema)
      finish                            while the query only finishes what is there (availableNow)
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from semistream.errors import ConfigError, SemiStreamError, StoreError
from semistream.operators.snapshot import Snapshot

LAYOUT = "layout.json"
FINISH = "finish"


@dataclass(frozen=True)
class Record:
    """How a shard left a micro-batch: what waits, since when, and with which version of R and which budget."""

    batch: int
    shard: int
    version: int | None
    private_bytes: int
    saved_at: float
    #: [tuples, time of arrival], oldest first
    arrivals: list[list[float]]
    snapshot: Snapshot

    @property
    def waiting(self) -> int:
        return 0 if self.snapshot.tuples is None else self.snapshot.tuples.num_rows

    def to_bytes(self) -> bytes:
        told = {name: value for name, value in self.__dict__.items() if name != "snapshot"}
        state = {**self.snapshot.state, "carry": {**told, "waiting": self.waiting}}
        return Snapshot(state, self.snapshot.tuples).to_bytes()

    @staticmethod
    def from_bytes(data: bytes) -> Record:
        snapshot = Snapshot.from_bytes(data)
        state = dict(snapshot.state)
        told = dict(state.pop("carry"))
        told.pop("waiting")
        return Record(**told, snapshot=Snapshot(state, snapshot.tuples))


class Records:
    """The records of all shards, in a folder inside the query's checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, batch: int, shard: int) -> Path:
        return self.folder / f"s{shard:05d}-b{batch:012d}.arrow"

    def _batches(self, shard: int) -> dict[int, Path]:
        found = self.folder.glob(f"s{shard:05d}-b*.arrow")
        return {int(path.stem.partition("-b")[2]): path for path in found}

    def of(self, batch: int, shard: int) -> Record | None:
        return self._read(self._path(batch, shard))

    def before(self, batch: int, shard: int) -> Record | None:
        """The last record of an earlier batch: a shard that had nothing to say left none."""
        earlier = [number for number in self._batches(shard) if number < batch]
        return self._read(self._path(max(earlier), shard)) if earlier else None

    @staticmethod
    def _read(path: Path) -> Record | None:
        try:
            return Record.from_bytes(path.read_bytes())
        except FileNotFoundError:
            return None
        except (StoreError, KeyError, TypeError) as error:
            raise StoreError(
                f"{path} holds waiting tuples and cannot be read ({error}): restore the checkpoint from a backup"
            ) from error

    def publish(self, record: Record) -> None:
        """Make a record the one and only of its batch; refuses if there is one already."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(record.batch, record.shard)
        fresh = self.folder / f".{path.name}.{secrets.token_hex(8)}"
        try:
            with fresh.open("wb") as file:
                file.write(record.to_bytes())
                file.flush()
                os.fsync(file.fileno())
            os.link(fresh, path)
        except FileExistsError:
            raise SemiStreamError(
                f"another attempt at batch {record.batch} has left its record for shard {record.shard}; "
                "this one is given up, and the next will give the same rows as that one"
            ) from None
        finally:
            fresh.unlink(missing_ok=True)
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def drop_before(self, batch: int, shard: int) -> None:
        """Remove what no replay can ask for any more."""
        for number, path in self._batches(shard).items():
            if number < batch:
                path.unlink(missing_ok=True)
        for path in self.folder.glob(f".s{shard:05d}-b*"):
            if time.time() - path.stat().st_mtime > 3600:
                path.unlink(missing_ok=True)

    def waiting(self) -> int:
        """Tuples that wait in all shards."""
        newest: dict[str, Path] = {}
        for path in sorted(self.folder.glob("s*-b*.arrow")):
            newest[path.stem.partition("-b")[0]] = path
        total = 0
        for path in newest.values():
            try:
                total += int(Snapshot.peek(path)["carry"]["waiting"])
            except FileNotFoundError:
                # Removed since we looked: a newer record is there, and will be seen next time.
                total += 1
        return total

    @property
    def finishing(self) -> bool:
        """Whether the query is to end, so that waiting for more tuples to share a scan with is no use."""
        return (self.folder / FINISH).exists()

    def set_finishing(self, on: bool) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if on:
            (self.folder / FINISH).touch()
        else:
            (self.folder / FINISH).unlink(missing_ok=True)

    def fix_shards(self, wanted: int | None, default: int) -> int:
        """The number of shards, decided once: a tuple that waits must be found again by its shard."""
        path = self.folder / LAYOUT
        write_once(path, {"shards": wanted or default})
        try:
            shards = int(json.loads(path.read_text())["shards"])
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path} is damaged ({error}): restore the checkpoint from a backup") from error
        if wanted is not None and wanted != shards:
            raise ConfigError(
                f"shards={wanted}, but this checkpoint divides the stream into {shards}; leave shards out, "
                "or start with another checkpoint"
            )
        return shards


def write_once(path: Path, content: Mapping[str, object]) -> None:
    """Publish a small JSON file, unless it is there already."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        fresh.write_text(json.dumps(content), encoding="utf-8")
        os.link(fresh, path)
    except FileExistsError:
        pass
    finally:
        fresh.unlink(missing_ok=True)
