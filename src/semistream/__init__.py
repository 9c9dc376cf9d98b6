"""Join a fast stream with a huge, slowly changing, disk-based master table inside a fixed memory budget.

Names are imported when they are used: the compiled kernels behind them take seconds to load.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semistream.engine.chunk import JoinStats
    from semistream.engine.join import SemiStreamJoin
    from semistream.engine.protocol import Join
    from semistream.engine.snapshot import Snapshot
    from semistream.errors import SemiStreamError
    from semistream.master.build import build_pages
    from semistream.master.open import open_master
    from semistream.master.refresh import compact_pages, refresh_pages
    from semistream.parts.budget import MemoryReport
    from semistream.planner.open import open_join
    from semistream.planner.policy import Policy
    from semistream.spec import JoinRequest

__all__ = [
    "Join",
    "JoinRequest",
    "JoinStats",
    "MemoryReport",
    "Policy",
    "SemiStreamError",
    "SemiStreamJoin",
    "Snapshot",
    "build_pages",
    "compact_pages",
    "open_join",
    "open_master",
    "refresh_pages",
]
__version__ = "0.1.0"

_HOME = {
    "Join": "engine.protocol",
    "JoinRequest": "spec",
    "JoinStats": "engine.chunk",
    "MemoryReport": "parts.budget",
    "Policy": "planner.policy",
    "SemiStreamError": "errors",
    "SemiStreamJoin": "engine.join",
    "Snapshot": "engine.snapshot",
    "build_pages": "master.build",
    "compact_pages": "master.refresh",
    "open_join": "planner.open",
    "open_master": "master.open",
    "refresh_pages": "master.refresh",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"semistream.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
