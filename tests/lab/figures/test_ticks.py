"""Axes: short where a run must be short, the papers' values elsewhere, and the short ones among them."""

from __future__ import annotations

from pathlib import Path

import pytest

from semistream.cost.profile import paper_profile
from semistream.lab.figures import (
    cost_validation,
    matching,
    memory_needed,
    rate_memory,
    rate_size,
    rate_skew,
    sensitivity,
    ticks,
    tuning,
)
from semistream.lab.figures.ticks import MEMORY, SIZES, SKEWS, Ticks
from semistream.lab.laboratory import SCALES, Lab

ALL = {
    f"{module.__name__}.{name}": value
    for module in (
        ticks,
        cost_validation,
        matching,
        memory_needed,
        rate_memory,
        rate_size,
        rate_skew,
        sensitivity,
        tuning,
    )
    for name, value in vars(module).items()
    if isinstance(value, Ticks) and name != "_RATES"
}


@pytest.mark.parametrize(("scale", "count"), [("small", 3), ("medium", 10), ("paper", 10)])
def test_the_scale_says_how_many_values_there_are(scale: str, count: int, tmp_path: Path) -> None:
    with Lab(tmp_path, scale=SCALES[scale], profile=paper_profile()) as lab:
        assert len(MEMORY.of(lab)) == count


def test_the_many_are_the_papers() -> None:
    assert [ticks.percent(share) for share in MEMORY.many] == list(range(1, 11))
    assert [ticks.percent(share) for share in SIZES.many] == [20, 40, 60, 80, 100]
    assert SKEWS.many == (0, 0.25, 0.5, 0.75, 1)
    for module in (matching, tuning):
        assert len(module.BUFFER_SHARES.many) == len(module.CACHE_SHARES.many) == 8
    assert len(cost_validation.OX_SHARES.many) == 8


@pytest.mark.parametrize("name", ALL)
def test_the_few_are_among_the_many_and_both_rise(name: str) -> None:
    """A result of the small scale then has its counterpart in a larger one."""
    axis = ALL[name]
    assert set(axis.few) <= set(axis.many)
    assert all(list(values) == sorted(set(values)) for values in (axis.few, axis.many))
