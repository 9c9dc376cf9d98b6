"""Every error a caller may want to catch, under one root.

Each message names the value that was refused, what is allowed and what to do about it.
"""

from __future__ import annotations


class SemiStreamError(Exception):
    """Root of all errors raised on purpose by semistream."""


class SemiStreamWarning(UserWarning):
    """What is done as asked, and may not be what was wanted."""


class ConfigError(SemiStreamError):
    """An option has a value that cannot work."""


class UnknownAlgorithmError(ConfigError):
    """No operator is registered under that name."""


class BudgetError(ConfigError):
    """The memory budget is malformed, or too small for the operator to make progress."""

    def __init__(self, message: str, minimum_bytes: int | None = None) -> None:
        super().__init__(message)
        self.minimum_bytes = minimum_bytes


class SchemaError(SemiStreamError):
    """Columns are missing, or their types cannot be joined."""


class KeyTypeError(SchemaError):
    """The key columns of stream and master data have different types."""


class DamagedBatchError(SchemaError):
    """A record batch contradicts itself: offsets outside their buffer, indices outside their dictionary."""


class StoreError(SemiStreamError):
    """Master data on disk is missing, unreadable, truncated or corrupt."""


class ChecksumError(StoreError):
    """A page's bytes are not those that were written."""


class SourceError(SemiStreamError):
    """A source of master data cannot be reached or read, or what it holds does not fit the store."""


class IndexRequiredError(ConfigError):
    """An index operator was given master data that has no index and cannot get one."""
