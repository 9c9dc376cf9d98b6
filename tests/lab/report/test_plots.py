"""Pictures on disk: of every kind of figure, of tuning surfaces, of predictions beside measurements."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.markers import MarkerStyle
from tests.lab.report.made_up import EMPTY, FIGURES, SHARED, SURFACE, points

from semistream.algorithms.registry import ALGORITHMS
from semistream.cost.tune import Point as Tuned
from semistream.cost.tune import Tuning
from semistream.errors import ConfigError
from semistream.lab.figure import Figure
from semistream.lab.report.colours import LOOKS, PALETTE, colour_pairs, looks
from semistream.lab.report.plots import save_panels, save_plots
from semistream.lab.report.surface import plot_surface
from semistream.lab.report.validation import Validated, plot_validation

PNG = b"\x89PNG\r\n"


def _is_picture(path: Path) -> None:
    if path.suffix == ".png":
        assert path.read_bytes().startswith(PNG)
    else:
        assert ElementTree.parse(path).getroot().tag.endswith("svg")


@pytest.mark.parametrize("figure", [f for f in FIGURES if f is not EMPTY], ids=lambda f: f.kind + " " + f.id)
def test_every_kind_is_drawn(figure: Figure, tmp_path: Path) -> None:
    paths = save_plots(figure, [p for p in points() if p.figure == figure.id], tmp_path)
    assert [path.name for path in paths] == [f"{figure.id}.svg", f"{figure.id}.png"]
    for path in paths:
        _is_picture(path)


def test_a_surface_of_a_few_points_is_drawn_as_curves(tmp_path: Path) -> None:
    mine = [p for p in points() if p.figure == SURFACE.id and p.settings["z"] == 1e3]
    for path in save_plots(SURFACE, mine, tmp_path):
        _is_picture(path)


def _first_curves(svg: str) -> list[str]:
    """The heights of the first curve of each panel."""
    panels = svg.split('id="axes_')[1:]
    curves = [re.search(rf'<path d="([^"]*)"[^>]*stroke: {LOOKS["meshjoin"].light}', panel) for panel in panels]
    return [" ".join(re.findall(r"[ML] \S+ (\S+)", curve[1])) for curve in curves if curve is not None]


def test_panels_stand_side_by_side_and_share_a_scale_if_asked(tmp_path: Path) -> None:
    near = [p for p in points() if p.figure == SHARED.id]
    far = [replace(p, y=p.y * 1e3, low=p.low * 1e3, high=p.high * 1e3) for p in near]
    styles = looks(p.series for p in near)
    drawn = {}
    for same_y in (False, True):
        svg, png = save_panels(SHARED, {"near": near, "far": far}, styles, tmp_path, same_y=same_y)
        _is_picture(png)
        drawn[same_y] = svg.read_text()
        assert drawn[same_y].count('id="axes_') == 2
    # On scales of their own the curves of both panels look alike, on one scale they are a factor of 1000 apart.
    assert _first_curves(drawn[False]) == _first_curves(drawn[False])[:1] * 2
    assert len(set(_first_curves(drawn[True]))) == 2


def test_no_points_no_picture(tmp_path: Path) -> None:
    assert save_plots(EMPTY, [], tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_every_algorithm_has_its_own_colour_and_marker() -> None:
    mine = [LOOKS[name] for name in ALGORITHMS]
    assert len({look.light for look in mine}) == len({look.dark for look in mine}) == len(ALGORITHMS)
    assert len({look.marker for look in mine}) == len(ALGORITHMS)
    assert len({look.light for look in LOOKS.values()}) == len(LOOKS)
    assert all(colour_pairs()[look.light] == look.dark for look in LOOKS.values())


def test_an_algorithm_to_come_finds_a_look_that_nobody_has() -> None:
    assert len(PALETTE) > len(ALGORITHMS)
    assert len({look.light for look in PALETTE}) == len({look.marker for look in PALETTE}) == len(PALETTE)
    assert list(LOOKS)[: len(ALGORITHMS)] == list(ALGORITHMS)


@pytest.mark.parametrize("marker", [look.marker for look in PALETTE])
def test_every_marker_can_be_drawn(marker: str) -> None:
    assert MarkerStyle(marker).get_path() is not None


def test_a_series_has_the_colour_of_its_algorithm() -> None:
    found = looks(["cmeshjoin", "ssbj, M = 1 %", "ssbj predicted", "duckdb parquet", "something else"])
    assert found["cmeshjoin"] == LOOKS["ssj"]
    assert found["ssbj, M = 1 %"].light == found["ssbj predicted"].light == LOOKS["ssbj"].light
    assert not found["ssbj predicted"].filled
    assert found["duckdb parquet"] == LOOKS["duckdb parquet"]


#: red-green blindness, both kinds at full strength (Machado, Oliveira and Fernandes 2009), and full sight
_SIGHTS = (
    ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
)
_TO_XYZ = ((0.4339, 0.3762, 0.1899), (0.2126, 0.7152, 0.0722), (0.0177, 0.1095, 0.8729))


def _distance(one: str, other: str) -> float:
    """Distance in CIELAB, for whoever sees the least of it."""

    def lab(colour: str, sight: tuple[tuple[float, ...], ...]) -> np.ndarray:
        encoded = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
        xyz = np.array(_TO_XYZ) @ np.clip(np.array(sight) @ linear, 0, 1)
        f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
        return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])

    return min(float(np.linalg.norm(lab(one, sight) - lab(other, sight))) for sight in _SIGHTS)


@pytest.mark.parametrize(
    "together",
    [
        ("meshjoin", "ssj", "ssbj", "rmeshjoin"),
        ("meshjoin", "rmeshjoin", "hybridjoin", "cachejoin"),
        ("meshjoin", "rmeshjoin", "hybridjoin", "xhybridjoin", "oxhybridjoin"),
        ("cachejoin", "pcachejoin", "opcachejoin"),
    ],
    ids=" ".join,
)
def test_colours_that_meet_in_a_figure_can_be_told_apart(together: tuple[str, ...]) -> None:
    pairs = [(a, b) for i, a in enumerate(together) for b in together[i + 1 :]]
    assert min(_distance(LOOKS[a].light, LOOKS[b].light) for a, b in pairs) >= 20
    assert min(_distance(LOOKS[a].dark, LOOKS[b].dark) for a, b in pairs) >= 14


def _tuning(algorithm: str, *knobs: str) -> Tuning:
    surface = []
    for i in range(5):
        for j in range(5) if len(knobs) > 1 else [0]:
            options = dict(zip(knobs, (4096.0 * 2**i, 0.1 + 0.2 * j, 4096.0), strict=False))
            h_R = 1000.0 * j if "cache_share" in knobs else 0.0
            surface.append(Tuned(options, 32.0 * 2**i, h_R, 1e5 / (1 + (i - 2) ** 2 + (j - 1) ** 2)))
    return Tuning(algorithm, max(surface, key=lambda point: point.rate_per_s), tuple(surface))


@pytest.mark.parametrize(
    "knobs", [("buffer_bytes",), ("buffer_bytes", "cache_share"), ("k", "gap_bytes")], ids=" ".join
)
def test_tuning_is_drawn(knobs: tuple[str, ...], tmp_path: Path) -> None:
    tuning = _tuning("cachejoin", *knobs)
    for name in ("t.svg", "t.png"):
        _is_picture(plot_surface(tuning, tmp_path / name, marks={"empirical": tuning.surface[-1]}))


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no option differs"):
        plot_surface(_tuning("inlj"), tmp_path / "t.svg")
    with pytest.raises(ConfigError, match=r"\.svg or \.png"):
        plot_surface(_tuning("ssj", "buffer_bytes"), tmp_path / "t.jpg")
    with pytest.raises(ConfigError, match="at least one row"):
        plot_validation([], tmp_path / "v.svg")


def test_validation_counts_what_is_within_the_band(tmp_path: Path) -> None:
    rows = [Validated("ssbj", "1 %", 1.1e-6, 1e-6), ("meshjoin", "1 %", 2e-6, 1e-6)]
    for name in ("v.svg", "v.png"):
        _is_picture(plot_validation(rows, tmp_path / name))
    # Text is drawn, not written, but matplotlib leaves it in a comment.
    assert "1 of 2 predictions within 15 %" in (tmp_path / "v.svg").read_text()
