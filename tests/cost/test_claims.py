"""What the papers claim about who beats whom, on the cost clock with a disk of their time.

Two kinds of evidence. Real runs on a small R: their counts priced by the clock, so no noise, but on a small R a seek
weighs more than it did for the papers' hundred million tuples. And the formulas, which the runs confirm
(`test_prediction.py`), at the papers' sizes. Claims that do not hold here stand at the end, as what is true instead.

Tolerances are in each test: a claimed order must hold by at least the factor given; "about the same" is 15 %.
"""

from __future__ import annotations

import dataclasses

import pytest
from tests.cost.runs import FREQUENCY_BUDGET, Runs

from semistream.algorithms.registry import ALGORITHMS
from semistream.cost.clock import CostClock
from semistream.cost.profile import CostProfile, UnitCost, paper_profile
from semistream.cost.situation import Situation
from semistream.predict.keys import zipf

PROFILE = paper_profile()
#: R of ssbj2019, ssj2014 and sscj2013, and their memory: 1 % and 10 % of it
PAPER_ROWS = 100_000_000
MEMORY = {"1%": 120_000_000, "10%": 1_200_000_000}


def scaled(profile: CostProfile, factor: float) -> CostProfile:
    """The same disk with a CPU so many times slower."""
    units = {symbol: UnitCost.exactly(cost.seconds * factor) for symbol, cost in profile.units.items()}
    return dataclasses.replace(profile, units=units)


def rate(runs: Runs, algorithm: str, skew: float, profile: CostProfile = PROFILE, **how: float | str) -> float:
    """Stream tuples per virtual second of a real run."""
    steady = runs.steady(algorithm, skew, **how)  # type: ignore[arg-type]
    return (
        1.0
        / CostClock(profile).price(ALGORITHMS[algorithm], steady.counts, row_bytes=steady.situation.row_bytes).seconds
    )


def predicted_rate(algorithm: str, rows: int, memory: int, skew: float, profile: CostProfile = PROFILE) -> float:
    order = "frequency" if ALGORITHMS[algorithm].wants_frequency_order else "key"
    situation = Situation.sketch(rows, memory, zipf(rows, skew), order=order)
    return situation.predict(algorithm, profile).service_rate_per_s


# -------------------------------------------------------------------------------------- real runs, small R


@pytest.mark.parametrize("cpu", [1 / 3, 1.0, 3.0])
@pytest.mark.parametrize(("algorithm", "factor"), [("ssj", 1.5), ("ssbj", 1.5)])
def test_scan_caches_beat_meshjoin_with_skew(runs: Runs, algorithm: str, factor: float, cpu: float) -> None:
    """ssbj2019 and ssj2014; whatever the CPU of the time, within a factor of three either way."""
    profile = scaled(PROFILE, cpu)
    assert rate(runs, algorithm, 1.0, profile) > factor * rate(runs, "meshjoin", 1.0, profile)


def test_without_skew_the_scan_caches_cost_a_little(runs: Runs) -> None:
    """ssj2014: SSJ "slightly worse" than MESHJOIN at skew 0. SSBJ caches nothing then, and is about the same."""
    mesh, literal = rate(runs, "meshjoin", 0.0), rate(runs, "ssj", 0.0, literal=True)
    assert 0.5 * mesh < literal < mesh
    assert rate(runs, "ssj", 0.0) >= literal
    assert rate(runs, "ssbj", 0.0) == pytest.approx(mesh, rel=0.15)


def test_meshjoin_does_not_notice_skew(runs: Runs) -> None:
    assert rate(runs, "meshjoin", 1.0) == pytest.approx(rate(runs, "meshjoin", 0.0), rel=0.02)


def test_rmeshjoin_is_meshjoin_where_b_is_not_tuned(runs: Runs) -> None:
    assert rate(runs, "rmeshjoin", 1.0) == pytest.approx(rate(runs, "meshjoin", 1.0), rel=0.01)


@pytest.mark.parametrize("cpu", [1 / 3, 1.0, 3.0])
def test_cachejoin_beats_hybridjoin_with_skew(runs: Runs, cpu: float) -> None:
    """sscj2013; here by 2, there by 3 to 4.5."""
    profile = scaled(PROFILE, cpu)
    assert rate(runs, "cachejoin", 1.0, profile) > 2.0 * rate(runs, "hybridjoin", 1.0, profile)


def test_without_skew_cachejoin_is_slightly_worse_than_hybridjoin(runs: Runs) -> None:
    """sscj2013. A cache that gives back what it does not earn costs next to nothing."""
    hybrid, literal = rate(runs, "hybridjoin", 0.0), rate(runs, "cachejoin", 0.0, literal=True)
    assert 0.75 * hybrid < literal < hybrid
    assert 0.95 * hybrid < rate(runs, "cachejoin", 0.0) < 1.05 * hybrid


def test_the_optimised_x_hybridjoin_is_ahead(runs: Runs) -> None:
    """oxhybridjoin2012, R in order of frequency for all of them."""
    both = {"budget": FREQUENCY_BUDGET, "order": "frequency"}
    optimised = rate(runs, "oxhybridjoin", 1.0)
    pinned = rate(runs, "xhybridjoin", 1.0)
    assert optimised > 1.2 * pinned
    assert optimised > 1.5 * rate(runs, "hybridjoin", 1.0, **both)


