"""How loads are shared by tuples that wait."""

from __future__ import annotations

import numpy as np
import pytest

from semistream.predict import sharing
from semistream.predict.keys import zipf


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.2])
@pytest.mark.parametrize("h_S", [1_000.0, 100_000.0])
def test_many_groups_by_kinds_say_the_same(exponent: float, h_S: float, monkeypatch: pytest.MonkeyPatch) -> None:
    shares = sharing.group_shares(zipf(5_000_000, exponent), 20_000, False)
    by_kinds = sharing.oldest_first(shares, h_S, absent=0.1)
    monkeypatch.setattr(sharing, "_FEW_GROUPS", len(shares))
    one_by_one = sharing.oldest_first(shares, h_S, absent=0.1)
    for name in ("loads", "longest", "w_S", "waiting"):
        assert getattr(by_kinds, name) == pytest.approx(getattr(one_by_one, name), rel=0.01), name


def test_kinds_keep_the_sum() -> None:
    shares = sharing.group_shares(zipf(1_000_000, 1.0), 5_000, False)
    mean, number = sharing._alike(shares)
    assert number.sum() == 5_000
    assert len(mean) < 1_000
    assert float((mean * number).sum()) == pytest.approx(float(np.sum(shares)))


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.0, 1.2])
@pytest.mark.parametrize("tuples", [1_000.0, 20_000.0])
def test_only_keys_that_matter_to_a_group_are_placed(
    exponent: float, tuples: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = zipf(1_000_000, exponent)
    shares = sharing.group_shares(keys, 4_000, False)
    monkeypatch.setattr(sharing, "_PLACED_SHARE", 0.0)
    one_by_one = sharing.group_shares(keys, 4_000, False)
    assert float(shares.sum()) == pytest.approx(1.0)
    assert sharing.needed_pages(shares, tuples) == pytest.approx(sharing.needed_pages(one_by_one, tuples), rel=0.01)
    few, all_ = (sharing.oldest_first(each, tuples) for each in (shares, one_by_one))
    assert few.loads == pytest.approx(all_.loads, rel=0.01)
