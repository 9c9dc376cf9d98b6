"""What must hold for the pages, as far as it can be seen without the tools that build the site (`make docs`)."""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
import unicodedata
from pathlib import Path
from types import ModuleType

import pytest
from tests.docs.pages import NAMES, ROOT, blocks, check_command, included, prose

from semistream.algorithms.registry import ALGORITHMS
from semistream.engine.options import defaults, rules

DOCS = ROOT / "docs"
SITE = (ROOT / "properdocs.yml").read_text()
#: Public modules, and the page that shows each.
PUBLIC = {"semistream": "semistream", "semistream.spark": "spark", "semistream.testing": "testing"}
#: Folders whose pages are listed by docs/tools/site.py.
LISTED = ("operators", "decisions")


def test_every_page_is_in_the_navigation_and_every_entry_is_a_page() -> None:
    listed = set(re.findall(r"^ +- (?:.*: )?([\w/.-]+\.md)$", SITE, flags=re.MULTILINE))
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    implied = {page for page in pages if page.startswith(LISTED) and not page.endswith("README.md")}
    assert listed == pages - implied


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(name))):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        found = (ROOT / name).parent / file if file else ROOT / name
        assert found.exists(), target
        assert not name.startswith("docs/") or found.resolve().is_relative_to(DOCS), f"{target} is not on the site"
        assert not anchor or anchor in _anchors(found), target


def _anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    plain = (unicodedata.normalize("NFKD", head).encode("ascii", "ignore").decode() for head in heads)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", head).strip().lower()) for head in plain}


@pytest.mark.parametrize("name", NAMES)
def test_lines_are_short(name: str) -> None:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > 120 and not line.startswith("|")] == []


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_documented_and_shown(module: str) -> None:
    home = importlib.import_module(module)
    shown = (DOCS / "api" / f"{PUBLIC[module]}.md").read_text().splitlines()
    for name in home.__all__:
        found = getattr(home, name)
        assert f"::: {module}.{name}" in shown
        assert inspect.getdoc(found), name
        for member, value in vars(found).items() if inspect.isclass(found) else ():
            if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                assert inspect.getdoc(getattr(found, member)), f"{name}.{member}"


@pytest.fixture(scope="module")
def made() -> ModuleType:
    """What makes the pages of algorithms: it reads their files and has not seen the registry."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS / "tools")
        return importlib.import_module("algorithm_pages")


def test_every_algorithm_gets_a_page_and_a_row_in_the_table(made: ModuleType) -> None:
    assert [each.name for each in made.described()] == sorted(ALGORITHMS)
    rows = made.table().splitlines()
    assert len(rows) == 2 + len(ALGORITHMS)
    for name, row in zip(sorted(ALGORITHMS), rows[2:], strict=True):
        assert row.startswith(f"| [`{name}`]({name}.md)")
    assert (DOCS / "operators" / "README.md").read_text().count("<!-- the table of algorithms stands here on") == 1


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_page_says_what_the_record_says(made: ModuleType, algorithm: str) -> None:
    (found,) = [each for each in made.described() if each.name == algorithm]
    record, page = ALGORITHMS[algorithm], made.page(found)
    assert found.record == {name: getattr(record, name) for name in found.record}
    assert {name: rule for name, (_, rule) in found.options.items()} == rules(record.options)
    assert {name: default for name, (default, _) in found.options.items()} == defaults(record.options)
    assert inspect.cleandoc(record.about) == found.about
    for word in (algorithm, *record.aliases, *found.options):
        assert f"`{word}`" in page
    for key in re.findall(r"[a-z]+\d{4}", record.paper):
        assert f"[{key}](../papers.md#{key})" in page
    for part in ("**Needs of R:** ", "**Memory:** ", "**Cost:** ", "```pycon\n>>> "):
        assert page.count(part) == 1


def test_nobody_has_to_write_a_page(made: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssbj = next(each for each in made.described() if each.name == "ssbj")
    assert "## Guarantees" in made.page(ssbj)
    monkeypatch.setattr(made, "WRITTEN", tmp_path)
    page = made.page(ssbj)
    assert page.startswith("# SSBJ\n\nThe semi-stream balanced join, ")
    assert "| `switching_factor` | `1.0` | numbers above 0 | " in page
    assert "## Guarantees" not in page
    (tmp_path / "ssbj.md").write_text("# SSBJ\n\n## A drawing\n")
    assert made.page(ssbj) == f"{page}\n## A drawing\n"


@pytest.mark.parametrize("page", sorted(path.stem for path in (DOCS / "operators").glob("[!R]*.md")))
def test_what_is_written_about_an_algorithm_goes_beyond_its_file(page: str) -> None:
    assert page in ALGORITHMS
    text = (DOCS / "operators" / f"{page}.md").read_text()
    assert not re.search(r"\b(Memory|Cost|Needs of R)\b[.:]", text), "the docstring says that"
    assert not re.search(r"\bdefault:? [\d.]", text), "the options say that"


def test_code_that_pages_name_exists() -> None:
    folders = ("src", "tests", "benchmarks", "examples")
    code = "\n".join(file.read_text() for folder in folders for file in (ROOT / folder).rglob("*.py"))
    words = set(re.findall(r"\w+", code))
    for name in NAMES:
        text = prose(name)
        files = re.findall(r"`((?:\w+/)+\w+\.py)`", text)
        assert not [file for file in files if not ((ROOT / file).exists() or (ROOT / "src/semistream" / file).exists())]
        if name.startswith("docs/operators/"):
            named = re.findall(r"`([A-Za-z_][\w.]*)(?:\([^`]*\))?`", text)
            assert not [whole for whole in named if not set(whole.split(".")) <= words], name


@pytest.mark.parametrize("name", NAMES)
def test_included_files_exist(name: str) -> None:
    for file in included(name):
        assert (ROOT / file).is_file(), file


@pytest.mark.parametrize("name", NAMES)
def test_commands_in_the_text_exist(name: str) -> None:
    for command in re.findall(r"`(semistream [a-z][^`|]*)`", prose(name)):
        check_command(shlex.split(command.replace("\n", " ")))


def test_metrics_that_are_explained_exist() -> None:
    from semistream.spark.metrics import _DIFFERENT, _LARGEST, _LAST, _SUMS

    text = (DOCS / "operations.md").read_text()
    table = text[text.index("## Metrics") :].split("\n\n")[1]
    explained = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert explained == {*_SUMS, *_LARGEST, *_DIFFERENT, *_LAST, "seconds", "hit_rate"}


def test_the_map_of_the_code_names_what_exists() -> None:
    (text,) = [block.text for block in blocks("CONTRIBUTING.md", "text")]
    names = re.findall(r"^  ([a-z_]+(?:\.py|/))", text, flags=re.MULTILINE)
    assert len(names) > 8
    for name in names:
        assert (ROOT / "src" / "semistream" / name).exists(), name
