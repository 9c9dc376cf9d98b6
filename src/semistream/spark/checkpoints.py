"""Which sink a query's checkpoint belongs to.

A checkpoint says which batches a query has done, and not where it wrote them. A batch that the old sink has, and whose
end the checkpoint has not heard of, would be written to the new one again. So a checkpoint is marked with the table
before its first batch begins, and a query on a table starts from no other.

A driver that is killed while it notes its very first batch leaves a hidden file in the checkpoint, and Spark 4.1 and
later start no query from it again. No batch was begun then, so the file says nothing and is removed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from semistream.errors import ConfigError, StoreError
from semistream.sealed import put_file
from semistream.spark.records import FOLDER, all_committed, numbered

_MARK, _LETTERS = "sink.json", "letters.json"


def has_begun(checkpoint: Path) -> bool:
    """Whether a query has begun a batch with this checkpoint."""
    return bool(numbered(checkpoint / "offsets"))


def clear_unborn(checkpoint: Path) -> None:
    """Remove what a query left that was killed before its first batch had begun."""
    if has_begun(checkpoint):
        return
    for left in (checkpoint / "offsets").glob(".*"):
        left.unlink(missing_ok=True)


def sink_of(checkpoint: Path) -> dict[str, Any] | None:
    """The table for which the checkpoint is marked; None: Spark's own sinks leave no mark."""
    path = checkpoint / FOLDER / _MARK
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {"format": str(found["format"]), "path": str(found["path"])}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path}, which says where the query writes, cannot be read ({error}): put it back") from error


def claim_checkpoint(checkpoint: Path, format: str, path: str) -> None:
    """Mark a checkpoint for a table; refuses one of a query that has written elsewhere."""
    mark = {"format": format, "path": path}
    found = sink_of(checkpoint)
    if found == mark:
        return
    if has_begun(checkpoint):
        file = checkpoint / FOLDER / _MARK
        if found is None:
            raise ConfigError(
                f"{checkpoint} belongs to a query that wrote to a sink of Spark's: its last batch may be there "
                f"already, and would be in {path} again. Go on with that sink, or give a new checkpoint"
            )
        raise ConfigError(
            f"{checkpoint} belongs to a query that writes {found['format']} to {found['path']}, and this one writes "
            f"{format} to {path}: give a new checkpoint; if the table has only moved, say so in {file}"
        )
    place = checkpoint / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    put_file(place / _MARK, json.dumps(mark).encode(), replace=True)


def claim_letters(checkpoint: Path, tables: list[list[str]]) -> None:
    """Note the tables of dead letters, each with its enrichment and format; refuses others in mid-batch.

    A batch commits its dead letters before its rows. If it was cut off in between it is attempted again, and must put
    them nowhere else.
    """
    path = checkpoint / FOLDER / _LETTERS
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        found = []
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}, which says where dead letters go, cannot be read ({error}): put it back") from error
    if found == tables:
        return
    if found and not all_committed(checkpoint):
        named = ", ".join(f"{format} {place} (of {name})" for name, format, place in found)
        raise ConfigError(
            f"the last batch of {checkpoint} is not finished, and its dead letters may be in {named} already: start "
            "the query with these once, let it finish a batch and stop it; then change where they go"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    put_file(path, json.dumps(tables).encode(), replace=True)
