"""The smallest budget with which some operator can do a join: what an error is to name when there is too little."""

from __future__ import annotations

import pyarrow as pa

from semistream.errors import BudgetError
from semistream.master.base import Master
from semistream.operators.base import SemiStreamJoin
from semistream.operators.registry import OPERATORS
from semistream.spec import JoinSpec

#: an operator names what it lacks, but its buffers take a part of what it is given: it gets a little more each time
_STEPS, _MORE = 64, 50


def least_budget(master: Master, spec: JoinSpec, schema: pa.Schema, *, direct: bool = False) -> int | None:
    """Bytes with which the most modest operator opens and starts on such a stream; None if none says."""
    least: int | None = None
    for operator in OPERATORS.values():
        if operator.needs_index and not master.has_index:
            continue
        found = _least_of(operator, master, spec, schema, direct, least)
        least = found if found is not None else least
    return least


def _least_of(
    operator: type[SemiStreamJoin], master: Master, spec: JoinSpec, schema: pa.Schema, direct: bool, below: int | None
) -> int | None:
    """What one operator needs, if less than `below`: it is opened with what it asks for until that is enough."""
    size = 1
    for _ in range(_STEPS):
        try:
            with operator(master, spec, size, direct=direct) as join:
                join.start(schema)
        except BudgetError as error:
            if error.minimum_bytes is None:
                return None
            size = max(error.minimum_bytes, size + size // _MORE)
        else:
            return size
        if below is not None and size >= below:
            return None
    return None
