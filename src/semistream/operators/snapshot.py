"""What a join needs to go on after a restart: Arrow for the waiting tuples, JSON for positions. No pickle."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.errors import StoreError

FLAG_COLUMN = "__matched"
_STATE = b"semistream.snapshot"


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
        state = {"state": self.state, "begun": self.tuples is not None}
        metadata = {**(table.schema.metadata or {}), _STATE: json.dumps(state).encode()}
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema.with_metadata(metadata)) as writer:
            writer.write_table(table.replace_schema_metadata(metadata))
        return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]

    @staticmethod
    def peek(path: Path) -> dict[str, Any]:
        """The state of a snapshot in a file, without its tuples."""
        try:
            with pa.OSFile(str(path)) as file:
                saved = json.loads(pa.ipc.open_stream(file).schema.metadata[_STATE])
        except (pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{path} is not a semistream snapshot: {error}") from error
        return dict(saved["state"])

    @staticmethod
    def from_bytes(data: bytes) -> Snapshot:
        try:
            table = pa.ipc.open_stream(data).read_all()
            metadata = dict(table.schema.metadata or {})
            saved = json.loads(metadata.pop(_STATE))
        except (pa.ArrowInvalid, KeyError, ValueError, OSError) as error:
            raise StoreError(f"these {len(data)} bytes are not a semistream snapshot: {error}") from error
        return Snapshot(saved["state"], table.replace_schema_metadata(metadata or None) if saved["begun"] else None)
