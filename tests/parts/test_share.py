"""How many bytes a cache earns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from semistream.parts.share import Range, ShareReview

SIZES = Range(least=100, most=3_200, total=8_000)


def test_a_cache_has_no_more_of_the_bytes_than_it_answers_of_the_stream() -> None:
    assert SIZES.fitting(3_200, 0.4) == 3_200
    assert SIZES.fitting(3_200, 0.39) == 1_600
    assert SIZES.fitting(3_200, 0.06) == 400
    assert SIZES.fitting(3_200, 0.0) == 100


def test_it_grows_when_the_larger_share_would_pay_without_another_hit() -> None:
    assert SIZES.fitting(400, 0.099) == 400
    assert SIZES.fitting(400, 0.1) == 800
    assert SIZES.fitting(100, 0.9) == 3_200


@given(size=st.sampled_from([100, 200, 400, 800, 1_600, 3_200]), answered=st.floats(0, 1))
def test_sizes_do_not_swing(size: int, answered: float) -> None:
    """What a cache of the new size answers is not less if it grew, and not more if it shrank."""
    changed = SIZES.fitting(size, answered)
    assert SIZES.fitting(changed, answered) == changed
    assert changed == SIZES.least or answered >= changed / SIZES.total or changed == size


def test_at_rest_by_a_formula() -> None:
    assert SIZES.at_rest(lambda size: 0.1 * size / 8_000) == 100
    assert SIZES.at_rest(lambda size: 0.25) == 1_600
    assert SIZES.at_rest(lambda size: 1.0) == 3_200


def test_the_least_share_holds_some_rows_but_never_more_than_was_planned() -> None:
    assert Range.of(32_000_000, 48_000_000, 4096).least == 1_000_000
    small = Range.of(40_000, 60_000, 4096)
    assert 8_192 < small.least < 10_000
    assert Range.of(5_000, 60_000, 4096).least == 5_000


def test_bytes_are_taken_away_after_two_reviews_without_a_rise() -> None:
    review = ShareReview(SIZES, patience=2)
    assert [review.wanted(hits, 1_000) for hits in (0, 0)] == [3_200, 3_200]
    assert [review.wanted(hits, 1_000) for hits in (100, 200, 250)] == [3_200] * 3, "hits rise"
    assert review.wanted(255, 1_000) == 3_200
    assert review.wanted(257, 1_000) == 1_600, "too slowly to come to 400"
    review.resized(1_600)
    assert [review.wanted(0, 1_000) for _ in range(2)] == [1_600, 1_600], "a fresh cache fills"


def test_one_bad_review_is_forgotten() -> None:
    review = ShareReview(SIZES, patience=0)
    assert review.wanted(900, 1_000) == 3_200
    for hits in (100, 900, 100, 900):
        assert review.wanted(hits, 1_000) == 3_200


def test_more_bytes_come_at_once() -> None:
    review = ShareReview(SIZES, patience=0)
    review.resized(100)
    assert review.wanted(500, 1_000) == 3_200
