"""The picture that the demonstration ends with: one HTML file that needs nothing else, drawn by hand.

Two queries side by side over time: rows per second, lag, memory. Colours come from the page's style, so the same
picture is readable on light and on dark ground; lines differ by their dashes too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from semistream.lab.demo.race import Account
from semistream.lab.report.numbers import short

_WIDTH, _HEIGHT = 720, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 12, 44
_TICKS = 5

_STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --card: #f6f7f8; --ink: #1a1a1b; --faint: #5f6062; --grid: #dcdcdd;
  --ours: #0b6e4f; --theirs: #c1440e; --arrived: #6b6b6c; }
@media (prefers-color-scheme: dark) { :root { --page: #17181a; --card: #202225; --ink: #e9e9ea; --faint: #a9abaf;
  --grid: #3a3c40; --ours: #57c98b; --theirs: #ff9c56; --arrived: #a2a4a8; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 860px; padding: 1.5rem 1.25rem 3rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.05rem; margin: 0 0 .4rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; font-size: .95rem; }
th, td { padding: .35rem .6rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--grid); }
td { font-variant-numeric: tabular-nums; }
thead th { border-bottom-width: 2px; }
tbody th { color: var(--faint); font-weight: 600; white-space: nowrap; }
th.ours { color: var(--ours); } th.theirs { color: var(--theirs); }
figure { margin: 0 0 1rem; padding: .9rem 1rem .6rem; background: var(--card); border-radius: 8px; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--faint); font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
svg .grid { stroke: var(--grid); } svg .axis { stroke: var(--faint); }
svg .ours, svg .theirs, svg .arrived { fill: none; stroke-width: 2.4; stroke-linejoin: round; }
svg .ours { stroke: var(--ours); } svg .theirs { stroke: var(--theirs); stroke-dasharray: 7 4; }
svg .arrived { stroke: var(--arrived); stroke-width: 1.6; stroke-dasharray: 2 3; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.4rem; list-style: none; margin: 1rem 0; padding: 0; }
.legend li { display: flex; align-items: center; gap: .5rem; } .legend svg { width: 40px; flex: none; }
.faint { color: var(--faint); font-size: .9rem; } code { overflow-wrap: anywhere; }
"""


@dataclass(frozen=True)
class Line:
    """A curve: its class in the style, and its points (seconds, value). Drawn as steps, or from point to point."""

    kind: str
    points: Sequence[tuple[float, float]]
    steps: bool = False


def page(
    title: str, lead: str, sides: Sequence[tuple[str, Account]], facts: Mapping[str, Sequence[str]], end: str
) -> str:
    """The whole file. `sides` are the queries with their classes in the style, `facts` a row each of the table."""
    longest = max((sample.at for _, account in sides for sample in account.samples), default=0.0) or 1.0
    legend = "".join(f"<li>{_swatch(kind)}{escape(account.name)}</li>" for kind, account in sides)
    legend += f"<li>{_swatch('arrived')}sales that have arrived</li>"
    heads = "".join(f'<th class="{kind}">{escape(account.name)}</th>' for kind, account in sides)
    rows = "".join(
        f"<tr><th>{escape(name)}</th>{''.join(f'<td>{escape(value)}</td>' for value in values)}</tr>"
        for name, values in facts.items()
    )
    arrivals = max((account for _, account in sides), key=lambda account: account.rows_arrived)
    arrived = Line("arrived", [(sample.at, sample.arrived) for sample in arrivals.samples])
    loaded = [Line(kind, [(s.at, s.loaded) for s in account.samples]) for kind, account in sides]
    rates = [Line(kind, [(s.at, s.rate_per_s) for s in account.samples], steps=True) for kind, account in sides]
    lags = [Line(kind, [(s.at, s.lag) for s in account.samples]) for kind, account in sides]
    memory = [Line(kind, [(s.at, s.memory_bytes / 1e6) for s in account.samples]) for kind, account in sides]
    charts = (
        chart("Loaded so far", "rows", [arrived, *loaded], longest),
        chart("Rate of the last micro-batch", "rows per second", rates, longest),
        chart("Lag: arrived and not yet loaded", "rows", lags, longest),
        chart("Memory of the JVM and of the Python workers that join", "MB", memory, longest),
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style></head>\n<body>\n<h1>{escape(title)}</h1>\n"
        f"<p>{escape(lead)}</p>\n"
        f'<div class="wide"><table><thead><tr><th></th>{heads}</tr></thead><tbody>{rows}</tbody></table></div>\n'
        f'<ul class="legend">{legend}</ul>\n' + "\n".join(charts) + f'\n<p class="faint">{escape(end)}</p>\n'
        "</body></html>\n"
    )


def chart(title: str, unit: str, lines: Sequence[Line], longest: float) -> str:
    """Curves over the seconds since the first sale, on axes with round numbers from zero."""
    across = [tick for tick in _ticks(longest) if tick <= longest]
    up = _ticks(max((value for line in lines for _, value in line.points), default=0.0))

    def x(value: float) -> float:
        return _LEFT + value / longest * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / up[-1] * (_HEIGHT - _TOP - _BOTTOM)

    parts = []
    for tick in up:
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{short(tick)}</text>')
    base = _HEIGHT - _BOTTOM
    for tick in across:
        parts.append(f'<line class="axis" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{base}" y2="{base + 5}"/>')
        parts.append(f'<text x="{x(tick):.1f}" y="{base + 19}" text-anchor="middle">{short(tick)}</text>')
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{base}" y2="{base}"/>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">seconds since the first sale</text>')
    for line in lines:
        path = _path([(x(at), y(value)) for at, value in line.points], line.steps)
        if path:
            parts.append(f'<path class="{line.kind}" d="{path}"/>')
    named = f"{title} ({unit})"
    return (
        f'<figure><h2>{escape(named)}</h2><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(named)}">{"".join(parts)}</svg></figure>'
    )


def _ticks(most: float) -> list[float]:
    """Round numbers from zero up to the first that is not below `most`.

    >>> _ticks(17.0), _ticks(0.0)
    ([0.0, 5.0, 10.0, 15.0, 20.0], [0.0, 1.0])
    """
    if most <= 0:
        return [0.0, 1.0]
    power = 10.0 ** floor(log10(most / _TICKS))
    step = next(size * power for size in (1, 2, 5, 10) if size * power * _TICKS >= most)
    return [step * number for number in range(ceil(round(most / step, 6)) + 1)]


def _path(points: Sequence[tuple[float, float]], steps: bool) -> str:
    parts, last = [], 0.0
    for number, (x, y) in enumerate(points):
        if steps and number and y != last:
            parts.append(f"H{x:.1f}V{y:.1f}")
        elif not steps or not number:
            parts.append(f"{'L' if number else 'M'}{x:.1f} {y:.1f}")
        last = y
    if steps and points:
        parts.append(f"H{points[-1][0]:.1f}")
    return "".join(parts)


def _swatch(kind: str) -> str:
    return f'<svg viewBox="0 0 40 12" aria-hidden="true"><path class="{kind}" d="M1 6H39"/></svg>'
