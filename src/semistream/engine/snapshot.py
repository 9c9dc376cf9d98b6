"""What a join needs to go on after a restart: Arrow for the waiting tuples, JSON for positions. No pickle.

    bytes = Arrow IPC stream (state in the schema's metadata) | checksum of all before it

Bytes come from outside: whatever they hold is checked before a join believes it, and damage is a `StoreError`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from semistream.columns.border import check_table, check_written
from semistream.errors import DamagedBatchError, StoreError

FLAG_COLUMN = "__matched"
#: no count in a state is larger
MOST = 1 << 62
_STATE = b"semistream.snapshot"
_SUM_BYTES = 16
_UNREADABLE = (pa.ArrowException, OSError, KeyError, TypeError, ValueError, RecursionError, MemoryError)


@dataclass(frozen=True)
class Snapshot:
    """Positions as JSON values, and the waiting tuples (None: the join had not begun)."""

    state: dict[str, Any]
    tuples: pa.Table | None

    @property
    def stream_schema(self) -> pa.Schema:
        """The stream's schema as it was."""
        assert self.tuples is not None
        names = [name for name in self.tuples.schema.names if name != FLAG_COLUMN]
        return pa.schema([self.tuples.schema.field(name) for name in names], metadata=self.tuples.schema.metadata)

    def to_bytes(self) -> bytes:
        """One Arrow IPC stream; the state stands in its schema's metadata."""
        table = self.tuples if self.tuples is not None else pa.table({})
        check_written(table.schema, "the stream")
        state = {"state": self.state, "begun": self.tuples is not None}
        metadata = {**(table.schema.metadata or {}), _STATE: json.dumps(state).encode()}
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema.with_metadata(metadata)) as writer:
            writer.write_table(table.replace_schema_metadata(metadata))
        data: bytes = sink.getvalue().to_pybytes()
        return data + _sum_of(data)

    @staticmethod
    def from_bytes(data: bytes) -> Snapshot:
        """The snapshot that `to_bytes` wrote; every damaged byte is found."""
        if _sum_of(data[:-_SUM_BYTES]) != data[-_SUM_BYTES:]:
            raise StoreError(
                f"these {len(data)} bytes are not a semistream snapshot: their checksum is wrong. They were cut short "
                "or damaged: go back to the snapshot before"
            )
        try:
            table = pa.ipc.open_stream(data[:-_SUM_BYTES]).read_all()
            metadata = dict(table.schema.metadata or {})
            state, begun = _state_of(metadata)
        except _UNREADABLE as error:
            raise StoreError(f"these {len(data)} bytes are not a semistream snapshot: {error}") from error
        metadata.pop(_STATE)
        snapshot = Snapshot(state, table.replace_schema_metadata(metadata or None) if begun else None)
        snapshot.check()
        return snapshot

    def check(self) -> None:
        """Refuses tuples that kernels must not see."""
        if self.tuples is None:
            return
        try:
            check_table(self.tuples, "the snapshot")
        except DamagedBatchError as error:
            raise StoreError(f"the snapshot cannot be restored: {error}") from error

    def whole(self, name: str, low: int, high: int) -> int:
        """A whole number of the state, within bounds."""
        return whole(self.state.get(name), low, high, name)

    def pairs(self, name: str) -> list[tuple[Any, Any]]:
        """A list of pairs of the state."""
        value = self.state.get(name)
        if not isinstance(value, list) or not all(isinstance(each, list) and len(each) == 2 for each in value):
            raise impossible(name, value, "pairs of whole numbers")
        return [(one, two) for one, two in value]


def whole(value: Any, low: int, high: int, name: str) -> int:
    """The value, if it is a whole number within bounds."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise impossible(name, value, f"whole numbers from {low} to {high}")
    return value


def impossible(name: str, value: Any, allowed: str) -> StoreError:
    """The error for a state no join can have left."""
    return StoreError(
        f"the snapshot says {name} {value!r:.80}, where {allowed} are possible: "
        "it was damaged, or made for another join"
    )


def _sum_of(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_SUM_BYTES).digest()


def _state_of(metadata: dict[bytes, bytes]) -> tuple[dict[str, Any], bool]:
    saved = json.loads(metadata[_STATE])
    state, begun = saved["state"], saved["begun"]
    if not isinstance(state, dict) or not isinstance(begun, bool) or not isinstance(state.get("options", {}), dict):
        raise ValueError("its state has another form")
    return state, begun
