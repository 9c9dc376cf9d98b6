"""A filter may take an absent key for a known one, never the other way round."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semistream.parts.key_filter import FilterPlan, KeyFilter

_LEAST, _MOST = -(2**63), 2**63 - 1


def _filter(keys: np.ndarray, table_bytes: float, codes: tuple[int, int] | None = None) -> KeyFilter:
    plan = FilterPlan.make(len(keys), table_bytes, codes)
    assert plan is not None
    known = KeyFilter(plan)
    known.add(keys, len(keys))
    return known


def _kept(known: KeyFilter, codes: np.ndarray) -> list[int]:
    """Codes that may be in R; none is lost or comes twice."""
    ids, absent = np.arange(len(codes)), np.empty(len(codes), dtype=np.int64)
    kept = known.split(codes, ids, len(codes), absent)
    assert sorted([*ids[:kept].tolist(), *absent[: len(codes) - kept].tolist()]) == list(range(len(codes)))
    return codes[ids[:kept]].tolist()


@pytest.mark.parametrize("bits", [0.75, 2.0, 6.0])
def test_known_keys_are_never_called_absent(bits: float) -> None:
    keys = np.random.default_rng(1).integers(_LEAST, _MOST, 50_000)
    known = _filter(keys, (len(keys) * bits / 8 + 1) / 0.06)
    assert known.plan.hashes > 0
    assert len(_kept(known, keys)) == len(keys)


def test_six_bits_a_key_find_most_absent_keys() -> None:
    keys = np.arange(0, 200_000, 2)
    assert len(_kept(_filter(keys, 1 << 30), keys + 1)) < 0.12 * len(keys)


def test_too_few_bits_are_not_worth_any() -> None:
    assert FilterPlan.make(1_000_000, 50_000 / 0.06, None) is None
    assert FilterPlan.make(0, 1 << 30, None) is None
    plan = FilterPlan.make(1_000_000, 1e9, None)
    assert plan is not None
    assert plan.bytes == 750_000


def test_dense_codes_get_a_bit_each_and_are_told_apart_exactly() -> None:
    keys = np.arange(1000, 50_000, 3)
    known = _filter(keys, 1 << 20, (1000, 49_999))
    assert known.plan.hashes == 0
    assert known.bytes_held == 6125
    everything = np.concatenate((np.arange(60_000), [_LEAST, _MOST, -1]))
    assert _kept(known, everything) == keys.tolist()


def test_sparse_codes_get_no_bitmap() -> None:
    plan = FilterPlan.make(1000, 1 << 30, (_LEAST, _MOST))
    assert plan is not None
    assert plan.hashes > 0
    small = FilterPlan.make(1000, 4000, (0, 5999))
    assert small is not None
    assert small.hashes > 0, "a bitmap would take more than its share of the bytes"


@given(
    keys=st.lists(st.integers(_LEAST, _MOST) | st.integers(-200, 200), min_size=1, max_size=60),
    others=st.lists(st.integers(_LEAST, _MOST) | st.integers(-250, 250), max_size=60),
    first=st.integers(_LEAST, _MOST) | st.integers(-250, 250),
    size=st.integers(1, 60),
)
def test_a_range_that_is_not_quite_right_loses_no_key(
    keys: list[int], others: list[int], first: int, size: int
) -> None:
    known = KeyFilter(FilterPlan(size, first=first))
    codes = np.array(keys, dtype=np.int64)
    known.add(codes, len(codes))
    asked = np.array([*keys, *others], dtype=np.int64)
    kept = set(_kept(known, asked))
    assert kept >= set(keys)
    covered = {code for code in others if first <= code < first + 8 * size}
    beyond = {code for code in others if not min(keys) <= code <= max(keys)}
    assert not (covered | beyond) & kept - set(keys)
