"""Opens a join whose algorithm is settled, for commands that look inside it."""

from __future__ import annotations

import pyarrow as pa

from semistream.engine.join import SemiStreamJoin
from semistream.master.base import Master
from semistream.planner.open import open_request
from semistream.spec import JoinRequest


def open_named(master: Master, request: JoinRequest, schema: pa.Schema) -> SemiStreamJoin:
    """The join of a request that names an algorithm; the master data stays open when it is closed."""
    join = open_request(master, request, stream_schema=schema)
    assert isinstance(join, SemiStreamJoin)
    return join
