"""Types of columns as a user writes them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from semistream.cli.ddl import parse_types
from semistream.errors import ConfigError


def test_types() -> None:
    assert parse_types("a int,b  BIGINT , `c d` decimal( 10 , 2 ), e decimal(5)", "--x") == {
        "a": pa.int32(),
        "b": pa.int64(),
        "c d": pa.decimal128(10, 2),
        "e": pa.decimal128(5, 0),
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no column"),
        ("a", "'a' is not understood"),
        ("a int b string", "is not understood"),
        ("a int, a string", "'a' twice"),
        ("a whole", "unknown type 'whole'"),
        ("a int(3)", r"unknown type 'int\(3\)'"),
        ("a decimal", "unknown type 'decimal'"),
        ("a decimal(50,2)", r"'decimal\(50,2\)'"),
    ],
)
def test_mistakes(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as found:
        parse_types(text, "--stream-schema")
    assert "--stream-schema" in str(found.value)
