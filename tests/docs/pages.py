"""The pages of the documentation as tests see them: blocks of code with their marks, and inline commands."""

from __future__ import annotations

import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path

from typer.main import get_command

from semistream.cli.app import app

ROOT = Path(__file__).parents[2]
#: README and CONTRIBUTING are read where they are, and the latter on the site as well.
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

_FENCE = re.compile(r"^(?:<!-- ([^\n]*?) -->\n)?```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
_INCLUDED = re.compile(r"^--8<--\n([\w./]+)\n--8<--$", flags=re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block; `mark` is the comment before it."""

    page: str
    line: int
    language: str
    text: str
    mark: str

    @property
    def included(self) -> str | None:
        """The file that the block shows, where it has no text of its own."""
        found = _INCLUDED.fullmatch(self.text.strip())
        return found[1] if found else None

    @property
    def kind(self) -> str:
        """Whether the block is "run" as it stands, with a session of "spark", or only "parsed"."""
        if self.mark.startswith("not run: "):
            return "parsed"
        return "spark" if self.mark == "with spark" else "run"

    @property
    def commands(self) -> list[list[str]]:
        """The commands of a shell block, a line each, without comments."""
        return [words for line in self.text.splitlines() if (words := shlex.split(line, comments=True))]

    def compiled(self) -> object:
        """The Python of the block, with line numbers of its page."""
        return compile("\n" * self.line + self.text, self.page, "exec")


def blocks(name: str, *languages: str) -> list[Block]:
    """The blocks of a page in these languages, from top to bottom."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return [
        Block(name, text[: found.start()].count("\n") + 1 + bool(found[1]), found[2], found[3], found[1] or "")
        for found in _FENCE.finditer(text)
        if found[2] in languages
    ]


def included(name: str) -> list[str]:
    """The files that a page includes, as blocks or as a whole."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return [*_INCLUDED.findall(text), *re.findall(r'^--8<-- "([^"]+)"$', text, flags=re.MULTILINE)]


def prose(name: str) -> str:
    """A page without its blocks."""
    return _FENCE.sub("", (ROOT / name).read_text(encoding="utf-8"))


def check_command(words: list[str]) -> None:
    """Fail if a command, or one of its options, does not exist. It is not run."""
    program, *rest = words
    if program == "semistream":
        _check_semistream(rest)
    elif program == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
        assert {word for word in rest if "=" not in word} <= set(targets), words
    elif program == "pip" and rest[0] == "install":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert {extra for word in rest for extra in re.findall(r"\[(\w+)\]", word)} <= set(extras), words
    else:
        raise AssertionError(f"{shlex.join(words)}: teach check_command how to parse {program!r}")


def _check_semistream(words: list[str]) -> None:
    command = get_command(app)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"semistream has no command {words[0]!r}"
        command, words = command.commands[words[0]], words[1:]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    unknown = {word for word in words if word.startswith("--")} - known - {"--help"}
    assert not unknown, f"semistream {command.name} has no {unknown}"
