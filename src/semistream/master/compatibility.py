"""Whether readers of one version of R can go on with another.

Readers take columns by name, with the types and the nullability that they have seen when they started: columns that
are added or stand in another order do not concern them.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pyarrow as pa

from semistream.errors import StoreError
from semistream.master.format import MANIFEST, current_folder
from semistream.master.leases import pinned_versions


def misfits(old: pa.Schema, new: pa.Schema) -> list[str]:
    """What a reader of `old` would stumble over in `new`, one line for each column; empty if it fits."""
    found = []
    for column in old:
        at = new.get_all_field_indices(column.name)
        if len(at) != 1:
            found.append(f"column {column.name!r} is {'gone' if not at else 'there several times'}")
            continue
        other = new.field(at[0])
        if other.type != column.type:
            found.append(f"column {column.name!r} has the type {other.type} and had {column.type}")
        elif other.nullable and not column.nullable:
            found.append(f"column {column.name!r} may hold nulls and could not before")
    return found


def in_use(path: Path) -> bool:
    """Whether a query has pinned a version of the store, or a process has the one in force open."""
    pinned = pinned_versions(path)
    if pinned is None or pinned:
        return True
    try:
        handle = os.open(current_folder(path) / MANIFEST, os.O_RDWR)
    except (OSError, StoreError):
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        # Where files cannot be locked nobody can be seen to have them open.
        return False
    finally:
        os.close(handle)
    return False
