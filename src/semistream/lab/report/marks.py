"""Verdicts as marks: direction, size and trend by each clock, and which of them depend on the papers' unit costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from semistream.lab.figure import PARTS, Figure, Marks, Part, Point, Verdict, Way
from semistream.lab.verdicts import CLOCKS, is_of_one_pace, sizes_text

#: clocks with a column of their own; this machine's cost clock is a shadow of the wall clock, and only told
COLUMNS: tuple[Way, ...] = ("counts", "wall", "papers")
SIGNS = {True: "✓", False: "✗", None: "–"}
RESTLESS, UNEVEN = "*", "†"
_DOUBTS = {
    RESTLESS: "some runs did not come to rest",
    UNEVEN: "the machine was not equally fast for all runs, or nobody noted how fast it was",
}
_CLASSES = {True: "held", False: "not", None: "open"}
_WORDS = {True: "holds", False: "does not hold", None: "is not judged"}


def marks_text(marks: Marks | None) -> str:
    """The marks of one clock in plain text: "✓ ✗ (0.28 to 0.35 of the claimed factor) ✓"."""
    if marks is None:
        return ""
    size = sizes_text(marks.sizes)
    found = [SIGNS[marks.of(part)] + (f" ({size})" if part == "size" and size else "") for part in PARTS]
    return " ".join([*found, *_doubts(marks)])


def _doubts(marks: Marks) -> list[str]:
    return [sign for sign, there in ((RESTLESS, marks.unrested), (UNEVEN, not is_of_one_pace(marks))) if there]


def marks_html(marks: Marks | None) -> str:
    """The marks of one clock for a page, each with what it means, and our part of the claimed factors."""
    if marks is None:
        return '<span class="marks"></span>'
    shown = "".join(
        f'<b class="{_CLASSES[marks.of(part)]}" title="{part} {_WORDS[marks.of(part)]}">{SIGNS[marks.of(part)]}</b>'
        for part in PARTS
    )
    size = ""
    if marks.sizes:
        low, high = f"{min(marks.sizes):.2f}", f"{max(marks.sizes):.2f}"
        size = f"<i>{low if low == high else f'{low}–{high}'}</i>"
    doubts = "".join(f'<abbr title="{_DOUBTS[sign]}">{sign}</abbr>' for sign in _doubts(marks))
    return f'<span class="marks">{shown}{size}{doubts}</span>'


def tally(verdicts: Sequence[Verdict]) -> dict[Way, dict[Part, tuple[int, int]]]:
    """How many claims hold of those judged, by clock and part."""
    found: dict[Way, dict[Part, tuple[int, int]]] = {}
    for way in CLOCKS:
        judged = [verdict.marks[way] for verdict in verdicts if way in verdict.marks]
        if judged:
            found[way] = {
                part: (
                    sum(marks.of(part) is True for marks in judged),
                    sum(marks.of(part) is not None for marks in judged),
                )
                for part in PARTS
            }
    return found


def tally_html(verdicts: Sequence[Verdict]) -> str:
    """The same as a table."""
    rows = "".join(
        f"<tr><th>{escape(CLOCKS[way])}</th>"
        + "".join(f"<td><b>{held}</b> of {judged}</td>" for held, judged in parts.values())
        + "</tr>"
        for way, parts in tally(verdicts).items()
    )
    head = "".join(f"<th>{part}</th>" for part in PARTS)
    return f'<table class="tally"><tr><th></th>{head}</tr>{rows}</table>'


def dependence(figure: Figure, verdict: Verdict, swept: Mapping[str, Sequence[Point]]) -> str:
    """Which parts of a claim change on the papers' clock when its unit costs do."""
    if "papers" not in verdict.marks or not swept:
        return ""
    usual, changed = verdict.marks["papers"], []
    for name, points in swept.items():
        marks = figure.judge(points).marks.get("papers")
        if marks is None:
            continue
        flips = [
            part for part in PARTS if None not in (usual.of(part), marks.of(part)) and usual.of(part) != marks.of(part)
        ]
        changed += [f"{part} {_WORDS[marks.of(part)]} with {name}" for part in flips]
    if not changed:
        return f"No part of it changes with {', '.join(swept)}."
    return f"It depends on unit costs that no text gives: {'; '.join(changed)}."
