"""Addresses of sources: their parts, what is shown of them, and mistakes; filters of rows and positions."""

from __future__ import annotations

import pyarrow as pa
import pytest

from semistream.errors import ConfigError
from semistream.sources.address import name_parts, read_address
from semistream.sources.base import Position
from semistream.sources.mysql import literal
from semistream.sources.open import open_source
from semistream.sources.postgresql import PostgresSource
from semistream.sources.secrets import Secrets
from semistream.sources.where import as_text, expression, read_conditions, typed

WORD = "p@ss:wo/rd%20?#"


def test_parts_and_what_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", WORD)
    monkeypatch.setenv("HOST", "db.example")
    secrets = Secrets()
    text = "postgres://app:${PW}@${HOST}:5433/shop?table=sales.products&sslmode=require&sslpassword=hush-hush"
    found = read_address(text, secrets)
    assert (found.kind, found.host, found.port, found.path) == ("postgresql", "db.example", 5433, "shop")
    assert (found.user, found.password) == ("app", WORD)
    assert found.options == {"table": "sales.products", "sslmode": "require", "sslpassword": "hush-hush"}
    assert found.shown == "postgresql://${HOST}:5433/shop?table=sales.products&sslmode=require"
    assert WORD not in repr(found) + found.shown
    assert secrets.redact(f"no {WORD} and no hush-hush") == "no ${PW} and no ${sslpassword}"


def test_a_password_may_be_escaped_in_the_address_and_raw_in_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", WORD)
    for text in ("mysql://u:${PW}@h/d?table=t", "mysql://u:p%40ss%3Awo%2Frd%2520%3F%23@h/d?table=t"):
        secrets = Secrets()
        found = read_address(text, secrets)
        assert found.password == WORD
        assert WORD not in secrets.redact(f"denied for {WORD}")
    assert read_address("mysql://h/d?table=t", Secrets()).digest == found.digest, "credentials do not tell a place"
    assert read_address("mysql://h/e?table=t", Secrets()).digest != found.digest


def test_all_of_an_address_in_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP", f"postgresql://u:{'secret-word'}@h/d?table=t")
    secrets = Secrets()
    found = read_address("${SHOP}", secrets)
    assert (found.kind, found.shown, found.password) == ("postgresql", "${SHOP}", "secret-word")
    assert "secret-word" not in secrets.redact("denied: secret-word")
    read_address("mysql://u:other-word@h/d?table=t", secrets)
    assert secrets.redact("secret-word, other-word") == "${password}, ${password 2}"


@pytest.mark.parametrize(
    ("text", "kind", "path"),
    [
        ("products.parquet", "parquet", "products.parquet"),
        ("/data/a:b", "parquet", "/data/a:b"),
        ("parquet:/data/r", "parquet", "/data/r"),
        ("delta:/data/r", "delta", "/data/r"),
        ("delta:s3://bucket/r", "delta", "s3://bucket/r"),
        ("sqlite:///data/x.db?table=t", "sqlite", "/data/x.db"),
        ("sqlite:x.db?table=t", "sqlite", "x.db"),
        ("DUCKDB:x.db?table=t", "duckdb", "x.db"),
        ("iceberg:a.b?catalog=c", "iceberg", "a.b"),
    ],
)
def test_kinds(text: str, kind: str, path: str) -> None:
    found = read_address(text, Secrets())
    assert (found.kind, found.path) == (kind, path)


@pytest.mark.parametrize(
    ("text", "more", "expected"),
    [
        ("", {}, "is empty"),
        ("oracle://h/d?table=t", {}, "'oracle' are not known"),
        ("postgresql://h/d", {}, "names no table"),
        ("mysql://h/?table=t", {}, "names no database"),
        ("mysql://h:x/d?table=t", {}, "port 'x'"),
        ("mysql://u:${NOT_SET_HERE}@h/d?table=t", {}, "${NOT_SET_HERE}, which is not set"),
        ("sqlite:x.db?table=t&mode=rw", {}, "no option 'mode'"),
        ("sqlite:?table=t", {}, "names no path"),
        ("sqlite:x.db?table=a..b", {}, "is no name"),
        ("iceberg:a.b", {}, "needs a catalog"),
        ("r.parquet", {"watermark": "w", "deletes": "none"}, "leave the watermark out"),
        ("sqlite:x.db?table=t", {"watermark": "w"}, "deletes is missing"),
        ("sqlite:x.db?table=t", {"watermark": "w", "deletes": "maybe"}, "'maybe' is unknown"),
        ("sqlite:x.db?table=t", {"lag": "5m"}, "give watermark"),
        ("sqlite:x.db?table=t", {"where": ["a like 'b%'"]}, "cannot be read"),
        ("sqlite:x.db?table=t", {"where": ["a in b,"]}, "no value that fits"),
    ],
)
def test_mistakes(text: str, more: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError) as found:
        open_source(text, on="k", **more)  # type: ignore[arg-type]
    assert expected in str(found.value)


def test_names_are_quoted() -> None:
    source = open_source("""postgresql://h/d?table=s."a""b.c" """.strip(), on="k")
    assert isinstance(source, PostgresSource)
    assert source.quoted_table == '"s"."a""b.c"'
    mysql = open_source('mysql://h/d?table="a`; DROP TABLE x"', on="k")
    assert mysql.quoted_table == "`a``; DROP TABLE x`"  # type: ignore[attr-defined]
    assert name_parts("a b.c", "table") == ["a b", "c"]


def test_literals_have_no_text_of_anybody() -> None:
    evil = "'; DROP TABLE x; -- \\ä"
    assert literal(evil) == f"_utf8mb4 X'{evil.encode().hex()}'"
    assert literal(b"'") == "X'27'"
    assert [literal(value) for value in (None, True, -5, 0.5)] == ["NULL", "TRUE", "-5", "0.5"]
    with pytest.raises(ConfigError):
        literal(float("nan"))


def test_conditions_are_what_they_say() -> None:
    table = pa.table({"a": [1, 2, None, 4], "s": ["x", "y's", None, "z"]})

    def kept(*texts: str) -> list[int | None]:
        found: list[int | None] = table.filter(expression(read_conditions(texts), table.schema))["a"].to_pylist()
        return found

    assert kept("a > 1") == [2, 4]
    assert kept("a <> 2") == [1, 4], "a null is not another value"
    assert kept("s = 'y''s'") == kept("s='y''s'") == [2]
    assert kept("a is null") == [None]
    assert kept("s is not null", "a in 1, 4, 9") == [1, 4]
    with pytest.raises(ConfigError, match="'x' is no value of the column 'a'"):
        kept("a = x")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("2026-01-02 03:04:05.678901+00:00", pa.timestamp("us", "UTC")),
        ("2026-01-02 03:04:05.678901", pa.timestamp("us")),
        ("2026-01-02", pa.date32()),
        ("-12.50", pa.decimal128(10, 2)),
        ("9223372036854775807", pa.int64()),
        ("text", pa.string()),
    ],
)
def test_a_position_survives_as_text(text: str, kind: pa.DataType) -> None:
    assert as_text(typed(text, kind, "w")) == text
    position = Position("0123", {"watermark": "w", "value": text}, 7)
    assert Position.read(str(position)) == position
    later = Position("0123", {}, 8)
    assert str(later) > str(position)
    assert Position.read("17") is None
    assert Position.read(17) is None
