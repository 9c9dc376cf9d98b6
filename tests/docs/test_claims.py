"""The page of claims against the figures: all of them, each once, and judged by what the page says."""

from __future__ import annotations

import re

import pytest
from tests.docs.pages import ROOT

from semistream.lab.figure import PARTS, Point
from semistream.lab.figures import inequality, main_memory, sensitivity, tuning
from semistream.lab.figures.compared import MEASURED, OURS, PAPER
from semistream.lab.figures.distribution import LAW, MADE
from semistream.lab.figures.family import OPC, OX, SSBJ, SSCJ, SSJ
from semistream.lab.figures.papers import PAPERS, paper_of
from semistream.lab.figures.registry import FIGURES

TEXT = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
OF_PAPERS = [name for name in FIGURES if paper_of(name)]


def rows() -> dict[str, list[list[str]]]:
    """The rows of each paper's table, as cells, by the key of the paper."""
    found: dict[str, list[list[str]]] = {}
    for section in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]:
        lines = [line for line in section.splitlines() if line.startswith("| ")]
        if lines:
            cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
            found[section.split()[0]] = cells[2:]
    return found


def parts_by_figure() -> dict[str, set[str]]:
    """Direction, size and trend as the page has them; "the same" is what the row before has."""
    found: dict[str, set[str]] = {}
    for table in rows().values():
        before: set[str] = set()
        for names, _, _, judged, _ in table:
            said = {part for part in PARTS if re.search(rf"\b{part}\b", judged)}
            before = said | before if "the same" in judged else said
            found |= dict.fromkeys(names.split(", "), before)
    return found


def test_every_figure_of_a_paper_stands_once_with_its_paper() -> None:
    listed = {key: [name for row in table for name in row[0].split(", ")] for key, table in rows().items()}
    assert [name for names in listed.values() for name in sorted(names)] == [
        name for paper in PAPERS for name in sorted(OF_PAPERS) if paper_of(name) == paper
    ]
    for key, names in listed.items():
        assert {paper_of(name) for name in names} == {re.sub(r"\d{4}$", "", key)}


def test_every_claim_says_where_it_stands_and_how_it_is_judged() -> None:
    for table in rows().values():
        for row in table:
            assert len(row) == 5, row
            assert all(row[:4]), row


@pytest.fixture(scope="module")
def anything() -> list[Point]:
    """Points of every curve that a judge may ask for, by a clock on which all of them judge."""
    algorithms = {name for family in (SSBJ, SSJ, SSCJ, OX, OPC) for name in family.algorithms}
    series = {
        *algorithms,
        *(f"{name} {kind}" for name in algorithms for kind in (MEASURED, PAPER, OURS)),
        *(MEASURED, PAPER, OURS, MADE, LAW, tuning.AT_PAPERS, tuning.AT_OURS),
        *("ssij", inequality.BALANCED, main_memory.RESIDENT, sensitivity.LITERAL),
    }
    return [
        Point("", "wall", name, x, 1 + x, 1 + x, 1 + x, 1, {"load": x, "cache_share": x, "buffer_share": x})
        for name in sorted(series)
        for x in (0.0, 0.5, 1.0, 2.0, 9.0, 10.0)
    ]


@pytest.mark.parametrize("name", OF_PAPERS)
def test_what_is_judged_is_what_the_page_says(name: str, anything: list[Point]) -> None:
    marks = FIGURES[name].judge(anything).marks["wall"]
    assert {part for part in PARTS if marks.of(part) is not None} == parts_by_figure()[name]
