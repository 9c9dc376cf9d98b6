"""What the project cites can be looked up by a reader who has nothing but the project."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from token import NAME

import pytest

from semistream.algorithms.registry import ALGORITHMS
from semistream.lab.figures.papers import PAPERS

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
KEYS = re.findall(r"^### (\w+)$", PAGES, flags=re.MULTILINE)

#: papers by a number that only their first reader has, and documents that are not part of the project
NOWHERE = re.compile(
    r"\bseeds? 00|\b00[0-4] (?:§|eqs? |section )|DESIGN\s§|plan\sof\srecord|bars\sof\sthe\splan", re.IGNORECASE
)


def _texts() -> Iterator[Path]:
    for folder in ("src", "tests", "benchmarks", "docs"):
        yield from (path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md", ".toml", ".css"))
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "pyproject.toml"))


def test_nothing_cites_what_a_reader_cannot_have() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in _texts()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if NOWHERE.search(line)
    ]
    assert not found, "\n".join(found)


def test_no_name_says_only_that_somebody_said_it() -> None:
    """`told` was the name of records, options, messages and sums alike; a name says what it holds."""
    for path in _texts():
        if path.suffix == ".py" and "told" in (text := path.read_text(encoding="utf-8")):
            names = (token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == NAME)
            found = [token.start[0] for token in names if token.string in ("told", "_told")]
            assert not found, f"{path.relative_to(ROOT)}, lines {found}"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_papers_of_an_operator_are_listed(name: str) -> None:
    operator = ALGORITHMS[name]
    cited = [part.split(" ")[0] for part in operator.paper.split(", ")]
    assert cited == ["ours"] or set(cited) <= set(KEYS)
    assert all(key in operator.about for key in cited if key != "ours")


def test_papers_are_listed_once_and_name_files_that_exist() -> None:
    assert len(KEYS) == len(set(KEYS)) >= 14
    named = re.findall(r"`([a-z]+/[a-z_]+\.py)`", PAGES)
    assert len(named) > 30
    for file in named:
        assert (ROOT / "src" / "semistream" / file).is_file(), file


def test_the_report_names_papers_by_their_keys() -> None:
    for word, heading in PAPERS.items():
        (key,) = re.findall(r"\((\w+)\)$", heading)
        assert key in KEYS
        assert key.startswith(word)
