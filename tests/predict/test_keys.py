"""w_N and w_S: exact where they can be summed up, and the papers' closed forms as special cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semistream.errors import ConfigError
from semistream.lab.equations import EULER_GAMMA, ssj2014
from semistream.lab.workloads.zipf import zipf_keys, zipf_probabilities
from semistream.predict.keys import (
    FrequencySample,
    KeyClasses,
    harmonic,
    normal_cdf,
    zipf,
)
from semistream.predict.sharing import group_shares, needed_pages, oldest_first, page_runs


@given(n=st.integers(1, 20_000), exponent=st.floats(0, 3))
def test_harmonic_numbers_are_the_sums(n: int, exponent: float) -> None:
    direct = float((np.arange(1, n + 1, dtype=np.float64) ** -exponent).sum())
    assert float(harmonic(n, exponent)) == pytest.approx(direct, rel=1e-10)


def test_harmonic_numbers_near_exponent_one() -> None:
    """The integral has a limit at 1: no digits may be lost around it."""
    at_one = float(harmonic(10**8, 1.0))
    assert at_one == pytest.approx(math.log(10**8) + EULER_GAMMA + 0.5e-8, rel=1e-12)
    assert float(harmonic(10**8, 1.0 + 1e-9)) == pytest.approx(at_one, rel=1e-7)


def test_a_negative_exponent_is_refused() -> None:
    with pytest.raises(ConfigError, match="from 0"):
        harmonic(10, -0.5)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.5])
@pytest.mark.parametrize("h_R", [1, 100, 5_000, 40_000])
def test_p_N_is_the_mass_of_the_most_frequent(exponent: float, h_R: int) -> None:
    keys = zipf(50_000, exponent)
    exact = zipf_probabilities(50_000, exponent)[:h_R].sum()
    assert keys.p_N(keys.most_frequent(h_R)) == pytest.approx(exact, rel=2e-3)


@pytest.mark.parametrize(("h_R", "R_t"), [(10_000, 1_000_000), (1_000_000, 100_000_000)])
def test_the_closed_form_of_p_N(h_R: int, R_t: int) -> None:
    """Eq 4 with the harmonic sums of eq 5 is ours; eq 5 itself drops Euler's constant, which costs 1 to 2 points."""
    keys = zipf(R_t, 1.0)
    ours = keys.p_N(keys.most_frequent(h_R))
    assert ours == pytest.approx((math.log(h_R) + EULER_GAMMA) / (math.log(R_t) + EULER_GAMMA), abs=1e-4)
    assert ours == pytest.approx(ssj2014.equation_5_p_N(h_R=h_R, R_t=R_t), abs=0.02)


def test_the_closed_form_of_p_S() -> None:
    """Mean share of a partition of d tuples in the stream, eq 8: what the cache leaves over their number."""
    R_t, h_R, d = 2_000_000, 20_000, 1_000
    keys = zipf(R_t, 1.0)
    left = 1.0 - keys.p_N(keys.most_frequent(h_R))
    N = ssj2014.segments(R_t=R_t, h_R=h_R, d=d)
    assert left / N == pytest.approx(ssj2014.equation_8_p_S(R_t=R_t, h_R=h_R, N=N), rel=1e-3)


def test_keys_drawn_with_repetition() -> None:
    """ssbj2019's master data: e^-1 of the keys have no tuple, and there is one a key on average."""
    keys = zipf(100_000, 1.0, repeated=True)
    assert keys.absent_share == pytest.approx(math.exp(-1), abs=1e-3)
    assert keys.rows_per_tuple == pytest.approx(1.0, abs=1e-3)


def test_absent_keys_and_many_tuples_a_key() -> None:
    keys = zipf(1_000, 0.5, rows_per_key=3.0, absent=0.25)
    assert keys.absent_share == pytest.approx(0.25)
    assert keys.rows_per_tuple == pytest.approx(0.75 * 3)
    assert float((keys.count * keys.m).sum()) == pytest.approx(0.75 * 3_000)


