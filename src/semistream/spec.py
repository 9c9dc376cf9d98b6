"""What a join is asked to do, as frozen values that can be checked, printed and compared before anything runs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from semistream.errors import BudgetError, ConfigError

On: TypeAlias = str | Sequence[str] | Mapping[str, str]

#: the planner picks the algorithm
AUTO = "auto"
DEFAULT_MEMORY = "64MB"
HOWS = ("inner", "left", "semi", "anti")
#: Enriching a stream must not lose a row of it unless its owner says so.
DEFAULT_HOW = "left"
#: how R is read: through the page cache, past it, or what suits R and the machine
READS = ("auto", "mapped", "direct")
_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}

_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0}
_SECONDS |= {"m": 60.0, "min": 60.0, "minute": 60.0, "minutes": 60.0, "h": 3600.0, "hour": 3600.0, "hours": 3600.0}
_SECONDS |= {"d": 86400.0, "day": 86400.0, "days": 86400.0}


def parse_size(value: str, what: str) -> int:
    """Bytes of a size that is no budget, and may be 0.

    >>> parse_size("10GB", "--max-size"), parse_size("0", "--max-size")
    (10000000000, 0)
    """
    try:
        return 0 if re.fullmatch(r"\s*0+\s*[A-Za-z]*\s*", value) else parse_bytes(value)
    except BudgetError as error:
        raise ConfigError(str(error).replace("memory=", f"{what} ", 1)) from None


def parse_bytes(value: str | int | float) -> int:
    """Bytes of a budget such as 64_000_000, "64MB", "1.5 GiB".

    >>> parse_bytes("64MB"), parse_bytes("1 KiB"), parse_bytes(4096)
    (64000000, 1024, 4096)
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BudgetError(f"memory={value!r} is not a size; write a number of bytes or a text such as '64MB'")
    if isinstance(value, int | float):
        size = float(value)
    else:
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-z]*)\s*", value)
        if match is None or match[2].upper() not in _UNITS:
            raise BudgetError(
                f"memory={value!r} is not a size; allowed are a number and one of the units "
                "B, KB, MB, GB, TB, KiB, MiB, GiB, TiB, for example '64MB'"
            )
        size = float(match[1]) * _UNITS[match[2].upper()]
    if not 1 <= size < 2**48:
        raise BudgetError(f"memory={value!r} is out of range; allowed are 1 byte to 256 TiB, for example '64MB'")
    return int(size)


def format_bytes(size: float) -> str:
    """A size for people to read.

    >>> format_bytes(6_240_000_000), format_bytes(512)
    ('6.24 GB', '512 bytes')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} bytes"


def parse_seconds(value: str | int | float) -> float:
    """Seconds of a duration such as 1.5, "500ms", "30s", "2 min", "1h".

    >>> parse_seconds("30s"), parse_seconds("500 ms"), parse_seconds(2)
    (30.0, 0.5, 2.0)
    """
    seconds = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    elif isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-z]*)\s*", value)
        if match is not None and match[2].lower() in _SECONDS:
            seconds = float(match[1]) * _SECONDS[match[2].lower()]
    if not 0 < seconds < math.inf:
        raise ConfigError(
            f"{value!r} is not a duration; allowed are a number above 0 and one of the units ms, s, min, h, d, "
            "for example '30s'"
        )
    return seconds


def checked_reads(value: str) -> str:
    """The same, if it is one of `READS`."""
    if value not in READS:
        raise ConfigError(f"reads={value!r} is unknown; allowed are {', '.join(READS)}")
    return value


@dataclass(frozen=True)
class JoinSpec:
    """The relational side of a join: which keys, which rows survive, which master columns are wanted."""

    stream_on: tuple[str, ...]
    master_on: tuple[str, ...]
    how: str = DEFAULT_HOW
    select: tuple[str, ...] | None = None
    suffix: str = "_right"
    #: names that differ in case only are the same name
    fold_case: bool = False
    #: of the master rows of a key only those that were valid at this time of the stream tuple, from the first of these
    #: columns on and before the second; None: all of them
    as_of: str | None = None
    valid: tuple[str, str] | None = None
    #: of a left join: tuples without a match come in batches of their own, marked, without columns of R
    #: (`engine/output.py`)
    apart: bool = False

    @staticmethod
    def make(
        on: On,
        how: str = DEFAULT_HOW,
        select: Sequence[str] | None = None,
        suffix: str = "_right",
        fold_case: bool = False,
        as_of: str | None = None,
        valid: Sequence[str] | None = None,
    ) -> JoinSpec:
        """Read the forms a caller may use: one name, several, or {stream column: master column}."""
        if isinstance(on, str):
            pairs = [(on, on)]
        elif isinstance(on, Mapping):
            pairs = list(on.items())
        else:
            pairs = [(name, name) for name in on]
        if not pairs or not all(isinstance(a, str) and isinstance(b, str) for a, b in pairs):
            raise ConfigError(f"on={on!r} names no key; give a column name, a list of names or a mapping of names")
        stream_on, master_on = tuple(a for a, _ in pairs), tuple(b for _, b in pairs)
        for names in (stream_on, master_on):
            if len(set(names)) != len(names):
                raise ConfigError(f"on={on!r} names a column twice; name every key column once")
        if how not in HOWS:
            raise ConfigError(f"how={how!r} is unknown; allowed are {', '.join(HOWS)}")
        if isinstance(select, str):
            raise ConfigError(f"select={select!r} is a text; give a list of column names, for example [{select!r}]")
        if not isinstance(suffix, str) or not suffix:
            raise ConfigError(f"suffix={suffix!r} must be a text of at least one character, for example '_right'")
        chosen = None if select is None else tuple(select)
        return JoinSpec(stream_on, master_on, how, chosen, suffix, fold_case, as_of, _checked_valid(as_of, valid))

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Of each key column the stream's name and the master's."""
        return tuple(zip(self.stream_on, self.master_on, strict=True))

    @property
    def history(self) -> str | None:
        """In words which of a key's rows are joined; None: all of them."""
        return None if self.valid is None else f"{self.valid[0]} <= {self.as_of} < {self.valid[1]}"

    def folded(self, name: str) -> str:
        """The form in which two names are compared."""
        return name.lower() if self.fold_case else name

    def result_columns(self, select: Sequence[str]) -> list[str]:
        """Of master columns that are asked for those that the result gets: each once, a key under one name once."""
        doubled = {there for here, there in self.pairs if self.folded(here) == self.folded(there)}
        return [name for name in dict.fromkeys(select) if name not in doubled]

    @property
    def keeps_unmatched(self) -> bool:
        return self.how in ("left", "anti")

    @property
    def carries_master(self) -> bool:
        return self.how in ("inner", "left")


