"""`semistream algorithms`: what there is to choose from, read from the records of the algorithms."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from semistream.cli.notices import compile_notice, reported

if TYPE_CHECKING:
    from semistream.engine.algorithm import Algorithm


def algorithms(
    name: Annotated[str | None, typer.Argument(help="Show this one in full, with its options.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """List the join algorithms, or describe one."""
    with reported():
        with compile_notice():
            from semistream.algorithms.registry import ALGORITHMS, resolve
        chosen = None if name is None else resolve(name)
    if as_json:
        shown = [_facts(each) for each in ALGORITHMS.values()] if chosen is None else _facts(chosen)
        typer.echo(json.dumps(shown, indent=2))
    elif chosen is None:
        _list(list(ALGORITHMS.values()))
    else:
        _describe(chosen)


def _facts(algorithm: Algorithm) -> dict[str, Any]:
    from semistream.engine.options import defaults, rules

    usual = defaults(algorithm.options)
    return {
        "name": algorithm.name,
        "title": algorithm.title,
        "aliases": list(algorithm.aliases),
        "needs_index": algorithm.needs_index,
        "access": algorithm.access,
        "paper": algorithm.paper,
        "weighed_by_auto": algorithm.is_weighed,
        "options": [
            {"name": option, "default": usual[option], "allowed": rule.allowed, "about": rule.about}
            for option, rule in rules(algorithm.options).items()
        ],
    }


def _list(all_of_them: list[Algorithm]) -> None:
    # Names are typed, so they are shown whole in 80 columns too; all else wraps.
    table = Table(Column(no_wrap=True), Column(), box=None, pad_edge=False, show_header=False)
    for each in all_of_them:
        table.add_row(each.name, f"{each.title}\n{_in_a_line(each)}")
    Console(highlight=False, markup=False).print(table)


def _in_a_line(algorithm: Algorithm) -> str:
    """Aliases, needs and source, separated by semicolons."""
    parts = [f"also {', '.join(algorithm.aliases)}"] if algorithm.aliases else []
    parts.append("scans R" if algorithm.access == "scan" else "looks R up")
    parts.append("needs an index" if algorithm.needs_index else "needs no index")
    parts.append("weighed by auto" if algorithm.is_weighed else "not weighed by auto")
    return "; ".join([*parts, algorithm.paper or "no paper: ours"])


def _describe(algorithm: Algorithm) -> None:
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(algorithm.about.strip())
    console.print(f"\n{algorithm.name}: {_in_a_line(algorithm)}\n")
    table = Table(Column("option", no_wrap=True), "default", "allowed", "what it is", box=None, pad_edge=False)
    for option in _facts(algorithm)["options"]:
        table.add_row(option["name"], str(option["default"]), option["allowed"], option["about"])
    Console(highlight=False, markup=False).print(table)