def test_every_shared_load_beats_one_read_a_tuple(runs: Runs) -> None:
    alone = rate(runs, "inlj", 1.0)
    for algorithm in ("meshjoin", "hybridjoin", "cachejoin", "ssj", "ssbj", "sweepjoin", "ssij", "partitionjoin"):
        assert rate(runs, algorithm, 1.0) > 2.0 * alone, algorithm


def test_the_share_through_ssbjs_cache_grows_with_memory(runs: Runs) -> None:
    """ssbj2019 figure 5f: 39 % to 54 % there; more here, for every key of R has a tuple."""
    small = runs.steady("ssbj", 1.0, budget=350_000, warm=160_000).hit_rate
    assert 0.5 < small < runs.steady("ssbj", 1.0).hit_rate < 0.8


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_the_best_switching_factor_is_about_one(factor: float) -> None:
    """ssbj2019 figure 6a; by the formula, that no hysteresis is better than 1 by more than 2 %."""
    situation = Situation.sketch(1_000_000, 12_000_000, zipf(1_000_000, 1.0))
    plain = situation.predict("ssbj", PROFILE).service_rate_per_s
    other = situation.predict("ssbj", PROFILE, {"switching_factor": factor}).service_rate_per_s
    assert other < 1.02 * plain


# ------------------------------------------------------------------------------- formulas, the papers' sizes


@pytest.mark.parametrize("memory", list(MEMORY))
@pytest.mark.parametrize("algorithm", ["ssj", "ssbj"])
def test_scan_caches_at_the_papers_size(algorithm: str, memory: str) -> None:
    """Claimed are 5 to 8 times MESHJOIN. W* of the cache inequality allows 2.5 (1 %) to 3.9 (10 %) for unique keys and
    no CPU cost at all; what can be asserted is 1.6 and more."""
    times = predicted_rate(algorithm, PAPER_ROWS, MEMORY[memory], 1.0) / predicted_rate(
        "meshjoin", PAPER_ROWS, MEMORY[memory], 1.0
    )
    assert 1.6 < times < 3.9


@pytest.mark.parametrize("memory", list(MEMORY))
def test_cachejoin_at_the_papers_size(memory: str) -> None:
    """sscj2013: 3 (1 %) to 4.5 (10 %) times HYBRIDJOIN; here above 2."""
    cached, plain = (predicted_rate(name, PAPER_ROWS, MEMORY[memory], 1.0) for name in ("cachejoin", "hybridjoin"))
    assert 2.0 < cached / plain < 4.5


@pytest.mark.parametrize("rows", [500_000, 2_000_000, 8_000_000])
@pytest.mark.parametrize("memory", [50_000_000, 100_000_000])
def test_the_optimised_x_hybridjoin_at_the_papers_sizes(rows: int, memory: int) -> None:
    """oxhybridjoin2012: ahead of X-HYBRIDJOIN, HYBRIDJOIN, R-MESHJOIN and MESHJOIN at every setting."""
    best = predicted_rate("oxhybridjoin", rows, memory, 1.0)
    for other in ("xhybridjoin", "hybridjoin", "rmeshjoin", "meshjoin"):
        assert best > predicted_rate(other, rows, memory, 1.0), other


@pytest.mark.parametrize("skew", [0.5, 0.75, 1.0])
@pytest.mark.parametrize(("rows", "memory"), [(500_000, 50_000_000), (2_000_000, 50_000_000), (2_000_000, 250_000_000)])
def test_parallel_phases_at_the_papers_sizes(rows: int, memory: int, skew: float) -> None:
    """opcachejoin2020: OP-CACHEJOIN ahead of P-CACHEJOIN ahead of CACHEJOIN, memory a fifth of R and more."""
    alone, two, three = (
        predicted_rate(name, rows, memory, skew) for name in ("cachejoin", "pcachejoin", "opcachejoin")
    )
    assert alone < two < three


# ------------------------------------------------------------------------------------- what does not hold


def test_one_disk_does_not_load_twice_as_fast() -> None:
    """opcachejoin2020 halves c_I/O for OP-CACHEJOIN. With one disk and memory of 1 % of R nearly all time is I/O: next
    to nothing could run beside it."""
    at = (PAPER_ROWS, MEMORY["1%"], 1.0)
    assert predicted_rate("opcachejoin", *at) < 1.1 * predicted_rate("pcachejoin", *at)


def test_seven_times_meshjoin_is_more_than_memory_allows() -> None:
    """ssbj2019: 7 to 8 times. No policy gets that from these bytes; SSBJ's formula says where it ends."""
    times = predicted_rate("ssbj", PAPER_ROWS, MEMORY["10%"], 1.0, scaled(PROFILE, 1e-3)) / predicted_rate(
        "meshjoin", PAPER_ROWS, MEMORY["10%"], 1.0, scaled(PROFILE, 1e-3)
    )
    assert 3.0 < times < 3.9