def _checked_valid(as_of: str | None, valid: Sequence[str] | None) -> tuple[str, str] | None:
    """The two columns between which a row is valid; there are some exactly if there is a time."""
    if as_of is None and valid is None:
        return None
    if as_of is None or valid is None:
        lacks, has = ("as_of", "valid") if as_of is None else ("valid", "as_of")
        raise ConfigError(
            f"{has} was given without {lacks}; an as-of join needs both, for example as_of='event_time' and "
            "valid=('valid_from', 'valid_to')"
        )
    if not isinstance(as_of, str) or not as_of:
        raise ConfigError(f"as_of={as_of!r} must be the name of the stream's column with the time of a tuple")
    names = () if isinstance(valid, str) else tuple(valid)
    if len(names) != 2 or not all(isinstance(name, str) and name for name in names) or names[0] == names[1]:
        raise ConfigError(
            f"valid={valid!r} must be the names of two columns of the master data: since when a row is valid, and from "
            "when on no longer; for example ('valid_from', 'valid_to')"
        )
    return names


@dataclass(frozen=True)
class JoinRequest:
    """All that a caller asks of a join, whoever opens it: this process, the command line or Spark."""

    spec: JoinSpec
    memory_bytes: int
    algorithm: str = AUTO
    #: of the algorithm; "auto" takes none
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    #: the longest time that a tuple may wait at full speed; None: as long as it takes
    max_delay_s: float | None = None
    #: one of `READS`; no row depends on it
    reads: str = AUTO

    @staticmethod
    def make(
        *,
        on: On,
        how: str = DEFAULT_HOW,
        select: Sequence[str] | None = None,
        memory: str | int = DEFAULT_MEMORY,
        algorithm: str | None = None,
        suffix: str = "_right",
        fold_case: bool = False,
        as_of: str | None = None,
        valid: Sequence[str] | None = None,
        max_delay: str | float | None = None,
        reads: str = AUTO,
        options: Mapping[str, Any] | None = None,
    ) -> JoinRequest:
        """Read the forms a caller may use: sizes such as "64MB", times such as "30s"; no algorithm means "auto".

        Whether there is such an algorithm with such options is seen when the join is opened.
        """
        return JoinRequest(
            spec=JoinSpec.make(on, how, select, suffix, fold_case, as_of, valid),
            memory_bytes=parse_bytes(memory),
            algorithm=AUTO if algorithm is None else algorithm,
            options=dict(options or {}),
            max_delay_s=None if max_delay is None else parse_seconds(max_delay),
            reads=checked_reads(reads),
        )

    @property
    def is_auto(self) -> bool:
        """Whether the planner is to choose the algorithm."""
        return self.algorithm == AUTO
