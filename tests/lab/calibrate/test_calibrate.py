"""Calibration: every unit cost is there, with its interval. How large they are is the machine's business."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from semistream.algorithms.registry import ALGORITHMS
from semistream.cost.clock import SCATTERED, CostClock, pricing_of
from semistream.cost.profile import AHEAD, FIRST_VISIT, IO_MODES, SYMBOLS, CostProfile
from semistream.errors import StoreError
from semistream.lab.calibrate import fit, reads_ahead
from semistream.lab.calibrate.calibrate import calibrate
from semistream.lab.calibrate.unit_costs import Masters, interval
from semistream.lab.workloads.relation import KEY

#: tuples of the runs, and how often their fit is repeated: a tenth of the usual
SHORT = {
    "_STEP": 1_000,
    "_WARM": 6_000,
    "_MOST_WARM": 45_000,
    "_SHORTEST_TURN": 2_000,
    "_LONGEST_TURN": 20_000,
    "BOOTSTRAPS": 20,
}


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> CostProfile:
    """Reads, operations and one round of very short runs: more would take time and add nothing to look at."""
    folder = tmp_path_factory.mktemp("calibrate")
    heard: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SHORT.items():
            patch.setattr(fit, name, value)
        found = calibrate(folder=folder, seconds=0.0, least=1, say=heard.append)
    assert heard[:2] == ["reads", "operations"]
    assert list(folder.iterdir()) == []
    return found


def test_every_unit_cost_is_measured(profile: CostProfile) -> None:
    assert set(SYMBOLS) <= set(profile.units)
    own_look_ups = {f"c_L.{name}" for name, each in ALGORITHMS.items() if "c_L" in pricing_of(each).operations}
    own_output = {f"c_O.{algorithm}" for algorithm in ALGORITHMS}
    far = {name for name in profile.units if name.startswith("far.")}
    assert far == {f"far.{symbol}" for symbol in (*SCATTERED, *own_look_ups)}
    near = {name for name in profile.units if name.startswith("near.")}
    assert near == {f"near.{symbol}" for symbol in ("c_O", *own_output)}
    rest = set(profile.units) - far - near - {FIRST_VISIT}
    assert {name.partition(".")[2] for name in rest} == {"", *ALGORITHMS}
    assert profile.first_visit > 0
    for name, cost in profile.units.items():
        assert 0.0 <= cost.low <= cost.seconds <= cost.high <= 1.0, name
    assert set(IO_MODES) <= set(profile.io) <= {*IO_MODES, AHEAD}
    for mode in ("direct", "buffered"):
        assert profile.io[mode].bytes_per_s.seconds > 1e6


def test_a_look_up_takes_time(profile: CostProfile) -> None:
    """Runs as short as these may have it anywhere in its interval, also at 0, and fits share it out between rows and
    pages: of one operator at least it is known."""
    for symbol in ("c_H", "c_H_S"):
        assert profile.units[symbol].high + profile.far(symbol) > 0.0, symbol
    assert max(cost.high for name, cost in profile.units.items() if "c_L" in name) > 0.0
    assert profile.machine["yardstick_s"] > 0


def test_a_measured_profile_prices_and_is_stored(profile: CostProfile, tmp_path: Path) -> None:
    counts = {"tuples_in": 1e6, "rows_out": 1e6, "master_rows_probed": 1e6, "reads": 100.0, "bytes_read": 1e8}
    for algorithm in ALGORITHMS.values():
        assert CostClock(profile).price(algorithm, counts).seconds > 0
    assert CostProfile.load(profile.save(tmp_path / "p.json")) == profile


def test_reads_made_ahead_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads_ahead, "_REPEATS", 1)
    master = Masters(tmp_path, "key").large
    with closing(master):
        found = reads_ahead.measure_ahead(master)
        try:
            master.open([KEY], direct=True).close()
        except StoreError:
            assert found == {}
            return
    assert set(found) == {AHEAD}
    cost = found[AHEAD]
    assert cost.bytes_per_s.seconds > 1e6
    assert cost.seek_s.high >= cost.seek_s.seconds >= 0
    assert cost.seconds(10, 0, 1e9) > cost.seconds(10, 0, 1e6) > 0
    # Without direct reads there is nothing to measure.
    monkeypatch.setattr(reads_ahead, "open_named", _refused)
    assert reads_ahead.measure_ahead(master) == {}


def _refused(*_: object, **__: object) -> None:
    raise StoreError("no direct reads here")


def test_intervals_hold_the_median() -> None:
    values = np.random.default_rng(3).lognormal(0, 0.5, 200)
    cost = interval(values)
    assert cost.low < cost.seconds < cost.high
    assert cost.seconds == pytest.approx(np.median(values))
    assert cost.high - cost.low < 0.4
    assert interval(np.array([-1.0, -1.0, -1.0])).seconds == 0.0
