"""Codes of keys that have changed, against a dictionary."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from semistream.columns.keys import KeyCoder
from semistream.columns.stream_keys import Recoding, StreamCoder

INT64 = np.iinfo(np.int64)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 1000, 70_000])
@pytest.mark.parametrize("span", [10, 10**6, 2**62])
def test_every_code_is_what_the_list_says(count: int, span: int) -> None:
    rng = np.random.default_rng(count)
    ends = np.array([INT64.min, INT64.max])[: count // 2]
    codes = np.unique(np.append(rng.integers(-span, span, count), ends))
    absent = span // 2
    fresh = np.where(rng.random(len(codes)) < 0.3, absent, absent + 1 + np.arange(len(codes)))
    known = dict(zip(codes.tolist(), fresh.tolist(), strict=True))
    recoding = Recoding(len(codes), absent, lambda: (codes, fresh))
    asked = np.concatenate(
        [codes, rng.integers(-span, span, 5000), np.arange(absent - 5, absent + 50), [INT64.min, INT64.max, 0, -1]]
    )
    expected = [known.get(code, min(code, absent)) for code in asked.tolist()]
    recoding.apply(asked)
    assert asked.tolist() == expected


def test_bytes_of_the_table_are_known_beforehand() -> None:
    loaded = []

    def load() -> tuple[np.ndarray, np.ndarray]:
        loaded.append(1)
        return np.arange(1000), np.arange(1000) + 5000

    recoding = Recoding(1000, 4999, load)
    assert not loaded
    assert recoding.nbytes == (1333 + 2) * 16 + 256 * 8
    recoding.load()
    recoding.load()
    assert len(loaded) == 1


def test_keys_of_other_types_are_recoded_too() -> None:
    recoding = Recoding(1, 100, lambda: (np.array([7]), np.array([101])))
    coder = StreamCoder(KeyCoder([pa.int64()]), recoding).for_stream([pa.int8()])
    codes, valid = coder.codes([pa.array([7, 8, None, 105], pa.int8())])
    assert codes[[0, 1, 3]].tolist() == [101, 8, 100]
    assert valid is not None
    assert valid.tolist() == [True, True, False, True]


@pytest.mark.parametrize(
    ("kind", "changed", "is_key"),
    [(pa.int64(), False, True), (pa.int64(), True, False), (pa.string(), False, False), (pa.string(), True, False)],
)
def test_a_code_stands_for_its_key_only_without_changes(kind: pa.DataType, changed: bool, is_key: bool) -> None:
    recoding = Recoding(1, 100, lambda: (np.array([7]), np.array([101]))) if changed else None
    coder = StreamCoder(KeyCoder([kind]), recoding)
    assert coder.is_key == is_key
    assert coder.exact == (kind == pa.int64())
