"""Which connector reads an address."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import cast

from semistream.errors import ConfigError
from semistream.sources.address import read_address
from semistream.sources.base import Source, Wanted
from semistream.sources.secrets import Secrets
from semistream.sources.where import read_conditions

#: each is imported when it is asked for: it needs a package that only its users have
_CONNECTORS = {
    "parquet": "ParquetSource",
    "delta": "DeltaSource",
    "iceberg": "IcebergSource",
    "postgresql": "PostgresSource",
    "sqlite": "SqliteSource",
    "mysql": "MysqlSource",
    "duckdb": "DuckdbSource",
}


def open_source(
    address: str,
    *,
    on: str | Sequence[str],
    columns: Sequence[str] | None = None,
    where: str | Sequence[str] = (),
    watermark: str | None = None,
    deletes: str | None = None,
    lag: str | float | None = None,
    secrets: Secrets | None = None,
) -> Source:
    """The source at an address, checked as far as that can be done without reaching it."""
    secrets = Secrets() if secrets is None else secrets
    keys = (on,) if isinstance(on, str) else tuple(on)
    if not keys:
        raise ConfigError("on names no column; name the key of the master data")
    wanted = Wanted(
        keys,
        None if columns is None else tuple(columns),
        read_conditions((where,) if isinstance(where, str) else where),
        watermark,
        deletes,
        lag,
    )
    found = read_address(address, secrets)
    module = import_module(f"semistream.sources.{found.kind}")
    connector = cast("Callable[..., Source]", getattr(module, _CONNECTORS[found.kind]))
    return connector(found, wanted, secrets)
