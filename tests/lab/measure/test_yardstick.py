"""The yardstick is a fixed piece of work by whatever clock it is asked for."""

from __future__ import annotations

import itertools

import numpy as np

from semistream.lab.measure.yardstick import Yardstick


def test_the_middle_one_of_some_times_counts() -> None:
    """By a clock that is read so often: an odd time now and then changes nothing."""
    ticks = itertools.accumulate(itertools.cycle([1.0, 1.0, 1.0, 1.0, 100.0, 1.0, 1.0, 1.0]))
    yardstick = Yardstick()

    def now() -> float:
        return next(ticks)

    assert yardstick.usual(now) == 1.0
    assert yardstick.pace(now) == 1.0


def test_a_slower_machine_has_a_larger_pace() -> None:
    step = 1.0
    time = 0.0

    def now() -> float:
        nonlocal time
        time += step
        return time

    yardstick = Yardstick()
    assert yardstick.pace(now) == 1.0
    step = 1.5
    assert yardstick.pace(now) == 1.5
    assert yardstick.usual(now) == 1.0


def test_the_work_is_the_same_every_time() -> None:
    yardstick = Yardstick()
    yardstick._work()
    found = yardstick._found.copy()
    yardstick._work()
    assert np.array_equal(found, yardstick._found)
    assert np.array_equal(found, np.sort(yardstick._table[yardstick._places]))
