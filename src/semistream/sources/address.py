"""Where a source is, as one text: `postgresql://user@host/db?table=t`, `delta:PATH`, or the path of Parquet data.

`${NAME}` stands for an environment variable, as it is: a password needs no escapes there. What is shown and recorded
of an address has neither user nor password, and the names of variables instead of their values.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import unquote

from semistream.errors import ConfigError
from semistream.sealed import digest
from semistream.sources.secrets import Secrets

SERVERS = {"postgresql": "postgresql", "postgres": "postgresql", "mysql": "mysql", "mariadb": "mysql"}
FILES = ("delta", "iceberg", "sqlite", "duckdb", "parquet")
_FORMS = (
    "postgresql://user@host/database?table=schema.name, mysql://user@host/database?table=name, sqlite:PATH?table=name, "
    "duckdb:PATH?table=name, delta:PATH, iceberg:namespace.table?catalog=NAME, or the path of Parquet data"
)
#: a colon, slash or question mark inside of ${NAME:-default} does not divide an address
_PART = r"(?:\$\{[^}]*\}|[^@/?#:])"
_SERVER = re.compile(
    rf"(?:(?P<user>{_PART}*)(?::(?P<password>(?:\$\{{[^}}]*\}}|[^@/?#])*))?@)?"
    rf"(?P<host>\[[^]]*\]|{_PART}*)(?::(?P<port>{_PART}*))?(?:/(?P<path>(?:\$\{{[^}}]*\}}|[^?#])*))?(?:\?(?P<query>.*))?"
)
#: in the address of a catalog
_LOGIN = re.compile(r"://[^@/?#]*@")
_SECRET_OPTION = re.compile(r"pass|secret|token|credential|key|^user$", re.IGNORECASE)


@dataclass(frozen=True)
class Address:
    """The parts of an address, with values in the place of variables."""

    kind: str
    #: for messages and manifests
    shown: str
    path: str
    options: dict[str, str] = field(default_factory=dict, repr=False)
    host: str = ""
    port: int | None = None
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)

    @property
    def digest(self) -> str:
        """Tells one source from another whose address is written the same, with other values of its variables."""
        plain = {name: value for name, value in self.options.items() if not _SECRET_OPTION.search(name)}
        return digest(repr((self.kind, self.host, self.port, self.path, sorted(plain.items()))).encode())[:16]

    def option(self, name: str) -> str:
        found = self.options.get(name)
        if not found:
            raise ConfigError(f"{self.shown} names no {name}; add ?{name}=NAME, as in {_FORMS}")
        return found

    def only(self, *known: str) -> None:
        """Refuse options that nobody would read."""
        for name in self.options:
            if name not in known:
                raise ConfigError(f"{self.shown} has no option {name!r}; it has {', '.join(known) or 'none'}")


def read_address(text: str, secrets: Secrets) -> Address:
    """The parts of an address; values of variables go into `secrets`, and passwords that are written out, too."""
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"the source {text!r} is empty; allowed are {_FORMS}")
    if text.startswith("${"):
        # All of it may be in a variable, its kind as well: then nothing of it is shown.
        whole = _parts(secrets.fill(text, "the source"), Secrets(), secrets)
        return Address(**{**vars(whole), "shown": text})
    return _parts(text, secrets, secrets)


def _parts(text: str, variables: Secrets, secrets: Secrets) -> Address:
    def fill(part: str | None, plain: Callable[[str], str] = unquote) -> str:
        return variables.fill(part or "", "the source", plain)

    kind, colon, rest = text.partition(":")
    if not colon or "/" in kind or "$" in kind:
        return Address("parquet", text, fill(text, str))
    kind = kind.lower()
    if kind in SERVERS and rest.startswith("//"):
        match = _SERVER.fullmatch(rest[2:])
        if match is None:
            raise ConfigError(f"the source {kind}:… cannot be read; allowed are {_FORMS}")
        options = {name: fill(value) for name, value in _query(match["query"], kind)}
        user, password = (None if match[part] is None else fill(match[part]) for part in ("user", "password"))
        host, port = fill(match["host"]), fill(match["port"])
        if port and not port.isdigit():
            raise ConfigError(f"the source {kind}:… has the port {match['port']!r}; it must be a number")
        place = (match["host"] or "") + (f":{match['port']}" if match["port"] else "")
        shown = f"{SERVERS[kind]}://{place}/{match['path'] or ''}{_shown_query(match['query'], kind)}"
        for name, value in [("password", password or ""), *options.items()]:
            if _SECRET_OPTION.search(name):
                secrets.hide(name, value)
        return Address(
            SERVERS[kind], shown, fill(match["path"]), options, host, int(port) if port else None, user, password
        )
    if kind in FILES:
        path, _, query = _without_slashes(rest).partition("?")
        if not path:
            raise ConfigError(f"the source {text!r} names no path; allowed are {_FORMS}")
        options = {name: fill(value) for name, value in _query(query, kind)}
        for name, value in options.items():
            login = _LOGIN.search(value)
            if login is not None:
                secrets.hide(f"{name} password", unquote(login[0][3:-1].partition(":")[2]))
            if _SECRET_OPTION.search(name):
                secrets.hide(name, value)
        return Address(kind, f"{kind}:{path}{_shown_query(query, kind)}", fill(path, str), options)
    if rest.startswith("//"):
        raise ConfigError(f"sources of the kind {kind!r} are not known; allowed are {_FORMS}")
    return Address("parquet", text, fill(text, str))


def _without_slashes(rest: str) -> str:
    """`sqlite:///data/x.db` is written by many for `sqlite:/data/x.db`."""
    return rest[2:] if rest.startswith("///") else rest


def _query(query: str | None, kind: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for part in (query or "").split("&"):
        name, equals, value = part.partition("=")
        if part and not equals:
            raise ConfigError(f"an option of the source {kind}:… is no NAME=VALUE; allowed are {_FORMS}")
        if part:
            found.append((unquote(name), value))
    return found


def _shown_query(query: str | None, kind: str) -> str:
    known = [(name, value) for name, value in _query(query, kind) if not _SECRET_OPTION.search(name)]
    shown = [f"{name}={_LOGIN.sub('://', value)}" for name, value in known]
    return f"?{'&'.join(shown)}" if shown else ""


def name_parts(text: str, what: str) -> list[str]:
    """The parts of `schema.name`; a part with a dot or a space in it is written in double quotes.

    >>> name_parts('sales."price.list"', "table")
    ['sales', 'price.list']
    """
    part = r'(?:"(?:[^"]|"")+"|[^".]+)'
    if not re.fullmatch(rf"{part}(?:\.{part})*", text):
        raise ConfigError(f'{what} {text!r} is no name; write name, schema.name, or "odd name" in double quotes')
    found = re.findall(part, text)
    return [one[1:-1].replace('""', '"') if one.startswith('"') else one for one in found]