def test_probabilities_must_sum_to_one() -> None:
    with pytest.raises(ConfigError, match="sum to 1"):
        KeyClasses(np.ones(2), np.array([0.5, 0.4]), np.ones(2))


def test_a_recorder_is_never_better_than_knowing() -> None:
    keys = zipf(100_000, 1.0)
    best = keys.p_N(keys.most_frequent(2_000))
    seen = [keys.p_N(keys.recorded(2_000, memory)) for memory in (1e3, 1e4, 1e5, 1e6, 1e8)]
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(best, abs=2e-3)
    assert seen[-1] <= best + 1e-6


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.2])
@pytest.mark.parametrize("memory", [50_000, 1e9])
@pytest.mark.parametrize("h_R", [3.0, 3_000.0, 60_000.0])
def test_a_recorder_fills_the_cache(exponent: float, memory: float, h_R: float) -> None:
    keys = zipf(100_000, exponent)
    cached = keys.recorded(h_R, memory)
    assert float((keys.count * keys.m * cached).sum()) == pytest.approx(h_R, rel=1e-3)


def test_a_recorder_without_a_place_keeps_nothing() -> None:
    keys = zipf(100_000, 0.7)
    assert keys.p_N(keys.recorded(0.0, 50_000)) < 1e-6


@pytest.mark.parametrize("exponent", [0.5, 1.0])
def test_a_young_recorder_knows_what_has_come(exponent: float) -> None:
    """While the cache has room it holds what has come, then what it takes for frequent, and at last it is at rest."""
    keys = zipf(100_000, exponent)
    assert keys.p_N(keys.recorded(2_000, 1e6, seen=0.0)) == 0.0
    few = keys.recorded(2_000, 1e6, seen=1_000)
    assert float((keys.count * few).sum()) == pytest.approx(keys.distinct(1_000))
    codes = zipf_keys(100_000, exponent, 3, 0, 2_000)
    known = np.isin(codes[1_000:], codes[:1_000]).mean()
    assert keys.p_N(few) == pytest.approx(known, abs=0.04)
    hits = [keys.p_N(keys.recorded(2_000, 1e6, seen=seen)) for seen in (1e3, 1e4, 1e5, 1e6, 1e9, math.inf)]
    assert hits == sorted(hits)
    assert hits[-2] == pytest.approx(hits[-1], abs=1e-6)
    for seen in (1e4, 1e5, 1e6):
        cached = keys.recorded(2_000, 1e6, seen=seen)
        assert float((keys.count * cached).sum()) == pytest.approx(2_000, rel=1e-3)
        assert bool((cached <= keys.came(seen) + 1e-12).all())


def test_the_normal_distribution_function() -> None:
    z = np.linspace(-5, 5, 41)
    exact = np.array([0.5 * (1 + math.erf(x / math.sqrt(2))) for x in z])
    assert np.abs(normal_cdf(z) - exact).max() < 2e-7


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.3])
def test_a_sample_of_a_stream_tells_its_distribution(exponent: float) -> None:
    """Hit rates of caches of any size, from a sample twice as long as there are keys, within 3 points."""
    sample = FrequencySample()
    for start in range(0, 200_000, 50_000):
        sample.add(zipf_keys(100_000, exponent, 3, start, 50_000))
    found, truth = sample.classes(100_000), zipf(100_000, exponent)
    for h_R in (100, 1_000, 10_000, 50_000):
        expected = truth.p_N(truth.most_frequent(h_R))
        assert found.p_N(found.most_frequent(h_R)) == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.3])
def test_classes_are_few(exponent: float) -> None:
    """A plan sums over them hundreds of times before the first tuple is joined."""
    assert len(zipf(50_000_000, exponent).p) < 600
    sample = FrequencySample()
    sample.add(zipf_keys(1_000_000, exponent, 3, 0, 60_000))
    found = sample.classes(1_000_000)
    assert len(found.p) < 600
    assert float(found.count.sum()) == pytest.approx(1_000_000)
    # Keys that were seen often have the share they showed.
    top = sample.top_share(10)
    if exponent >= 1.0:
        assert found.p_N(found.most_frequent(10)) == pytest.approx(top)


