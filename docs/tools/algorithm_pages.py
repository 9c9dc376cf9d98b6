"""Pages of algorithms, made from their files: whoever adds an algorithm writes no page.

A page is the docstring of the file, its record and its options, and then the file `docs/operators/<name>.md`, if there
is one: what a docstring has no room for. The files are parsed and not run, for that would compile kernels.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = ROOT / "docs" / "operators"
sys.path.insert(0, str(ROOT / "src"))

# The one module that is run. It imports nothing but errors, and says in words which values an option takes.
from semistream.engine.options import Rule, option  # noqa: E402

Node = ast.ClassDef | ast.Assign | ast.AnnAssign
_COMMON = ("semistream.engine.options", "CommonOptions")


@dataclass(frozen=True)
class Description:
    """What the file of an algorithm says about it."""

    about: str
    #: fields of the record `ALGORITHM` that are plain values
    record: dict[str, Any]
    #: default and rule of each option
    options: dict[str, tuple[Any, Rule]]

    @property
    def name(self) -> str:
        return str(self.record["name"])

    @property
    def title(self) -> tuple[str, str]:
        """Name and gist, from the first line."""
        name, _, gist = self.about.partition("\n")[0].partition(": ")
        return name or self.name, gist[:1].upper() + gist[1:]


def described() -> list[Description]:
    """Every module of `semistream.algorithms` that has an `ALGORITHM`, by the names of the algorithms."""
    files = (ROOT / "src" / "semistream" / "algorithms").glob("*.py")
    found = [each for file in files if (each := _described(f"semistream.algorithms.{file.stem}"))]
    return sorted(found, key=lambda each: each.name)


def _described(module: str) -> Description | None:
    record = next((node for name, node in _definitions(module) if name == "ALGORITHM"), None)
    if record is None or isinstance(record, ast.ClassDef):
        return None
    call = record.value
    assert isinstance(call, ast.Call), f"{module}.ALGORITHM is no call"
    _, algorithm = _find("semistream.engine.algorithm", "Algorithm")
    assert isinstance(algorithm, ast.ClassDef)
    usual = dict(_fields(algorithm))
    given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    values = {name: ast.literal_eval(node) for name, node in {**usual, **given}.items() if _is_plain(node)}
    values["is_weighed"] = {"predict", "pricing"} <= given.keys()
    options = _options(module, ast.unparse(given["options"])) if "options" in given else _options(*_COMMON)
    return Description(ast.get_docstring(_parsed(module)) or "", values, options)


def _options(module: str, name: str) -> dict[str, tuple[Any, Rule]]:
    """The fields of an options class, those of its bases first."""
    module, node = _find(module, name)
    assert isinstance(node, ast.ClassDef), f"{module}.{name} is no class"
    found: dict[str, tuple[Any, Rule]] = {}
    for base in node.bases:
        found |= _options(module, ast.unparse(base))
    for field, default in _fields(node):
        value = _value(module, default)
        (rule,) = value.metadata.values()
        found[field] = (value.default, rule)
    return found


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """The fields of a dataclass that have a default, and that."""
    for field in node.body:
        if isinstance(field, ast.AnnAssign) and field.value is not None:
            yield ast.unparse(field.target), field.value


# ------------------------------------------------------------------------------------------ names in modules


@cache
def _parsed(module: str) -> ast.Module:
    path = ROOT / "src" / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def _definitions(module: str) -> Iterator[tuple[str, Node]]:
    for node in _parsed(module).body:
        if isinstance(node, ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.AnnAssign):
            yield ast.unparse(node.target), node
        elif isinstance(node, ast.Assign):
            yield from ((ast.unparse(target), node) for target in node.targets)


def _find(module: str, name: str) -> tuple[str, Node]:
    """Where a name that a module uses is defined, and how: in this module, or in one that it imports from."""
    head, _, rest = name.partition(".")
    for defined, node in _definitions(module):
        if defined == head and not rest:
            return module, node
    for line in (line for line in _parsed(module).body if isinstance(line, ast.ImportFrom)):
        for alias in line.names:
            if (alias.asname or alias.name) == head:
                source = str(line.module)
                return _find(f"{source}.{alias.name}", rest) if rest else _find(source, alias.name)
    raise LookupError(f"{module} does not say what {name} is")


def _is_plain(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True


def _value(module: str, expression: ast.expr) -> Any:
    """An option, or a number that is worked out from constants."""
    names = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
    known: dict[str, Any] = {"option": option, "int": int, "float": float, "bool": bool}
    for name in names - known.keys():
        home, node = _find(module, name)
        assert not isinstance(node, ast.ClassDef), f"{home}.{name} is no constant"
        assert node.value is not None
        known[name] = _value(home, node.value)
    return eval(compile(ast.Expression(expression), module, "eval"), {"__builtins__": {}}, known)


# ----------------------------------------------------------------------------------------------------- pages


def page(each: Description) -> str:
    """The page of an algorithm."""
    name, gist = each.title
    parts = [f"# {name}", gist, _record(each), _body(each.about), "## Options", _option_table(each.options)]
    written = WRITTEN / f"{each.name}.md"
    if written.exists():
        # Its heading is for those who read it where it is.
        parts.append(re.sub(r"\A# .*\n", "", written.read_text(encoding="utf-8")).strip())
    return "\n\n".join(parts) + "\n"


def table() -> str:
    """All algorithms, for the page that lists them."""
    rows = ["| name | what it is | R is read by | needs an index | paper |", "| --- | --- | --- | --- | --- |"]
    for each in described():
        also = f", also {_names(each.record['aliases'])}" if each.record["aliases"] else ""
        _, gist = each.title
        cells = (f"[`{each.name}`]({each.name}.md){also}", gist, *_access(each), _papers(each))
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _record(each: Description) -> str:
    access, index = _access(each)
    rows = [("name", f"`{each.name}`"), ("R is read by", access), ("needs an index", index)]
    if each.record["aliases"]:
        rows.insert(1, ("also called", _names(each.record["aliases"])))
    rows += [("weighed by `auto`", "yes" if each.record["is_weighed"] else "no"), ("paper", _papers(each))]
    return "\n".join(["| | |", "| --- | --- |", *(f"| {what} | {value} |" for what, value in rows)])


def _access(each: Description) -> tuple[str, str]:
    index = "yes" if each.record["needs_index"] else "no"
    best = "; best with R in order of frequency" if each.record["wants_frequency_order"] else ""
    return "scan" if each.record["access"] == "scan" else "look-up", index + best


def _papers(each: Description) -> str:
    """The papers with links to their entries."""
    if each.record["paper"] == "ours":
        return "ours"
    return re.sub(r"\b([a-z]+\d{4})\b", r"[\1](../papers.md#\1)", each.record["paper"])


def _names(aliases: tuple[str, ...]) -> str:
    return ", ".join(f"`{alias}`" for alias in aliases)


def _body(about: str) -> str:
    """The docstring below its first line: doctests in fences, and what it needs, takes and costs begins a paragraph."""
    paragraphs = about.split("\n\n")[1:]
    return "\n\n".join(
        f"```pycon\n{part}\n```"
        if part.startswith(">>> ")
        else re.sub(r"\n?^(Needs of R|Memory|Cost|Paper): +", r"\n\n**\1:** ", part, flags=re.MULTILINE).lstrip("\n")
        for part in paragraphs
    )


def _option_table(options: dict[str, tuple[Any, Rule]]) -> str:
    rows = ["| option | default | allowed | what it is |", "| --- | --- | --- | --- |"]
    rows += [
        f"| `{name}` | {'–' if default is None else f'`{default}`'} | {rule.allowed} | {rule.about} |"
        for name, (default, rule) in options.items()
    ]
    return "\n".join(rows)
