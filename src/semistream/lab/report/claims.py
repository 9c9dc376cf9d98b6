"""The claims as a Markdown table, to stand beside the raw data: what was said, and what each clock says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from semistream.lab.figure import Figure, Verdict
from semistream.lab.report.marks import COLUMNS, RESTLESS, UNEVEN, marks_text, tally
from semistream.lab.verdicts import CLOCKS, PACE

CLAIMS = "claims.md"
_HEAD = ("figure", "claim", *(CLOCKS[way] for way in COLUMNS), "measured", "why", "notes")


def claims_table(
    parts: Mapping[str, Sequence[tuple[Figure, Verdict, str]]],
    missing: Sequence[Figure],
    about: Mapping[str, Sequence[str]],
) -> str:
    """The table, part by part, under what all measurements have in common; with each verdict what it depends on."""
    lines = ["# The papers' figures, measured again", ""]
    lines += [f"- {name}: {'; '.join(values)}" for name, values in about.items()]
    for way, found in tally([verdict for mine in parts.values() for _, verdict, _ in mine]).items():
        held = ", ".join(f"{part} {held} of {judged}" for part, (held, judged) in found.items())
        lines.append(f"- what holds, {CLOCKS[way]}: {held}")
    lines.append(
        "- marks are direction, size and trend: ✓ holds, ✗ does not, – not claimed or not judged; "
        f"{RESTLESS} some runs were not at rest; {UNEVEN} the machine was not equally fast for all runs, by more than "
        f"{PACE - 1:.0%}, or nobody noted how fast it was"
    )
    if missing:
        lines.append(f"- not measured: {', '.join(figure.id for figure in missing)}")
    for part, mine in parts.items():
        lines += ["", f"## {part}", "", _row(*_HEAD), _row(*["---"] * len(_HEAD))]
        lines += [
            _row(
                f"{figure.id}: {figure.title}",
                figure.claim,
                *(marks_text(verdict.marks.get(way)) for way in COLUMNS),
                verdict.measured,
                verdict.why,
                " ".join((*verdict.notes, depends)),
            )
            for figure, verdict, depends in mine
        ]
    return "\n".join(lines) + "\n"


def _row(*cells: str) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"
