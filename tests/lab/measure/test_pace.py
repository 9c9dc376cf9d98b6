"""What a machine was usually worth, of some times that it was looked at."""

from __future__ import annotations

from semistream.lab.measure.pace import usual_pace


def test_the_middle_one_counts_part_by_part() -> None:
    paces = [{"work_s": 1.0, "read_s_per_byte": 4.0}, {"work_s": 9.0, "read_s_per_byte": 2.0}, {"work_s": 1.1}]
    assert usual_pace(paces) == {"work_s": 1.1}
    assert usual_pace(paces[:2]) == {"read_s_per_byte": 3.0, "work_s": 5.0}
