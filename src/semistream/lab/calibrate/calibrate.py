"""Measure a profile of this machine: reads and operations one by one, then what operators take besides."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from semistream.cost.profile import FIRST_VISIT, SYMBOLS, CostProfile, machine_info
from semistream.lab.calibrate.fit import fitted, short_rounds
from semistream.lab.calibrate.reads_ahead import measure_ahead
from semistream.lab.calibrate.unit_costs import Masters, measure_first_visit, measure_io, measure_units, parquet_in
from semistream.lab.measure.yardstick import Yardstick


def calibrate(
    *,
    folder: str | Path | None = None,
    seconds: float = 150.0,
    least: int = 0,
    say: Callable[[str], None] | None = None,
    name: str = "measured",
) -> CostProfile:
    """Measure a profile; about two minutes. `folder` is where the test data is written: the disk that is measured.

    After `seconds` no further round of short runs is begun, once `least` of them were.
    """
    tell = say or (lambda _: None)
    deadline = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="semistream-calibrate-", dir=folder) as place:
        tell("reads")
        by_key = Masters(Path(place), "key")
        io = {**measure_io(by_key.large, parquet_in(Path(place))), **measure_ahead(by_key.large)}
        yardstick = Yardstick()
        usual, usual_wall = yardstick.usual(time.process_time), yardstick.usual(time.perf_counter)
        tell("operations")
        units = {**measure_units(by_key, yardstick), FIRST_VISIT: measure_first_visit(by_key)}
        base = CostProfile(name, units, io)
        masters = {"key": by_key, "frequency": Masters(Path(place), "frequency")}
        runs = short_rounds(
            masters, base, yardstick, lambda number: number <= least or time.monotonic() <= deadline, tell
        )
    return CostProfile(
        name,
        fitted(runs, base),
        io,
        {
            **machine_info(),
            "measured": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "yardstick_s": usual,
            "yardstick_wall_s": usual_wall,
        },
        {symbol: f"measured: {text}" for symbol, text in SYMBOLS.items()},
    )
