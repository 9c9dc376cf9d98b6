"""The hot set changes where it should, as fast as it should, and only it."""

from __future__ import annotations

import numpy as np
import pytest

from semistream.errors import ConfigError
from semistream.lab.workloads.counter import gather
from semistream.lab.workloads.drift import Drift, epoch_seed
from semistream.lab.workloads.relation import SyntheticStream
from semistream.lab.workloads.zipf import zipf_keys

KEYS = 5_000


def hottest(keys: np.ndarray, count: int = 20) -> set[int]:
    return set(np.argsort(np.bincount(keys, minlength=KEYS))[-count:].tolist())


def test_abrupt_change() -> None:
    stream = SyntheticStream(KEYS, 1.0, 6, drift=Drift((30_000, 60_000)))
    calm = SyntheticStream(KEYS, 1.0, 6)
    assert np.array_equal(stream.keys(0, 30_000), calm.keys(0, 30_000))
    sets = [hottest(stream.keys(start, start + 30_000)) for start in (0, 30_000, 60_000)]
    assert all(not one & other for one, other in zip(sets, sets[1:] + sets[:1], strict=True))


def test_only_the_places_of_the_ranks_change() -> None:
    drift = Drift((1_000,), over=4_000)
    stream = SyntheticStream(KEYS, 1.0, 6, drift=drift)
    keys, epochs = stream.keys(0, 6_000), drift.epochs(6, 0, 6_000)
    ranks = np.where(epochs == 0, gather(keys, KEYS, 6), gather(keys, KEYS, epoch_seed(6, 1)))
    assert np.array_equal(ranks, gather(zipf_keys(KEYS, 1.0, 6, 0, 6_000), KEYS, 6))


def test_gradual_change_rises_evenly() -> None:
    epochs = Drift((10_000, 60_000), over=40_000).epochs(3, 0, 110_000)
    assert (epochs[:10_000] == 0).all()
    assert (epochs[50_000:60_000] == 1).all()
    assert (epochs[100_000:] == 2).all()
    for start in (10_000, 60_000):
        window = epochs[start : start + 40_000] - epochs[start - 1]
        shares = window.reshape(8, -1).mean(axis=1)
        # Five deviations of a share of 5,000 rows.
        assert shares == pytest.approx((np.arange(8) + 0.5) / 8, abs=5 * 0.5 / np.sqrt(5_000))


def test_no_change_at_all() -> None:
    stream, calm = SyntheticStream(KEYS, 1.0, 6, drift=Drift(())), SyntheticStream(KEYS, 1.0, 6)
    assert stream.rows(0, 500).equals(calm.rows(0, 500))


@pytest.mark.parametrize("drift", [((5, 3), 0), ((5, 5), 0), ((0, 100), 101), ((-1,), 0), ((3,), -2)])
def test_impossible_changes_are_refused(drift: tuple[tuple[int, ...], int]) -> None:
    with pytest.raises(ConfigError, match="changes at"):
        Drift(*drift)
