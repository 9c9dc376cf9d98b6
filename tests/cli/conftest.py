"""A folder with a stream and master data, and the command to run there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from semistream.cli.app import app

Invoke = Callable[..., Result]

STREAM = pa.table({"k": [i * 7 % 300 for i in range(2000)], "n": range(2000), "city": ["Ulm", "Łódź"] * 1000})
MASTER = pa.table({"k": range(200), "price": [i / 4 for i in range(200)], "name": [f"p{i}" for i in range(200)]})


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEMISTREAM_CACHE", str(tmp_path / "cache"))
    pq.write_table(STREAM, "s.parquet")
    pq.write_table(MASTER, "r.parquet")

    def run(*words: object) -> Result:
        return CliRunner().invoke(app, [str(word) for word in words])

    return run
