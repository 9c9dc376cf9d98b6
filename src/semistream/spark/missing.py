"""What becomes of stream tuples that R has no row for.

    null          the tuple with nulls in R's columns                    how="left"
    drop          nothing                                                how="inner"
    dead_letter   the tuple goes to a second table, not to the output    `write` alone can do that (`lake.py`)
    wait          the tuple is parked until a version of R has its key   `parking.py`; then one of the others

The first two are only other names for `how`. With the other two the join gives such tuples apart
(`JoinSpec.apart`), and whoever runs it sends them on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semistream.errors import BudgetError, ConfigError
from semistream.spark.paths import shared_path
from semistream.spec import DEFAULT_HOW, JoinRequest, format_bytes, parse_bytes, parse_seconds

ON_MISSING = ("null", "drop", "dead_letter", "wait")
THEN = ("null", "drop", "dead_letter")
#: tables of dead letters have a path; one of Iceberg has a name in a catalog
LETTER_FORMATS = ("parquet", "delta")
DEFAULT_WAIT_BYTES = "64MB"
#: what each of them makes of a join
_HOW = {"null": "left", "drop": "inner", "dead_letter": "inner"}


@dataclass(frozen=True)
class Letters:
    """A table for tuples that found no match."""

    path: str
    format: str


@dataclass(frozen=True)
class Missing:
    """What an enrichment does with tuples that have no match, if it is more than `how` says.

    `then` is where such a tuple goes in the end; `wait_s` how long it is parked before, None if it is not.
    """

    then: str = ""
    wait_s: float | None = None
    wait_bytes: int = 0
    letters: Letters | None = None

    @property
    def is_apart(self) -> bool:
        """Whether the join gives tuples without a match apart."""
        return self.then != ""

    @property
    def waits(self) -> bool:
        return self.wait_s is not None

    @property
    def meaning(self) -> dict[str, Any]:
        """What decides which rows come out; how long and how many wait may change from start to start."""
        return {"then": self.then, "waits": self.waits} if self.is_apart else {}

    def notes(self) -> list[str]:
        """What a plan shows."""
        if not self.is_apart:
            return []
        end = self.then if self.letters is None else f"{LETTERS_NOTE} {self.letters.path}"
        if self.wait_s is None:
            return [f"unmatched to {end}"]
        return [f"unmatched wait {self.wait_s:g}s in {format_bytes(self.wait_bytes)}, then {end}"]


#: by this the plan of a query shows that it has dead letters
LETTERS_NOTE = "dead letters in"


@dataclass(frozen=True)
class MissingOptions:
    """The arguments of `enrich` for tuples without a match, as they were given."""

    on_missing: str | None = None
    wait: str | float | None = None
    wait_bytes: str | int | None = None
    then: str | None = None
    dead_letters: str | Path | None = None
    dead_letter_format: str | None = None

    def read(self, how: str | None) -> tuple[str, Missing]:
        """The kind of join and what becomes of tuples without a match; refuses what contradicts itself."""
        what = self.on_missing
        if what is not None and what not in ON_MISSING:
            raise ConfigError(f"on_missing={what!r} is unknown; allowed are {', '.join(ON_MISSING)}")
        self._check_waiting()
        end = self._end(how)
        letters = self._letters(end)
        if what is None:
            return how or DEFAULT_HOW, Missing()
        _check_how(how, what, end)
        if what in ("null", "drop"):
            return how or _HOW[what], Missing()
        if what == "dead_letter":
            return "left", Missing(end, letters=letters)
        assert self.wait is not None
        return "left", Missing(end, parse_seconds(self.wait), self._cap(), letters)

    def _check_waiting(self) -> None:
        if self.on_missing == "wait":
            if self.wait is None:
                raise ConfigError("on_missing='wait' must say how long a tuple waits; add wait, for example wait='10m'")
            return
        for name in ("wait", "wait_bytes", "then"):
            if getattr(self, name) is not None:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} belongs to on_missing='wait', and on_missing is "
                    f"{self.on_missing!r}: say on_missing='wait', or leave {name} out"
                )

    def _end(self, how: str | None) -> str:
        """Where a tuple goes in the end."""
        if self.on_missing != "wait":
            return self.on_missing or ""
        then = self.then or ("drop" if how == "inner" else "null")
        if then not in THEN:
            raise ConfigError(f"then={then!r} is unknown; allowed are {', '.join(THEN)}")
        return then

    def _letters(self, end: str) -> Letters | None:
        path, format = self.dead_letters, self.dead_letter_format
        if end != "dead_letter":
            for name in ("dead_letters", "dead_letter_format"):
                if getattr(self, name) is not None:
                    raise ConfigError(
                        f"{name}={str(getattr(self, name))!r} is given, but no tuple becomes a dead letter: say "
                        f"on_missing='dead_letter' (or on_missing='wait' and then='dead_letter'), or leave {name} out"
                    )
            return None
        if path is None:
            raise ConfigError("dead letters need a table of their own; name its folder with dead_letters='/path'")
        format = format or LETTER_FORMATS[0]
        if format not in LETTER_FORMATS:
            raise ConfigError(f"dead_letter_format={format!r} is unknown; allowed are {', '.join(LETTER_FORMATS)}")
        return Letters(str(shared_path(path, "the table of dead letters")), format)

    def _cap(self) -> int:
        try:
            return parse_bytes(DEFAULT_WAIT_BYTES if self.wait_bytes is None else self.wait_bytes)
        except BudgetError as error:
            raise ConfigError(str(error).replace("memory=", "wait_bytes=", 1)) from None


def _check_how(how: str | None, what: str, end: str) -> None:
    """Refuse a kind of join that says something else about tuples without a match."""
    wanted = _HOW[end]
    if how is None or how == wanted or (how == "semi" and what == "drop"):
        return
    said = f"on_missing={what!r}" if what != "wait" else f"on_missing='wait' with then={end!r}"
    raise ConfigError(
        f"how={how!r} and {said} contradict each other, for {said} is a join with how={wanted!r}: leave how out, or "
        f"{'leave on_missing out' if what in ('null', 'drop') else f'say how={wanted!r}'}"
    )


def check_waiting_request(request: JoinRequest, is_stream: bool) -> None:
    """Refuse what cannot be had together with tuples that are parked."""
    if not is_stream:
        raise ConfigError(
            "on_missing='wait' parks tuples of one micro-batch for later ones, and this DataFrame is no stream: enrich "
            "the stream itself, before foreachBatch, or choose another on_missing"
        )
    if request.max_delay_s is not None:
        raise ConfigError(
            "max_delay and on_missing='wait' both hold tuples back, and an enrichment can do one of them: leave "
            "max_delay out"
        )
