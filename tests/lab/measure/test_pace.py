"""What a machine was usually worth, of some times that it was looked at."""

from __future__ import annotations

from semistream.lab.measure.pace import taken_together, usual_pace


def test_the_middle_one_counts_part_by_part() -> None:
    paces = [{"work_s": 1.0, "read_s_per_byte": 4.0}, {"work_s": 9.0, "read_s_per_byte": 2.0}, {"work_s": 1.1}]
    assert usual_pace(paces) == {"work_s": 1.1}
    assert usual_pace(paces[:2]) == {"read_s_per_byte": 3.0, "work_s": 5.0}


def test_of_several_runs_one_that_nobody_noted_leaves_nothing() -> None:
    known = {"at": "2026-01-01T10:00:00+00:00", "work_s": 1.0, "read_s_per_byte": 2.0}
    assert taken_together([known, {**known, "work_s": 3.0}]) == {**known, "work_s": 2.0}
    assert taken_together([known, {"at": "2026-01-01T09:00:00+00:00", "work_s": 1.0}]) == {
        "at": known["at"],
        "work_s": 1.0,
    }
    assert taken_together([known, None]) is None
    assert taken_together([]) is None
