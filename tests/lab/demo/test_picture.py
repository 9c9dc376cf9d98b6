"""The demonstration's picture: one file that needs nothing else, with axes that say what they show."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from semistream.lab.demo.picture import Line, chart, page
from semistream.lab.demo.race import Account, Sample

SVG_TEXT, SVG_PATH = "text", "path"


def _account(name: str, *loaded: int) -> Account:
    account = Account(name, 3_000_000)
    account.samples = [
        Sample(float(at), 1_000_000 * at, rows, rows / (at + 1), 300_000_000 + rows) for at, rows in enumerate(loaded)
    ]
    return account


@pytest.fixture(scope="module")
def drawn() -> ElementTree.Element:
    sides = [("theirs", _account("slow & <sure>", 0, 0, 500_000, 900_000)), ("ours", _account("quick", 0, 900_000))]
    text = page("A <title>", "A lead.", sides, {"rate": ["1", "2"], "lag": ["3", "4"]}, "The end.")
    assert not re.search(r"https?://|<script|@import|url\(", text)
    return ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))


def test_the_page_is_whole_and_escaped(drawn: ElementTree.Element) -> None:
    assert drawn.findtext("head/title") == "A <title>"
    assert [th.text for th in drawn.iter("th")][1:3] == ["slow & <sure>", "quick"]
    assert [td.text for td in drawn.iter("td")] == ["1", "2", "3", "4"]


def test_every_chart_has_a_title_a_unit_and_numbers(drawn: ElementTree.Element) -> None:
    titles = [figure.findtext("h2") or "" for figure in drawn.iter("figure")]
    assert [re.sub(r".*\((.*)\)", r"\1", title) for title in titles] == ["rows", "rows per second", "rows", "MB"]
    for figure in drawn.iter("figure"):
        words = [text.text for text in figure.iter(SVG_TEXT)]
        assert "seconds since the first sale" in words
        assert words.count("0") == 2
        assert {path.get("class") for path in figure.iter(SVG_PATH)} >= {"ours", "theirs"}


def test_colours_come_from_the_page(drawn: ElementTree.Element) -> None:
    """A colour that is fixed in a picture would be lost on a dark page."""
    style = drawn.findtext("head/style") or ""
    light, dark = style.split("prefers-color-scheme: dark")
    for name in ("ours", "theirs", "arrived", "ink", "page"):
        assert f"--{name}: #" in light
        assert f"--{name}: #" in dark
    assert not any(element.get("fill") or element.get("stroke") for element in drawn.iter())


def test_curves_stay_on_the_paper() -> None:
    text = chart("Up", "rows", [Line("ours", [(0.0, 0.0), (7.0, 130.0)]), Line("theirs", [(1.0, 3.0)], True)], 7.0)
    figure = ElementTree.fromstring(text)
    _, _, width, height = map(float, (figure.find("svg").get("viewBox") or "").split())  # type: ignore[union-attr]
    paths = {path.get("class"): path.get("d") or "" for path in figure.iter(SVG_PATH)}
    (x0, y0), (x1, y1) = ([float(n) for n in pair.split()] for pair in re.findall(r"[\d.]+ [\d.]+", paths["ours"]))
    assert 0 < x0 < x1 < width
    assert 0 < y1 < y0 < height


def test_what_was_loaded_in_time_is_what_was_there_when_the_last_sale_came() -> None:
    account = Account("late", 2)
    account.samples = [Sample(0.0, 1, 0, 0.0, 0), Sample(1.0, 2, 1, 1.0, 0), Sample(2.0, 2, 2, 1.0, 0)]
    assert account.loaded_in_time == 1
    assert account.most_lag_rows == 1
    assert Account("none", 1).loaded_in_time == 0


def test_a_query_without_a_batch_is_drawn() -> None:
    text = page("T", "", [("theirs", Account("none", 1)), ("ours", _account("one", 0))], {}, "")
    assert len(list(ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n")).iter("figure"))) == 4
