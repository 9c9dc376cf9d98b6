"""Where master data comes from: Parquet, tables of a lake, databases; for builds and refreshes of page stores.

Names are imported when they are used: each connector needs a package that only its users have.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semistream.sources.base import Source
    from semistream.sources.open import open_source
    from semistream.sources.stores import Refreshed, build_from, refresh_from

__all__ = ["Refreshed", "Source", "build_from", "open_source", "refresh_from"]

_HOME = {
    "Refreshed": "stores",
    "Source": "base",
    "build_from": "stores",
    "open_source": "open",
    "refresh_from": "stores",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"semistream.sources.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
