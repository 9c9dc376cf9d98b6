"""Join a fast stream with a huge, slowly changing, disk-based master table inside a fixed memory budget."""

from semistream.errors import SemiStreamError
from semistream.master.build import build_pages
from semistream.master.open import open_master
from semistream.operators.base import JoinStats, SemiStreamJoin
from semistream.operators.registry import open_join
from semistream.operators.snapshot import Snapshot
from semistream.parts.budget import MemoryReport

__all__ = [
    "JoinStats",
    "MemoryReport",
    "SemiStreamError",
    "SemiStreamJoin",
    "Snapshot",
    "build_pages",
    "open_join",
    "open_master",
]
__version__ = "0.1.0"