def test_a_sample_that_is_limited_keeps_the_frequent_keys() -> None:
    sample = FrequencySample()
    sample.add(zipf_keys(100_000, 1.0, 3, 0, 50_000))
    top = np.sort(sample.codes[np.argsort(-sample.counts, kind="stable")][:20])
    share = sample.top_share(20)
    sample.limit(500)
    assert len(sample.codes) <= 500
    assert bool(np.isin(top, sample.codes).all())
    assert sample.top_share(20) == pytest.approx(share - 20 * sample.lowered / 50_000)


def test_samples_of_batches_are_added_up() -> None:
    codes = zipf_keys(5_000, 0.8, 3, 0, 20_000)
    sample = FrequencySample()
    for start in range(0, len(codes), 4_000):
        sample.add(codes[start : start + 4_000])
    once, times = np.unique(codes, return_counts=True)
    assert np.array_equal(sample.codes, once)
    assert np.array_equal(sample.counts, times)


def test_a_sample_is_bounded_and_keeps_the_frequent_keys() -> None:
    codes = zipf_keys(100_000, 1.0, 3, 0, 200_000)
    whole, bounded = FrequencySample(1 << 20), FrequencySample(2_000)
    for start in range(0, len(codes), 20_000):
        whole.add(codes[start : start + 20_000])
        bounded.add(codes[start : start + 20_000])
    assert len(bounded.codes) <= 2_000
    assert bounded.lowered <= bounded.seen / 2_000
    exact = dict(zip(whole.codes.tolist(), whole.counts.tolist(), strict=True))
    kept = dict(zip(bounded.codes.tolist(), bounded.counts.tolist(), strict=True))
    for code, count in sorted(exact.items(), key=lambda item: -item[1])[:100]:
        assert count - bounded.lowered <= kept[code] <= count


def test_an_empty_sample_is_refused() -> None:
    with pytest.raises(ConfigError, match="sample is empty"):
        FrequencySample().classes(10)


# ------------------------------------------------------------------------------------------ shared loads


def test_a_small_table_shares_nothing_a_large_one_twice_what_a_scan_shares() -> None:
    groups = np.full(1_000, 1e-3)
    assert oldest_first(groups, 2).loads == pytest.approx(1.0, abs=0.01)
    assert oldest_first(groups, 200_000).w_S == pytest.approx(2 * 200_000 / 1_000, rel=0.02)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("h_S", [20, 100, 400])
def test_shared_loads_are_those_of_a_queue(h_S: int, exponent: float) -> None:
    """The renewal formula against the queue itself: the oldest picks a group, all that wait for it leave."""
    shares = zipf_probabilities(50, exponent)
    waiting = np.zeros(50, dtype=int)
    #: groups in the order of their oldest tuples, and the tuples of every load
    queue: list[int] = []
    served: list[int] = []
    for group in np.random.default_rng(1).choice(50, size=40_000, p=shares).tolist():
        if waiting[group] == 0:
            queue.append(group)
        waiting[group] += 1
        if waiting.sum() == h_S:
            oldest = queue.pop(0)
            served.append(int(waiting[oldest]))
            waiting[oldest] = 0
    assert oldest_first(shares, h_S).w_S == pytest.approx(np.mean(served[50:]), rel=0.08)


def test_group_shares_cover_the_stream() -> None:
    keys = zipf(200_000, 1.0)
    for contiguous in (False, True):
        shares = group_shares(keys, 500, contiguous)
        assert len(shares) == 500
        assert shares.sum() == pytest.approx(1.0)
    assert group_shares(keys, 500, True)[0] == pytest.approx(keys.p_N(keys.most_frequent(400)), rel=1e-3)


def test_needed_pages_and_their_runs() -> None:
    uniform = np.full(1_000, 1e-3)
    pages = needed_pages(uniform, 500)
    assert pages == pytest.approx(1_000 * (1 - math.exp(-0.5)), rel=1e-6)
    assert page_runs(pages, 1_000, 0) == pytest.approx(pages * (1 - pages / 1_000))
    assert page_runs(1_000, 1_000, 0) == 1.0
