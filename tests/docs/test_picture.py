"""The picture of the README and the numbers beside it are those of `results/`."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from tests.docs.pages import ROOT


@pytest.fixture(scope="module")
def picture() -> ModuleType:
    spec = importlib.util.spec_from_file_location("picture", ROOT / "docs" / "tools" / "picture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_can_be_drawn_again(picture: ModuleType, tmp_path: Path) -> None:
    picture.draw(tmp_path / "again.svg")
    for file in (tmp_path / "again.svg", picture.PICTURE):
        drawn = file.read_text(encoding="utf-8")
        assert all(label in drawn for label, _, _ in picture.SERIES.values())
        assert all(f"{rows} million" in drawn for rows in (1, 10, 50))


@pytest.mark.parametrize(("rows", "beside", "line"), [(10, "native", 0), (50, "native", 1), (10, "transport", 2)])
def test_ratios_in_the_readme(picture: ModuleType, rows: int, beside: str, line: int) -> None:
    rates = picture.measured()[rows * 1_000_000]
    rows_of_table = re.findall(r"^\| .*\| ([\d.]+), ([\d.]+) \|$", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    for how, written in zip(("inner", "left"), rows_of_table[line], strict=True):
        base = rates[beside] if beside == "transport" else rates[f"native {how}"]
        assert float(written) == pytest.approx(rates[f"sweepjoin {how}"] / base, rel=0.02)
