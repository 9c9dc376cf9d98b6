"""The picture of the README and the numbers beside it are those of `results/`."""

from __future__ import annotations

import importlib.util
import json
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


NATIVE, SPARKS = "native inner, Spark's parquet", "sweepjoin inner, Spark's parquet"
#: two ratios of a line of the README's table: the million rows of R, and who is compared with whom
LINES = [
    [(10, "sweepjoin inner", "native inner"), (50, "sweepjoin inner", "native inner")],
    [(10, "write inner, parquet", NATIVE), (10, "write inner, delta", NATIVE)],
    [(10, "write inner, parquet", SPARKS), (10, "write inner, delta", SPARKS)],
    [(10, "sweepjoin inner", "transport"), (50, "sweepjoin inner", "transport")],
]


@pytest.mark.parametrize("line", range(len(LINES)))
def test_ratios_in_the_readme(line: int) -> None:
    lines = re.findall(r"^\| .*\| ([\d.]+), ([\d.]+) \|$", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    for (millions, ours, theirs), written in zip(LINES[line], lines[line], strict=True):
        content = json.loads((ROOT / "results" / "spark" / "tuned" / f"{millions}m.json").read_text())
        rates = content["results"][0]["rates"]
        assert float(written) == pytest.approx(rates[ours] / rates[theirs], rel=0.02)
