"""Run every fault of every scenario, print what became of them, and end with status 1 if anything was wrong.

python -m tests.faults                            all, minutes
python -m tests.faults pin gc                     those with one of these words in their name
python -m tests.faults --points 9 --bytes 97      every 9th call and every 97th byte only
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tests.faults.harness import Result, Scenario, run_scenario

_SHOWN_FAILURES = 5


def all_scenarios() -> list[Scenario]:
    """Those of every module beside this one that has some."""
    found: list[Scenario] = []
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if not module.name.startswith(("_", "test_")):
            found += getattr(importlib.import_module(f"tests.faults.{module.name}"), "SCENARIOS", [])
    return found


def show(results: list[Result]) -> None:
    heads = ("scenario", "fault points", "kills", "errors injected", "flips", "lost", "doubled", "wrong", "failures")
    table = Table(*heads, box=None, pad_edge=False)
    for result in results:
        table.add_row(result.name, *map(str, _counts(result)))
    table.add_row("all", *(str(sum(column)) for column in zip(*map(_counts, results), strict=True)))
    Console(width=160).print(table)


def _counts(r: Result) -> tuple[int, ...]:
    v = r.verdict
    return r.points, r.kills, r.errors, r.flips, v.lost, v.doubled, v.wrong, len(r.failures)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("words", nargs="*", help="run the scenarios with one of these in their name")
    parser.add_argument("--points", type=int, default=1, metavar="N", help="strike every Nth call")
    parser.add_argument("--bytes", type=int, default=1, metavar="N", help="flip every Nth byte")
    given = parser.parse_args()
    results = []
    for scenario in all_scenarios():
        if given.words and not any(word in scenario.name for word in given.words):
            continue
        print(f"{scenario.name} ...", file=sys.stderr, flush=True)
        results.append(run_scenario(scenario, given.points, given.bytes))
        for failure in results[-1].failures[:_SHOWN_FAILURES]:
            print(failure, file=sys.stderr, flush=True)
    show(results)
    return 0 if results and all(result.is_right for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
