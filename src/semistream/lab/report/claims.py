"""The claims as a Markdown table, to stand beside the raw data: what was said, what was measured, whether it holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from semistream.lab.figure import Figure, Outcome, Verdict

CLAIMS = "claims.md"
OUTCOMES: dict[Outcome, str] = {"held": "held", "partly": "partly held", "not": "did not hold"}


def claims_table(
    parts: Mapping[str, Sequence[tuple[Figure, Verdict]]], missing: Sequence[Figure], about: Mapping[str, Sequence[str]]
) -> str:
    """The table, part by part, under what all measurements have in common."""
    counts = Counter(verdict.outcome for mine in parts.values() for _, verdict in mine)
    lines = ["# The papers' figures, measured again", ""]
    lines += [f"- {name}: {'; '.join(values)}" for name, values in about.items()]
    lines.append("- " + ", ".join(f"{counts[outcome]} {label}" for outcome, label in OUTCOMES.items()))
    if missing:
        lines.append(f"- not measured: {', '.join(figure.id for figure in missing)}")
    for part, mine in parts.items():
        lines += ["", f"## {part}", "", _row("figure", "claim", "measured", "verdict", "why"), _row(*["---"] * 5)]
        lines += [
            _row(f"{figure.id}: {figure.title}", figure.claim, verdict.measured, OUTCOMES[verdict.outcome], verdict.why)
            for figure, verdict in mine
        ]
    return "\n".join(lines) + "\n"


def _row(*cells: str) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"
