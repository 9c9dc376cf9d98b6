"""The report: complete, self-contained, well-formed, escaped, and the same every time."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.lab.report.made_up import BOX, EMPTY, FIGURES, LINES, NASTY, SURFACE, points, write_points

from semistream.errors import StoreError
from semistream.lab.figure import Point
from semistream.lab.figures.rate_memory import judge_5a
from semistream.lab.report.html import write_report
from semistream.lab.report.marks import dependence

MEASURED = [figure for figure in FIGURES if figure is not EMPTY]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report")
    write_points(out, points())
    return write_report(out, FIGURES)


@pytest.fixture(scope="module")
def tree(page: Path) -> ElementTree.Element:
    return ElementTree.fromstring(page.read_text(encoding="utf-8").removeprefix("<!DOCTYPE html>"))


def _text(element: ElementTree.Element) -> str:
    return "".join(element.itertext())


def test_every_figure_has_a_section_a_picture_and_a_line_in_the_claims_table(tree: ElementTree.Element) -> None:
    sections = {section.get("id"): section for section in tree.iter("section")}
    claims = next(table for table in tree.iter("table") if table.get("class") == "claims")
    assert len(sections) == len(MEASURED)
    for figure in MEASURED:
        section = sections[f"figure-{figure.id}"]
        assert figure.claim in _text(section)
        assert figure.claim in _text(claims)
        assert any(svg.get("class") == "plot" for svg in section.iter("svg"))


def test_the_claims_stand_in_a_table_of_their_own(page: Path) -> None:
    lines = page.with_name("claims.md").read_text(encoding="utf-8").splitlines()
    for figure in MEASURED:
        (row,) = [line for line in lines if line.startswith(f"| {figure.id}: ")]
        assert len(re.findall(r"(?<!\\)\|", row)) == 9
    assert f"- not measured: {EMPTY.id}" in lines


def test_a_claim_has_three_marks_per_clock_and_its_numbers_behind_a_click(tree: ElementTree.Element) -> None:
    claims = next(table for table in tree.iter("table") if table.get("class") == "claims")
    (row,) = [row for row in claims.iter("tr") if _text(row).startswith(LINES.id)]
    cells = [_text(cell) for cell in row.iter("td")]
    assert cells[2:] == ["✓✗✓0.30–0.40", "✗––*", ""]
    (details,) = row.iter("details")
    assert "A note." in _text(details)
    summary = details.find("summary")
    assert summary is not None
    assert _text(summary) == LINES.claim


def test_how_many_claims_hold_is_told_by_clock_and_part(tree: ElementTree.Element) -> None:
    tally = next(table for table in tree.iter("table") if table.get("class") == "tally")
    rows = [[_text(cell) for cell in row] for row in tally.iter("tr")]
    assert rows == [
        ["", "direction", "size", "trend"],
        ["counts", "1 of 1", "0 of 1", "1 of 1"],
        ["wall clock", "0 of 1", "0 of 0", "0 of 0"],
    ]


def test_the_page_opens_with_a_story(page: Path, tree: ElementTree.Element) -> None:
    story = next(found for found in tree.iter("div") if found.get("class") == "story")
    pictures = list(story.iter("figure"))
    assert 2 <= len(pictures) <= 10
    assert all(picture.find("svg") is not None for picture in pictures)
    text = page.read_text(encoding="utf-8")
    assert text.index('class="story"') < text.index('class="claims"') < text.index("<section")


def test_the_papers_numbers_stand_beside_ours(tree: ElementTree.Element) -> None:
    beside = "Beside the numbers of the paper's text"
    sections = {section.get("id"): _text(section) for section in tree.iter("section")}
    assert [name for name, text in sections.items() if beside in text] == [f"figure-{LINES.id}"]


def test_every_figure_says_how_it_was_taken(tmp_path: Path) -> None:
    settings = {"scale": "small", "tuning": "tuned for the papers profile", "cpus": 2}
    given = [
        Point(LINES.id, "papers", "ssbj", float(x), 1.0, 1.0, 1.0, 1, {**settings, "steady": x > 1}) for x in (1, 2, 3)
    ]
    write_points(tmp_path, given)
    text = write_report(tmp_path, (LINES,)).read_text(encoding="utf-8")
    assert "contestants: tuned for the papers profile; 2 of 3 points at rest, the others have a ring; 2 CPUs" in text


def test_what_depends_on_unit_costs_is_said() -> None:
    curves = {"ssbj": {1.0: 70.0, 10.0: 820.0}, "meshjoin": {1.0: 10.0, 10.0: 100.0}}

    def priced(factor: float) -> list[Point]:
        return [
            Point("ssbj-5a", "papers", name, x, y * (factor if name == "ssbj" else 1), y, y, 1)
            for name, curve in curves.items()
            for x, y in curve.items()
        ]

    verdict = judge_5a(priced(1.0))
    figure = replace(LINES, judge=judge_5a)
    same = dependence(figure, verdict, {"seek × 4": priced(1.0)})
    assert same == "No part of it changes with seek × 4."
    other = dependence(figure, verdict, {"seek × 4": priced(0.1), "c_O ÷ 4": priced(1.0)})
    assert "direction does not hold with seek × 4" in other
    assert "c_O" not in other
    assert dependence(figure, verdict, {}) == ""


def test_a_figure_without_points_is_named(tree: ElementTree.Element) -> None:
    assert f"not measured{EMPTY.id}" in _text(tree)
    assert EMPTY.claim not in _text(tree)


def test_every_raw_point_is_there(tree: ElementTree.Element) -> None:
    rows = [row for details in tree.iter("details") for body in details.iter("tbody") for row in body.iter("tr")]
    assert len(rows) == len(points())


def test_machine_versions_seed_and_scale_are_shown(tree: ElementTree.Element) -> None:
    about = _text(next(found for found in tree.iter("dl") if found.get("class") == "about"))
    for value in ("small", "7", "2 cores, x86_64", "semistream 0.1.0"):
        assert value in about


def test_nothing_comes_from_elsewhere(page: Path, tree: ElementTree.Element) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"https?://|@import|<script|<link|<img|<iframe", text)
    for element in tree.iter():
        for name in ("href", "src"):
            assert element.get(name, "#").startswith(("#", "data:"))


def test_ids_are_unique_and_references_lead_somewhere(page: Path, tree: ElementTree.Element) -> None:
    ids = [element.get("id") for element in tree.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    text = page.read_text(encoding="utf-8")
    wanted = re.findall(r'href="#([^"]+)"', text) + re.findall(r"url\(#([^)]+)\)", text)
    assert wanted
    assert set(wanted) <= set(ids)


def test_text_is_escaped(page: Path, tree: ElementTree.Element) -> None:
    assert "<b>faster" not in page.read_text(encoding="utf-8")
    # The title in heading, table and contents; the reason; the note of the point without a value.
    assert _text(tree).count(NASTY) >= 5


def test_colours_follow_the_page(page: Path) -> None:
    """A colour that is fixed in a picture would be lost on a dark page."""
    text = page.read_text(encoding="utf-8")
    variables = set(re.findall(r"var\((--[a-z0-9]+)\)", text))
    light, dark = text.split("prefers-color-scheme: dark", 1)
    for variable in variables:
        assert f"{variable}:" in light
        assert f"{variable}:" in dark.split("*", 1)[0]
    drawn = re.findall(r'style="(?:stroke|fill): (#[0-9a-f]{6})', text)
    assert "#1a1a1b" not in drawn


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    figures = (BOX, SURFACE)
    mine = [p for p in points() if p.figure in {figure.id for figure in figures}]
    pages = []
    for name in ("one", "other"):
        write_points(tmp_path / name, mine)
        pages.append(write_report(tmp_path / name, figures))
    one, other = pages
    assert one.read_bytes() == other.read_bytes()
    for plot in (one.parent / "plots").iterdir():
        assert plot.read_bytes() == (other.parent / "plots" / plot.name).read_bytes()


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="semistream reproduce"):
        write_report(tmp_path, FIGURES)
