"""How many bytes a cache earns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from semistream.parts.share import Range, ShareReview

SIZES = Range(least=100, most=3_200, total=8_000)


def test_a_cache_has_no_more_of_the_bytes_than_it_answers_of_the_stream() -> None:
    assert SIZES.fitting(3_200, 0.4) == 3_200
    assert SIZES.fitting(3_200, 0.39) == 100
    assert SIZES.fitting(400, 0.05) == 400
    assert SIZES.fitting(400, 0.049) == 100
    assert SIZES.fitting(100, 0.0) == 100


def test_it_grows_when_the_larger_share_would_pay_without_another_hit() -> None:
    assert SIZES.fitting(400, 0.099) == 400
    assert SIZES.fitting(400, 0.1) == 800
    assert SIZES.fitting(100, 0.9) == 3_200


@given(size=st.sampled_from([100, 200, 400, 800, 1_600, 3_200]), answered=st.floats(0, 1))
def test_sizes_do_not_swing(size: int, answered: float) -> None:
    """A cache that grew answers no less than before, and is not taken away again."""
    changed = SIZES.fitting(size, answered)
    assert changed == SIZES.least or answered >= changed / SIZES.total
    if changed > size:
        assert SIZES.fitting(changed, answered) == changed


def test_at_rest_by_a_formula() -> None:
    assert SIZES.at_rest(lambda size: 0.1 * size / 8_000) == 100
    assert SIZES.at_rest(lambda size: 0.25) == 1_600
    assert SIZES.at_rest(lambda size: (size / 8_000) ** 0.5 / 2) == 800, "a quarter of it would be answered at 1,600"
    assert SIZES.at_rest(lambda size: 1.0) == 3_200


def test_the_least_share_holds_some_rows_but_never_more_than_was_planned() -> None:
    assert Range.of(32_000_000, 48_000_000, 4096).least == 1_000_000
    small = Range.of(40_000, 60_000, 4096)
    assert 4_096 < small.least < 5_000
    assert Range.of(3_000, 60_000, 4096).least == 3_000


def test_bytes_are_taken_away_after_two_reviews_without_a_rise() -> None:
    review = ShareReview(SIZES, patience=2)
    assert [review.wanted(hits, 1_000) for hits in (0, 0)] == [3_200, 3_200]
    assert [review.wanted(hits, 1_000) for hits in (100, 200, 250)] == [3_200] * 3, "hits rise"
    assert review.wanted(255, 1_000) == 3_200
    assert review.wanted(257, 1_000) == 100, "too slowly to come to 400"
    review.resized(100)
    assert [review.wanted(900, 1_000) for _ in range(2)] == [100, 100], "a fresh cache fills"


def test_one_bad_review_is_forgotten() -> None:
    review = ShareReview(SIZES, patience=0)
    assert review.wanted(900, 1_000) == 3_200
    for hits in (100, 900, 100, 900):
        assert review.wanted(hits, 1_000) == 3_200


def test_more_bytes_come_at_once() -> None:
    review = ShareReview(SIZES, patience=0)
    review.resized(100)
    assert review.wanted(500, 1_000) == 3_200
