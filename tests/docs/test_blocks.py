"""Every command and every piece of Python in the documentation is run, or at least parsed, so it stays true."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.docs.pages import NAMES, ROOT, Block, blocks, check_command
from typer.testing import CliRunner

import semistream
from semistream.cli.app import app

PRODUCTS = pa.table({"sku": range(1, 1001), "name": [f"product {i}" for i in range(1, 1001)]})
ORDERS = pa.table({"order": range(4000), "sku": [i * 7 % 1200 for i in range(4000)]})
#: What some pages are to print.
PRINTED = {"README.md": "'order': 102, 'sku': 8, 'name': None, 'price': None"}


def _of_kind(kind: str) -> list[str]:
    return [name for name in NAMES if any(block.kind == kind for block in blocks(name, "sh", "python"))]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the files that commands in the documentation name."""
    monkeypatch.chdir(tmp_path)
    pq.write_table(ORDERS, "orders.parquet")
    pq.write_table(PRODUCTS, "products.parquet")
    return tmp_path


@pytest.mark.parametrize("name", _of_kind("run"))
def test_blocks_run(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = [block for block in blocks(name, "sh", "python") if block.kind == "run" and not block.included]
    if not any("build_pages" in block.text for block in found):
        semistream.build_pages(PRODUCTS, "products.pages", on="sku").close()
    names: dict[str, object] = {}
    for block in found:
        if block.language == "python":
            exec(block.compiled(), names)  # type: ignore[arg-type]
        else:
            _run_commands(block)
    assert PRINTED.get(name, "") in capsys.readouterr().out


def _run_commands(block: Block) -> None:
    for program, *words in block.commands:
        assert program == "semistream", f"{program} is not run; mark the block with <!-- not run: REASON -->"
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, f"{shlex.join(words)}: {done.output}"


@pytest.mark.parametrize("name", _of_kind("parsed"))
def test_blocks_that_cannot_run_are_parsed(name: str) -> None:
    for block in blocks(name, "sh", "python"):
        if block.kind != "parsed":
            continue
        if block.language == "python":
            block.compiled()
        for words in block.commands if block.language == "sh" else ():
            check_command(words)


@pytest.mark.parametrize("name", NAMES)
def test_data_in_blocks_can_be_read(name: str) -> None:
    for block in blocks(name, "json"):
        json.loads(block.text)
    for block in blocks(name, "toml"):
        tomllib.loads(block.text)


@pytest.mark.parametrize("name", NAMES)
def test_a_block_is_of_a_kind_that_is_checked(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    # Interpreter sessions ("pycon") are run by tests/lab/test_arguments.py.
    known = ("", "text", "sh", "python", "toml", "json", "pycon")
    assert text.count("```") == 2 * len(blocks(name, *known))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_included_as_python_is_an_example_that_runs(name: str) -> None:
    for block in blocks(name, "python"):
        assert block.included is None or block.included.startswith("examples/")
