"""A pipeline as a TOML file describes it: source, enrichments, sink; read and checked before Spark is asked.

Secrets stay out of the file: `${NAME}` in a text stands for an environment variable. Whatever comes from there is
taken out again of every message (`sources/secrets.py`), since nobody knows which library will quote its options.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from semistream.errors import ConfigError, SemiStreamError
from semistream.lake.table import FORMATS
from semistream.master.build import DEFAULT_MEMORY_LIMIT
from semistream.sources.base import Source as MasterSource
from semistream.sources.keeper import ON_STALE, Schedule
from semistream.sources.open import open_source
from semistream.sources.secrets import Secrets
from semistream.spark.dimension import DEFAULT_ALGORITHM, DEFAULT_MEMORY, checked
from semistream.spark.missing import Missing, MissingOptions, check_waiting_request
from semistream.spark.session import SECRET_NAME
from semistream.spec import READS, JoinRequest, parse_bytes, parse_seconds

MODES = ("append", "update")
SHUFFLES = ("none", "key")
#: who writes the files of a sink: Spark's Python workers (`spark/lake.py`), or Spark itself
WRITERS = ("workers", "spark")
#: Sinks to look at; they keep nothing, so there is nothing to do exactly once.
PASSING_SINKS = ("console", "memory", "noop")
#: Formats of files: they have a path, and Spark does not guess the schema of files that are still to come.
FILE_FORMATS = ("avro", "csv", "json", "orc", "parquet", "text", "xml")
_SCHEMALESS = ("text",)

_TOP = ("name", "checkpoint", "trigger", "source", "master", "enrich", "sink", "spark")
_SOURCE = ("format", "path", "schema", "options", "sql")
_ENRICH = (
    "master",
    "on",
    "how",
    "select",
    "as_of",
    "valid",
    "memory",
    "algorithm",
    "shuffle",
    "max_delay",
    "reads",
    "suffix",
    "name",
    "options",
    "on_missing",
    "wait",
    "wait_bytes",
    "then",
    "dead_letters",
    "dead_letter_format",
)
_MASTER = ("path", "from", "on", "select", "where", "watermark", "deletes", "lag", "memory", "keep", "refresh")
_REFRESH = ("every", "max_age", "on_stale")
#: read with its variables, each of which is one part of an address
_UNFILLED = "master.from"
_SINK = ("format", "path", "mode", "partition_by", "options", "sql", "writer")
_SPARK = ("master", "conf")

_INTERVAL = re.compile(r"\d+(\.\d+)?\s*(ms|s|m|h|(millisecond|second|minute|hour|day)s?)")
_SHORT_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}


class PipelineError(ConfigError):
    """A pipeline file says something that cannot be done."""


@dataclass(frozen=True)
class Source:
    format: str
    path: str | None
    schema: str | None
    sql: str | None
    options: dict[str, str]


@dataclass(frozen=True)
class MasterData:
    """A store that the pipeline builds, and refreshes if it has a schedule."""

    path: str
    source: MasterSource
    schedule: Schedule | None
    memory_bytes: int
    keep_versions: int


@dataclass(frozen=True)
class Enrichment:
    master: str
    name: str
    request: JoinRequest
    shuffle: str | None
    missing: Missing = field(default_factory=Missing)


@dataclass(frozen=True)
class Sink:
    format: str
    path: str | None
    mode: str
    partition_by: list[str]
    sql: str | None
    options: dict[str, str]
    #: None: workers, where they can
    writer: str | None = None


@dataclass(frozen=True)
class Pipeline:
    """A checked pipeline. `written` is the file's content, with the variables' names and not their values."""

    name: str
    checkpoint: str | None
    trigger: dict[str, Any]
    source: Source
    masters: tuple[MasterData, ...]
    enrichments: tuple[Enrichment, ...]
    sink: Sink
    master: str
    conf: dict[str, str]
    written: dict[str, Any]
    secrets: Secrets


def read_pipeline(path: Path) -> Pipeline:
    """Read and check a file; every mistake is a `PipelineError` that says where it stands."""
    try:
        written = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PipelineError(f"{path} cannot be read: {error.strerror}; name a pipeline file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PipelineError(f"{path} is no TOML file: {error}") from error
    secrets = Secrets()
    try:
        return _read(path.stem, written, secrets)
    except SemiStreamError as error:
        raise PipelineError(secrets.redact(f"{path}: {error}")) from None


def as_written(pipeline: Pipeline) -> dict[str, Any]:
    """The file's content to look at: names of variables instead of values, and nothing that looks like a password."""

    def shown(key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: shown(name, inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [shown(key, inner) for inner in value]
        return "(hidden)" if SECRET_NAME.search(key) and "${" not in str(value) else value

    return {key: shown(key, value) for key, value in pipeline.written.items()}


def _read(stem: str, written: dict[str, Any], secrets: Secrets) -> Pipeline:
    filled = _filled(written, secrets, "")
    top = _Table("the file", filled, _TOP)
    source = _source(top.table("source", _SOURCE))
    sink = _sink(top.table("sink", _SINK))
    checkpoint = top.text("checkpoint")
    if checkpoint is None and sink.format not in PASSING_SINKS:
        raise PipelineError(
            f"checkpoint is missing: without it a restart would not know what the sink {sink.format!r} already has; "
            'add checkpoint = "folder" at the top of the file'
        )
    spark = top.table("spark", _SPARK, required=False)
    conf = spark.scalars("conf")
    for key, instead in (("spark.master", "master in [spark]"), ("spark.app.name", "name at the top of the file")):
        if key in conf:
            raise PipelineError(f"[spark] conf sets {key}; use {instead} for that")
    enrichments = _enrichments(top)
    masters = _masters(top, enrichments, secrets)
    if masters:
        tables = zip(written["master"], masters, strict=True)
        written = {**written, "master": [{**table, "from": made.source.address.shown} for table, made in tables]}
    return Pipeline(
        name=top.text("name") or stem,
        checkpoint=checkpoint,
        trigger=_trigger(top),
        source=source,
        masters=masters,
        enrichments=enrichments,
        sink=sink,
        master=spark.text("master") or "local[*]",
        conf=conf,
        written=written,
        secrets=secrets,
    )


def _source(table: _Table) -> Source:
    source = Source(
        format=table.needed("format"),
        path=table.text("path"),
        schema=table.text("schema"),
        sql=table.text("sql"),
        options=table.scalars("options"),
    )
    if source.format in FILE_FORMATS:
        if source.path is None:
            raise PipelineError(f'[source] reads {source.format} files but names no path; add path = "folder"')
        if source.schema is None and source.format not in _SCHEMALESS:
            raise PipelineError(
                f"[source] reads {source.format} files but has no schema, which Spark does not guess for a stream; "
                'add schema = "column type, …", for example "sku BIGINT, n INT"'
            )
    return source


def _sink(table: _Table) -> Sink:
    sink = Sink(
        format=table.needed("format"),
        path=table.text("path"),
        mode=table.choice("mode", MODES),
        partition_by=table.names("partition_by") or [],
        sql=table.text("sql"),
        options=table.scalars("options"),
        writer=table.choice("writer", WRITERS) if "writer" in table.values else None,
    )
    if sink.path is None and sink.format in FILE_FORMATS:
        raise PipelineError(f'[sink] writes {sink.format} files but names no path; add path = "folder"')
    if sink.writer == "workers":
        if sink.format not in FORMATS:
            raise PipelineError(
                f'[sink] writer = "workers" cannot write {sink.format}; it writes {", ".join(FORMATS)}; leave it out'
            )
        if sink.mode != "append":
            raise PipelineError(
                f'[sink] writer = "workers" has no mode {sink.mode!r}; leave the mode or the writer out'
            )
        if sink.path is None:
            raise PipelineError('[sink] writer = "workers" writes to a path, or a table of that name; add path = "…"')
    return sink


def _tables(top: _Table, key: str) -> list[tuple[str, dict[str, Any]]]:
    """The tables of a list, and what messages call each."""
    given = top.values.get(key, [])
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        raise PipelineError(f"{key} must be one or more tables [[{key}]] (two brackets)")
    places = [f"[[{key}]]" if len(given) == 1 else f"[[{key}]] number {number}" for number in range(1, len(given) + 1)]
    return list(zip(places, given, strict=True))


def _masters(top: _Table, enrichments: Sequence[Enrichment], secrets: Secrets) -> tuple[MasterData, ...]:
    used = {enrichment.master for enrichment in enrichments}
    made: list[MasterData] = []
    for place, values in _tables(top, "master"):
        try:
            one = _master(_Table(place, values, _MASTER), secrets)
        except PipelineError:
            raise
        except SemiStreamError as error:
            raise PipelineError(f"{place}: {error}") from None
        if one.path not in used:
            raise PipelineError(f"{place}: no [[enrich]] has master = {one.path!r}; name the path of this store there")
        if one.path in {other.path for other in made}:
            raise PipelineError(f"{place} is the second one with path = {one.path!r}")
        made.append(one)
    return tuple(made)


def _master(table: _Table, secrets: Secrets) -> MasterData:
    on = table.values.get("on")
    keys = [on] if isinstance(on, str) else on
    if not isinstance(keys, list) or not keys or not all(isinstance(key, str) and key for key in keys):
        raise PipelineError(f'{table.place}: on = {on!r} must name the key columns of the source: "k", or ["k1", "k2"]')
    lag = table.values.get("lag")
    source = open_source(
        table.needed("from"),
        on=keys,
        columns=table.names("select"),
        where=table.names("where") or (),
        watermark=table.text("watermark"),
        deletes=table.text("deletes"),
        lag=lag if isinstance(lag, int | float) and not isinstance(lag, bool) else table.text("lag"),
        secrets=secrets,
    )
    schedule = None
    if "refresh" in table.values:
        times = _Table(f"{table.place} refresh", table.inner("refresh"), _REFRESH)
        oldest = times.text("max_age")
        every = parse_seconds(times.needed("every"))
        schedule = Schedule(
            every, None if oldest is None else parse_seconds(oldest), times.choice("on_stale", ON_STALE)
        )
    keep = table.values.get("keep", 1)
    if not isinstance(keep, int) or isinstance(keep, bool) or keep < 0:
        raise PipelineError(f"{table.place}: keep = {keep!r} must be a whole number from 0 on")
    memory = parse_bytes(table.values.get("memory", DEFAULT_MEMORY_LIMIT))
    return MasterData(table.needed("path"), source, schedule, memory, keep)


def _enrichments(top: _Table) -> tuple[Enrichment, ...]:
    given = top.values.get("enrich")
    if not isinstance(given, list) or not given or not all(isinstance(item, dict) for item in given):
        raise PipelineError("there is no [[enrich]] table (two brackets); add at least one with master and on")
    made: list[Enrichment] = []
    for number, values in enumerate(given, 1):
        place = "[[enrich]]" if len(given) == 1 else f"[[enrich]] number {number}"
        try:
            made.append(_enrichment(_Table(place, values, _ENRICH), {other.name for other in made}))
        except PipelineError:
            raise
        except SemiStreamError as error:
            raise PipelineError(f"{place}: {error}") from error
    return tuple(made)


def _enrichment(table: _Table, taken: set[str]) -> Enrichment:
    master = table.needed("master")
    name = table.text("name") or Path(master).name
    if name in taken:
        raise PipelineError(f'{table.place} is the second one named {name!r}; give it another name = "…"')
    given = MissingOptions(
        on_missing=table.text("on_missing"),
        wait=table.text("wait"),
        wait_bytes=table.values.get("wait_bytes"),
        then=table.text("then"),
        dead_letters=table.text("dead_letters"),
        dead_letter_format=table.text("dead_letter_format"),
    )
    how, missing = given.read(table.text("how"))
    request = JoinRequest.make(
        on=table.key_columns("on"),
        how=how,
        select=table.names("select"),
        as_of=table.text("as_of"),
        valid=table.names("valid"),
        memory=table.values.get("memory", DEFAULT_MEMORY),
        algorithm=table.text("algorithm") or DEFAULT_ALGORITHM,
        suffix=table.text("suffix") or "_right",
        max_delay=table.text("max_delay"),
        reads=table.choice("reads", READS),
        options=table.inner("options"),
    )
    shuffle = table.choice("shuffle", SHUFFLES) if "shuffle" in table.values else None
    if missing.waits:
        check_waiting_request(request, is_stream=True)
    return Enrichment(master, name, checked(request), shuffle, missing)


def _trigger(top: _Table) -> dict[str, Any]:
    """The arguments of Spark's `trigger`; none means: the next batch begins when the last one ends."""
    given = top.values.get("trigger")
    if isinstance(given, dict):
        given = top.table("trigger", ("processingTime",)).needed("processingTime")
    elif given in ("availableNow", "once"):
        return {str(given): True}
    if given is None:
        return {}
    if not isinstance(given, str) or not _INTERVAL.fullmatch(given.strip()):
        raise PipelineError(
            f'trigger = {given!r} is unknown; allowed are "availableNow", "once", and an interval such as '
            '"10 seconds" (or none: batches follow one another)'
        )
    return {"processingTime": re.sub(r"(?<=\d)\s*(ms|s|m|h)$", lambda unit: f" {_SHORT_UNITS[unit[1]]}", given.strip())}


def _filled(value: Any, secrets: Secrets, place: str) -> Any:
    if place == _UNFILLED:
        return value
    if isinstance(value, str):
        return secrets.fill(value, place)
    if isinstance(value, dict):
        return {key: _filled(inner, secrets, f"{place}.{key}" if place else key) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, secrets, place) for inner in value]
    return value


class _Table:
    """A TOML table whose keys are known and whose values are checked as they are taken."""

    def __init__(self, place: str, values: Mapping[str, Any], allowed: Iterable[str]) -> None:
        self.place, self.values = place, values
        known = list(allowed)
        for key in values:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=2, cutoff=0.5)
                hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"it has {', '.join(known)}"
                raise PipelineError(f"{place} has no key {key!r}; {hint}")

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise PipelineError(f"{self.place}: {key} = {value!r} must be a text that is not empty")
        return value

    def needed(self, key: str) -> str:
        value = self.text(key)
        if value is None:
            raise PipelineError(f'{self.place} has no {key}; add {key} = "…"')
        return value

    def choice(self, key: str, allowed: tuple[str, ...]) -> str:
        """One of a few words; the first of them if none is given."""
        value = self.text(key) or allowed[0]
        if value not in allowed:
            raise PipelineError(f"{self.place}: {key} = {value!r} is unknown; allowed are {', '.join(allowed)}")
        return value

    def names(self, key: str) -> list[str] | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
            raise PipelineError(f"{self.place}: {key} = {value!r} must be a list of column names")
        return value

    def key_columns(self, key: str) -> str | list[str] | dict[str, str]:
        value = self.values.get(key)
        texts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        if not value or not all(isinstance(text, str) and text for text in texts):
            raise PipelineError(
                f'{self.place}: {key} = {value!r} must name the key columns: "k", or ["k1", "k2"], or '
                '{ stream_column = "master_column" }'
            )
        return value  # type: ignore[no-any-return]

    def inner(self, key: str) -> dict[str, Any]:
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise PipelineError(f"{self.place}: {key} = {value!r} must be a table: {key} = {{ name = value }}")
        return value

    def scalars(self, key: str) -> dict[str, str]:
        """Options as Spark takes them: texts, with `true` and `false` for the truth values."""
        made = {}
        for name, value in _flat(self.inner(key)):
            if isinstance(value, bool):
                made[name] = str(value).lower()
            elif isinstance(value, str | int | float):
                made[name] = str(value)
            else:
                raise PipelineError(f"{self.place}: {key}.{name} must be a text, a number or true or false")
        return made

    def table(self, key: str, allowed: tuple[str, ...], required: bool = True) -> _Table:
        value = self.values.get(key, None if required else {})
        if not isinstance(value, dict):
            raise PipelineError(f"there is no table [{key}]; add one with {', '.join(allowed[:2])}")
        return _Table(f"[{key}]", value, allowed)


def _flat(values: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    """Dotted keys joined again: TOML reads `kafka.bootstrap.servers = …` as tables within tables."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value
