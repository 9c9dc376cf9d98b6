"""What waits in the checkpoint of a query that is stopped: seen, and finished without Spark.

An operator who must change an enrichment, or give its query up, finishes here what the query would have finished in
its next batches. The rows go into files of their own, to be added to the query's sink by hand. Parked tuples are joined
with R as it is now; those that have no match still have nulls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from semistream.engine.join import SemiStreamJoin
from semistream.errors import ConfigError, StoreError
from semistream.master.open import open_master
from semistream.sealed import put_file, read_sealed, sealed
from semistream.spark.dimension import DEFAULT_ALGORITHM, join_owning, request_meant
from semistream.spark.records import Binding, Kept, Record, Records, ShardRecords, all_records

#: in place of the algorithm of an enrichment whose tuples are parked
PARKED = "parked"
#: joins parked tuples with master data that has no index
_WITHOUT_INDEX = "ssbj"
#: says where the rows of a drain are, from before they are complete until no record holds their tuples any more
_NOTE = "draining"


@dataclass(frozen=True)
class Waiting:
    """What one enrichment of a checkpoint holds."""

    name: str
    query: str
    shards: int
    tuples: int
    oldest_seconds: float
    batch: int
    master: str
    version: int | None
    how: str
    algorithm: str


def listed(checkpoint: Path) -> list[Waiting]:
    """All enrichments that carry tuples over in a checkpoint."""
    return [_waiting(records) for records in all_records(checkpoint)]


def _waiting(records: Records) -> Waiting:
    binding = records.binding()
    kept = [found.record for shard in records.shards() if (found := shard.newest()) is not None]
    last = max(kept, key=lambda record: record.batch, default=None)
    since = [record.arrivals[0][1] for record in kept if record.waiting and record.arrivals]
    return Waiting(
        name=binding.name,
        query="" if last is None else last.query,
        shards=binding.shards,
        tuples=sum(record.waiting for record in kept),
        oldest_seconds=max((time.time() - moment for moment in since), default=0.0),
        batch=-1 if last is None else last.batch,
        master=binding.master,
        version=None if last is None else last.version,
        how=str(binding.meaning["how"]),
        algorithm=PARKED if binding.parks else str(binding.meaning["algorithm"]),
    )


def records_of(checkpoint: Path, name: str | None) -> Records:
    """The records of the enrichment of that name, or of the only one."""
    found = all_records(checkpoint)
    if not found:
        raise ConfigError(f"{checkpoint} holds no records of waiting tuples; give the checkpointLocation of a query")
    names = [records.binding().name for records in found]
    if name is None and len(found) > 1:
        raise ConfigError(f"{checkpoint} has several enrichments: give --name, one of {', '.join(names)}")
    if name is not None and name not in names:
        raise ConfigError(f"{checkpoint} has no enrichment named {name!r}; it has {', '.join(names)}")
    return found[0 if name is None else names.index(name)]


class Drain:
    """The rows of all tuples that wait in some records; `settle` then makes the records say that none does."""

    def __init__(self, records: Records) -> None:
        records.require_rest()
        self.records = records
        self._binding = records.binding()
        self._full: list[tuple[ShardRecords, Kept]] = []
        for shard in records.shards():
            newest = shard.newest()
            if newest is not None and newest.record.sequence > shard.head().sequence:
                # A drain was cut short between the two.
                shard.mend(newest, shard.before(newest))
            if newest is not None and newest.record.waiting:
                self._full.append((shard, newest))

    @property
    def tuples(self) -> int:
        return sum(kept.record.waiting for _, kept in self._full)

    def schema(self) -> pa.Schema:
        with _restored(self._binding, self._full[0][1].record) as join:
            return join.output_schema

    def rows(self) -> Iterator[pa.RecordBatch]:
        for _, kept in self._full:
            with _restored(self._binding, kept.record) as join:
                if self._binding.parks:
                    for batch in kept.record.parked.to_batches():
                        yield from join.push(batch)
                yield from join.drain()

    def settle(self, out: Path, appear: Callable[[], None]) -> None:
        """Let the rows appear at `out` and the tuples leave the records; `resumed` completes what is cut short."""
        note = {"out": str(out.absolute()), "records": [kept.name for _, kept in self._full]}
        put_file(self._note, sealed(note)[0], replace=True)
        appear()
        self._leave()

    def resumed(self) -> Path | None:
        """Complete a drain that was cut short after its rows had appeared; returns where they are."""
        try:
            note = read_sealed(self._note)[0]
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise StoreError(
                f"{self._note} cannot be read ({error}): look where its rows are, and remove it"
            ) from error
        out = Path(note["out"])
        mine = [(shard, kept) for shard, kept in self._full if kept.name in note["records"]]
        if not out.exists() or not mine:
            # The rows never appeared, or all tuples have left since.
            with suppress(FileNotFoundError):
                self._note.unlink()
            return out if out.exists() and not mine else None
        self._full = mine
        self._leave()
        return out

    @property
    def _note(self) -> Path:
        return self.records.folder / _NOTE

    def _leave(self) -> None:
        for shard, kept in self._full:
            shard.publish(_emptied(kept), kept)
        self._note.unlink()
        self._full = []


def _emptied(kept: Kept) -> Record:
    """The record after which no tuple waits."""
    record = kept.record
    assert record.snapshot.tuples is not None
    state = {**record.snapshot.state, "chunks": [], "open_count": 0, "fresh": 0}
    snapshot = replace(record.snapshot, state=state, tuples=record.snapshot.tuples.slice(0, 0))
    return replace(
        record,
        part=record.part + 1,
        sequence=record.sequence + 1,
        predecessor=kept.name,
        arrivals=[],
        snapshot=snapshot,
        rows_in=0,
    )


def _restored(binding: Binding, record: Record) -> SemiStreamJoin:
    """The join of a shard where its record left it; parked tuples have not begun, and meet R as it is."""
    if binding.parks:
        meant = request_meant({**binding.meaning, "algorithm": DEFAULT_ALGORITHM, "options": {}}, record.private_bytes)
        master = open_master(binding.master, meant.spec.master_on)
        join = join_owning(master, meant if master.has_index else replace(meant, algorithm=_WITHOUT_INDEX))
        join.start(record.parked.schema)
        return join
    request = request_meant(binding.meaning, record.private_bytes)
    master = open_master(binding.master, request.spec.master_on, version=record.version)
    if master.identity != record.master:
        master.close()
        raise StoreError(
            f"the tuples wait for the rest of {binding.master} as it was at batch {record.batch}, and it has been "
            "replaced: put that version back"
        )
    join = join_owning(master, request)
    try:
        join.restore(record.snapshot)
    except BaseException:
        join.close()
        raise
    return join
