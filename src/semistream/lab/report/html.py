"""The report: one HTML file that needs nothing else, every figure beside what its paper says about it."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path

from semistream.lab.figure import Figure, Point, Verdict
from semistream.lab.figures.papers import PAPERS, paper_of
from semistream.lab.figures.registry import FIGURES
from semistream.lab.report.beside import has_numbers, inline_beside
from semistream.lab.report.canvas import series_variables, swatch
from semistream.lab.report.claims import CLAIMS, claims_table
from semistream.lab.report.colours import colour_pairs, looks
from semistream.lab.report.marks import COLUMNS, dependence, marks_html, tally_html
from semistream.lab.report.numbers import short
from semistream.lab.report.plots import axis_label, caption, inline_panels, needs_legend, save_plots
from semistream.lab.report.results import Results, read_results
from semistream.lab.report.story import Judged, story
from semistream.lab.verdicts import AHEAD, CLOCKS, FACTOR_REACHED, PACE, TREND

REPORT = "report.html"
PLOTS = "plots"
_OURS = "Beyond the papers"
#: settings that are the same for all points and shown on top of the page
_ON_TOP = frozenset({"scale", "seed"})
#: where a verdict goes on with the next clock
_NEXT_CLOCK = re.compile(r"\.\s+(?=(?:papers' clock|this machine's clock|wall clock|counts): )")
_READING = (
    "Every claim has up to three parts: its direction (who is ahead), its size (by how much) and its trend (how that "
    "changes along the axis). Every clock judges each part by itself. First what was only counted, stream tuples per "
    "R-cycle: no clock touches it. Then the wall clock. Then the papers' clock: what a run did (reads, look-ups, "
    "output rows …) times unit costs of the papers' time, fitted to the rates that their texts print. ✓ holds, ✗ does "
    "not, – is not claimed or cannot be judged; the number is our factor over the claimed one, * marks runs that did "
    f"not come to rest, † runs for which the machine was not equally fast, by more than {PACE - 1:.0%}, or nobody "
    f"noted how fast it was. Ahead is by {AHEAD - 1:.0%}, a factor is met by {FACTOR_REACHED:.2f} to "
    f"{1 / FACTOR_REACHED:.2f} of it, a trend is a change of {TREND:.0%} and more than the intervals at its ends. "
    "Values are means with 95 % confidence intervals. Claims are the papers', or ours from before we measured."
)


@dataclass(frozen=True)
class Chapter:
    """A figure with its points and the verdict on it."""

    figure: Figure
    points: Sequence[Point]
    verdict: Verdict
    #: which parts of the verdict depend on unit costs that nobody knows
    depends: str = ""

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
            verdict = figure.judge(points)
            depends = dependence(figure, verdict, results.swept.get(figure.id, {}))
            chapters.append(Chapter(figure, points, verdict, depends))
        else:
            missing.append(figure)
    verdicts = {
        part: [(chapter.figure, chapter.verdict, chapter.depends) for chapter in mine]
        for part, mine in _by_part(chapters).items()
    }
    (out / CLAIMS).write_text(claims_table(verdicts, missing, results.about), encoding="utf-8")
    path = out / REPORT
    path.write_text(render(chapters, missing, results), encoding="utf-8")
    return path


def render(chapters: Sequence[Chapter], missing: Sequence[Figure], results: Results) -> str:
    """The page. It is well-formed XML too, so that any parser can check it."""
    ordered = _by_part(chapters)
    body = [_head(chapters, missing, results), _story(chapters), _claims(ordered), _contents(ordered)]
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
    about = "".join(
        f"<dt>{escape(name)}</dt><dd>{'<br/>'.join(map(escape, values))}</dd>" for name, values in results.about.items()
    )
    if missing:
        about += f"<dt>not measured</dt><dd>{escape(', '.join(figure.id for figure in missing))}</dd>"
    return (
        "<h1>Semi-stream joins: the papers' figures, measured again</h1>\n"
        f"<p>{len(chapters)} figures, of five papers and of our own: what is claimed, what was measured, and which "
        f"parts of it hold.</p>\n{tally_html([chapter.verdict for chapter in chapters])}\n"
        f'<dl class="about">{about}</dl>\n<p class="faint">{escape(_READING)}</p>'
    )


def _story(chapters: Sequence[Chapter]) -> str:
    """The pictures that tell what came out."""
    anchors = {chapter.figure.id: chapter.anchor for chapter in chapters}
    shown = "".join(
        f"<figure>{picture.svg}<figcaption>{number}. {escape(picture.title)}{_see(anchors.get(picture.figure))}"
        "</figcaption></figure>"
        for number, picture in enumerate(story([Judged(c.figure, c.points, c.verdict) for c in chapters]), 1)
    )
    return f'<h2>The story</h2>\n<div class="story">{shown}</div>' if shown else ""


def _see(anchor: str | None) -> str:
    return "" if anchor is None else f' (<a href="#{anchor}">the figure</a>)'


def _claims(ordered: dict[str, list[Chapter]]) -> str:
    """A line per claim with its marks; what is behind them opens with a click."""
    rows = []
    for part, chapters in ordered.items():
        rows.append(f'<tr class="group"><td colspan="{2 + len(COLUMNS)}">{escape(part)}</td></tr>')
        for chapter in chapters:
            figure, verdict = chapter.figure, chapter.verdict
            cells = "".join(f"<td>{marks_html(verdict.marks.get(way))}</td>" for way in COLUMNS)
            said = [*_clocks(verdict.measured), verdict.why, *verdict.notes, chapter.depends]
            inside = "".join(f"<p>{escape(text)}</p>" for text in said if text)
            rows.append(
                f'<tr><td><a href="#{chapter.anchor}">{escape(figure.id)}</a></td><td><details><summary>'
                f"{escape(figure.claim)}</summary><p>{escape(figure.title)}</p>{inside}</details></td>{cells}</tr>"
            )
    heads = "".join(f"<th>{escape(CLOCKS[way])}</th>" for way in COLUMNS)
    return (
        '<h2>Claims</h2>\n<div class="wide"><table class="claims"><thead><tr><th>Figure</th><th>Claim</th>'
        f"{heads}</tr></thead>\n<tbody>" + "\n".join(rows) + "</tbody></table></div>"
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


def _marks(chapter: Chapter) -> str:
    """All marks of a figure, clock by clock."""
    return " ".join(
        f'<span class="clock">{escape(CLOCKS[way])} {marks_html(marks)}</span>'
        for way, marks in chapter.verdict.marks.items()
        if way in COLUMNS
    )


def _chapter(chapter: Chapter) -> str:
    figure, points, verdict = chapter.figure, chapter.points, chapter.verdict
    panels = inline_panels(figure, points)
    pictures = ""
    if has_numbers(figure, points):
        drawn = inline_beside(figure, points, f"{figure.id}-beside")
        pictures = f"<figure><figcaption>Beside the numbers of the paper's text</figcaption>{drawn}</figure>"
    pictures += "".join(
        f"<figure><figcaption>{escape(caption(figure, way, len(panels)))}</figcaption>{svg}</figure>"
        for way, svg in panels.items()
    )
    words = [("We expected" if chapter.part == _OURS else "The paper", figure.claim)]
    words += [("" if i else "Measured", text) for i, text in enumerate(_clocks(verdict.measured))]
    words += [("Why", verdict.why), *(("Note", note) for note in (*verdict.notes, *_notes(points)))]
    words += [("Unit costs", chapter.depends), ("How", _how(points))]
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in words if text)
    return (
        f'<section class="figure" id="{chapter.anchor}">\n<h3><span class="name">{escape(figure.id)}</span> '
        f'{escape(figure.title)} {_marks(chapter)}</h3>\n<div class="panels">{pictures}</div>\n'
        f'{_legend(figure, points)}<dl class="words">{listed}</dl>\n{_raw(figure, points)}</section>'
    )


def _how(points: Sequence[Point]) -> str:
    """In which state the points were taken: tuned or not, at rest or not, with how many CPUs."""
    states = []
    tuning = list(dict.fromkeys(str(p.settings["tuning"]) for p in points if p.settings.get("tuning")))
    if tuning:
        states.append(f"contestants: {', '.join(tuning)}")
    rest = [bool(p.settings["steady"]) for p in points if p.settings.get("steady") is not None]
    if rest:
        states.append(f"{sum(rest)} of {len(rest)} points at rest{'' if all(rest) else ', the others have a ring'}")
    cpus = sorted({str(p.settings["cpus"]) for p in points if p.settings.get("cpus") is not None})
    if cpus:
        states.append(f"{' and '.join(cpus)} CPUs")
    return "; ".join(states)


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
