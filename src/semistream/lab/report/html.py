"""The report: one HTML file that needs nothing else, every figure beside what its paper says about it."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path

from semistream.lab.figure import Figure, Point, Verdict
from semistream.lab.figures.papers import PAPERS, paper_of
from semistream.lab.figures.registry import FIGURES
from semistream.lab.report.canvas import series_variables, swatch
from semistream.lab.report.claims import CLAIMS, OUTCOMES, claims_table
from semistream.lab.report.colours import colour_pairs, looks
from semistream.lab.report.numbers import short
from semistream.lab.report.plots import axis_label, caption, inline_panels, needs_legend, save_plots
from semistream.lab.report.results import Results, read_results

REPORT = "report.html"
PLOTS = "plots"
_OURS = "Beyond the papers"
#: settings that are the same for all points and shown on top of the page
_ON_TOP = frozenset({"scale", "seed"})
#: where a verdict goes on with the next clock
_NEXT_CLOCK = re.compile(r"\.\s+(?=(?:papers' clock|this machine's clock|wall clock|counts): )")
_READING = (
    "Values are means with 95 % confidence intervals, by up to three clocks. The cost clock multiplies what a real run "
    "did (reads, look-ups, output rows …) by the price of each operation: with prices of the papers' time it shows "
    "what their machines would have shown, with prices measured here what this machine should show; both are the "
    "same in every run with one seed. The wall clock is real. Claims are the papers', or ours from before we "
    "measured; nothing was tuned until it agreed."
)


@dataclass(frozen=True)
class Chapter:
    """A figure with its points and the verdict on it."""

    figure: Figure
    points: Sequence[Point]
    verdict: Verdict

    @property
    def anchor(self) -> str:
        return "figure-" + re.sub(r"[^A-Za-z0-9]+", "-", self.figure.id)

    @property
    def part(self) -> str:
        paper = paper_of(self.figure.id)
        return _OURS if paper is None else PAPERS[paper]


def write_report(out: Path, figures: Iterable[Figure] | None = None) -> Path:
    """Read the results in `out`, write plots (SVG, PNG), claims and the report there, and say where it is."""
    results = read_results(out)
    chapters, missing = [], []
    for figure in FIGURES.values() if figures is None else figures:
        points = results.points.get(figure.id, [])
        if points:
            save_plots(figure, points, out / PLOTS)
            chapters.append(Chapter(figure, points, figure.judge(points)))
        else:
            missing.append(figure)
    verdicts = {
        part: [(chapter.figure, chapter.verdict) for chapter in mine] for part, mine in _by_part(chapters).items()
    }
    (out / CLAIMS).write_text(claims_table(verdicts, missing, results.about), encoding="utf-8")
    path = out / REPORT
    path.write_text(render(chapters, missing, results), encoding="utf-8")
    return path


def render(chapters: Sequence[Chapter], missing: Sequence[Figure], results: Results) -> str:
    """The page. It is well-formed XML too, so that any parser can check it."""
    ordered = _by_part(chapters)
    body = [_head(chapters, missing, results), _claims(ordered), _contents(ordered)]
    for part, mine in ordered.items():
        body.append(f"<h2>{escape(part)}</h2>")
        body += [_chapter(chapter) for chapter in mine]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>semistream: the papers' figures again</title>\n<style>\n{_style()}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _by_part(chapters: Sequence[Chapter]) -> dict[str, list[Chapter]]:
    parts = [*PAPERS.values(), _OURS]
    ordered = sorted(chapters, key=lambda chapter: parts.index(chapter.part))
    return {part: list(mine) for part, mine in itertools.groupby(ordered, key=lambda chapter: chapter.part)}


def _style() -> str:
    text = files("semistream.lab.report").joinpath("style.css").read_text(encoding="utf-8")
    names = series_variables()
    for mode, pick in (("LIGHT", 0), ("DARK", 1)):
        pairs = ((names[light], (light, dark)[pick]) for light, dark in colour_pairs().items())
        text = text.replace(f"/*{mode}*/", "  " + " ".join(f"--{name}: {colour};" for name, colour in pairs))
    return text


def _head(chapters: Sequence[Chapter], missing: Sequence[Figure], results: Results) -> str:
    counts = Counter(chapter.verdict.outcome for chapter in chapters)
    tiles: list[tuple[str, int, str]] = [(outcome, counts[outcome], label) for outcome, label in OUTCOMES.items()]
    if missing:
        tiles.append(("open", len(missing), "not measured"))
    shown = "".join(f'<li class="{outcome}"><b>{count}</b>{label}</li>' for outcome, count, label in tiles)
    about = "".join(
        f"<dt>{escape(name)}</dt><dd>{'<br/>'.join(map(escape, values))}</dd>" for name, values in results.about.items()
    )
    if missing:
        about += f"<dt>not measured</dt><dd>{escape(', '.join(figure.id for figure in missing))}</dd>"
    return (
        "<h1>Semi-stream joins: the papers' figures, measured again</h1>\n"
        f"<p>{len(chapters)} figures, of five papers and of our own: what is claimed, what was measured, and whether "
        f'it holds.</p>\n<ul class="tiles">{shown}</ul>\n<dl class="about">{about}</dl>\n'
        f'<p class="faint">{escape(_READING)}</p>'
    )


def _claims(ordered: dict[str, list[Chapter]]) -> str:
    rows = []
    for part, chapters in ordered.items():
        rows.append(f'<tr class="group"><td colspan="5">{escape(part)}</td></tr>')
        for chapter in chapters:
            figure, verdict = chapter.figure, chapter.verdict
            # The clock that decides; the others stand beside the picture.
            measured = _clocks(verdict.measured)[0]
            rows.append(
                f'<tr><td><a href="#{chapter.anchor}">{escape(figure.id)}</a><br/>{escape(figure.title)}</td>'
                f"<td>{escape(figure.claim)}</td><td>{escape(measured)}</td><td>{_badge(chapter)}</td>"
                f"<td>{escape(verdict.why)}</td></tr>"
            )
    return (
        '<h2>Claims</h2>\n<div class="wide"><table class="claims"><thead><tr><th>Figure</th><th>Claim</th>'
        "<th>Measured</th><th>Verdict</th><th>Why</th></tr></thead>\n<tbody>"
        + "\n".join(rows)
        + "</tbody></table></div>"
    )


def _contents(ordered: dict[str, list[Chapter]]) -> str:
    parts = []
    for part, chapters in ordered.items():
        links = "".join(
            f'<li><a href="#{chapter.anchor}"><span class="name">{escape(chapter.figure.id)}</span> '
            f"{escape(chapter.figure.title)}</a></li>"
            for chapter in chapters
        )
        parts.append(f"<p>{escape(part)}</p><ul>{links}</ul>")
    return "<h2>Contents</h2>\n<nav>" + "\n".join(parts) + "</nav>"


def _badge(chapter: Chapter) -> str:
    outcome = chapter.verdict.outcome
    return f'<span class="badge {outcome}">{OUTCOMES[outcome]}</span>'


def _chapter(chapter: Chapter) -> str:
    figure, points, verdict = chapter.figure, chapter.points, chapter.verdict
    panels = inline_panels(figure, points)
    pictures = "".join(
        f"<figure><figcaption>{escape(caption(figure, way, len(panels)))}</figcaption>{svg}</figure>"
        for way, svg in panels.items()
    )
    words = [("We expected" if chapter.part == _OURS else "The paper", figure.claim)]
    words += [("" if i else "Measured", text) for i, text in enumerate(_clocks(verdict.measured))]
    if verdict.why:
        words.append(("Why", verdict.why))
    words += [("Note", note) for note in _notes(points)]
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in words)
    return (
        f'<section class="figure" id="{chapter.anchor}">\n<h3><span class="name">{escape(figure.id)}</span> '
        f'{escape(figure.title)} {_badge(chapter)}</h3>\n<div class="panels">{pictures}</div>\n'
        f'{_legend(figure, points)}<dl class="words">{listed}</dl>\n{_raw(figure, points)}</section>'
    )


def _clocks(measured: str) -> list[str]:
    """What was measured, clock by clock."""
    return _NEXT_CLOCK.split(measured)


def _notes(points: Sequence[Point]) -> list[str]:
    """Why values are missing, each reason once."""
    return list(dict.fromkeys(str(p.settings["note"]) for p in points if p.settings.get("note")))


def _legend(figure: Figure, points: Sequence[Point]) -> str:
    if not needs_legend(figure, points):
        return ""
    shown = {p.series for p in points if math.isfinite(p.y)}
    items = "".join(
        f"<li>{swatch(look)}{escape(name)}</li>"
        for name, look in looks(p.series for p in points).items()
        if name in shown
    )
    return f'<ul class="legend">{items}</ul>\n'


def _raw(figure: Figure, points: Sequence[Point]) -> str:
    names = ["clock", "series", axis_label(figure.x), axis_label(figure.y), "95 % interval", "n", "settings"]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    rows = "\n".join(_row(point) for point in points)
    count = f"{len(points)} point{'s' if len(points) != 1 else ''}"
    return (
        f'<details><summary>{count}</summary><div class="wide"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{rows}</tbody></table></div></details>\n"
    )


def _row(p: Point) -> str:
    own = {name: value for name, value in p.settings.items() if name not in _ON_TOP and value is not None}
    settings = ", ".join(f"{name} {_value(value)}" for name, value in own.items())
    interval = "" if math.isnan(p.low) or p.low == p.high else f"{short(p.low, 4)} to {short(p.high, 4)}"
    return (
        f'<tr><td>{p.way}</td><td>{escape(p.series)}</td><td class="number">{short(p.x, 4)}</td>'
        f'<td class="number">{short(p.y, 4)}</td><td class="number">{interval}</td><td class="number">{p.n}</td>'
        f'<td class="settings">{escape(settings)}</td></tr>'
    )


def _value(value: object) -> str:
    if isinstance(value, float):
        return short(value, 4)
    if isinstance(value, dict):
        return "(" + ", ".join(f"{name} {_value(part)}" for name, part in value.items()) + ")"
    return value if isinstance(value, str) else json.dumps(value)
