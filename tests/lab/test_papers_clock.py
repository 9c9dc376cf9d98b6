"""The papers' clock gives the rates that the papers print, by their own equations."""

from __future__ import annotations

import math

import pytest

from semistream.cost.profile import OVERLAP, paper_profile, typical_profile
from semistream.lab.papers_clock import papers_clock, variants


def test_meshjoin_reaches_the_printed_rate() -> None:
    """ssbj2019: 20 million tuples of 120 bytes, 240 MB for waiting tuples of 8 · 20 + 4 bytes, 51,242 tuples/s."""
    clock = papers_clock()
    waiting, rows = 240e6 / 164, 20e6
    disk = clock.io["direct"].seconds(1, 0, rows * 120)
    cpu = rows * clock.unit("c_H_S") + waiting * sum(map(clock.unit, ("c_S", "c_A", "c_E", "c_O")))
    assert waiting / (disk + cpu) == pytest.approx(51_242, rel=0.01)


def test_pcachejoin_reaches_the_printed_rate() -> None:
    """opcachejoin2020: 2 million tuples, 100 MB of which 40 are the cache and 2 I_B, loads of 850, 13,200 records/s."""
    clock = papers_clock()
    cached, loaded = 40e6 / 128, 850
    hits = (math.log(cached) + 0.5772) / (math.log(2e6) + 0.5772)
    w_s = (58e6 - loaded * 120) / 164 * (1 - hits) * loaded / (2e6 - cached)
    w_n = w_s * hits / (1 - hits)
    loop = clock.io["direct"].seconds(1, 0, loaded * 120) + loaded * (clock.unit("c_H_S") + clock.unit("c_F"))
    loop += w_s * sum(map(clock.unit, ("c_O", "c_S", "c_A", "c_E", "c_AI")))
    loop += w_n * sum(map(clock.unit, ("c_H", "c_O", "c_S")))
    assert (w_s + w_n) / loop == pytest.approx(13_200, rel=0.01)


def test_what_is_fitted_is_a_disk_of_that_time() -> None:
    disk = papers_clock().io["direct"]
    assert 0.008 < disk.seek_s.seconds < 0.016
    assert 60e6 < disk.bytes_per_s.seconds < 160e6
    assert papers_clock().units == paper_profile().units


def test_phases_run_side_by_side_as_far_as_was_measured() -> None:
    measured = typical_profile()
    assert papers_clock(measured).overlap("pcachejoin") == measured.overlap("pcachejoin") < 1
    assert f"{OVERLAP}.pcachejoin" not in papers_clock().units


def test_variants_change_one_cost_each() -> None:
    clock = papers_clock()
    found = variants(clock)
    usual = clock.io["direct"]
    for name, factor in (("÷ 4", 0.25), ("× 4", 4.0)):
        seek, speed, output = (found[f"{what} {name}"] for what in ("seek", "bandwidth", "c_O"))
        assert seek.io["direct"].seek_s.seconds == pytest.approx(usual.seek_s.seconds * factor)
        assert seek.io["direct"].bytes_per_s == usual.bytes_per_s
        assert speed.io["direct"].bytes_per_s.seconds == pytest.approx(usual.bytes_per_s.seconds * factor)
        assert speed.io["direct"].seek_s == usual.seek_s
        assert output.unit("c_O") == pytest.approx(clock.unit("c_O") * factor)
        assert output.io == clock.io
    assert found["overlap 0"].overlap("opcachejoin") == 0
    assert found["overlap 1"].overlap("pcachejoin") == 1
