"""A filter may take an absent key for a known one, never the other way round."""

from __future__ import annotations

import numpy as np
import pytest

from semistream.parts.key_filter import KeyFilter


@pytest.mark.parametrize("bits", [0.75, 2.0, 6.0])
def test_known_keys_are_never_called_absent(bits: float) -> None:
    keys = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 50_000)
    known = KeyFilter(KeyFilter.size_for(len(keys), int(len(keys) * bits / 8) + 1), len(keys))
    known.add(keys, len(keys))
    ids, absent = np.arange(len(keys)), np.empty(len(keys), dtype=np.int64)
    assert known.split(keys, ids, len(keys), absent) == len(keys)


def test_six_bits_a_key_find_most_absent_keys() -> None:
    keys = np.arange(0, 200_000, 2)
    known = KeyFilter(KeyFilter.size_for(len(keys), 1 << 20), len(keys))
    known.add(keys, len(keys))
    strangers = keys + 1
    ids, absent = np.arange(len(keys)), np.empty(len(keys), dtype=np.int64)
    kept = known.split(strangers, ids, len(keys), absent)
    assert kept < 0.12 * len(keys)
    assert sorted([*ids[:kept].tolist(), *absent[: len(keys) - kept].tolist()]) == list(range(len(keys)))


def test_too_few_bits_are_not_worth_any() -> None:
    assert KeyFilter.size_for(1_000_000, 50_000) == 0
    assert KeyFilter.size_for(1_000_000, 10**9) == 750_000
