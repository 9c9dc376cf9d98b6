"""Whether master data can take the place of other master data under those who read it."""

from __future__ import annotations

import pyarrow as pa


def misfits(expected: pa.Schema, found: pa.Schema) -> list[str]:
    """What a reader of `expected` cannot have from `found`, a line per column; columns beyond them do not matter."""
    wrong = []
    for column in expected:
        at = found.get_all_field_indices(column.name)
        if len(at) != 1:
            wrong.append(f"the column {column.name!r} is {'missing' if not at else 'there more than once'}")
            continue
        other = found.field(at[0])
        if other.type != column.type:
            wrong.append(f"the column {column.name!r} has the type {other.type}, it had {column.type}")
        elif other.nullable and not column.nullable:
            wrong.append(f"the column {column.name!r} may hold nulls, it could not")
    return wrong
