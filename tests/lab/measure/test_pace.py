"""Paces of a machine are told part by part, and their mean is of what all of them have."""

from __future__ import annotations

from semistream.lab.measure.pace import mean_pace


def test_the_mean_is_of_what_all_have() -> None:
    assert mean_pace([{"work_s": 1.0, "read_s_per_byte": 4.0}, {"work_s": 2.0}]) == {"work_s": 1.5}
    assert mean_pace([{"work_s": 1.0, "read_s_per_byte": 4.0}, {"work_s": 2.0, "read_s_per_byte": 2.0}]) == {
        "work_s": 1.5,
        "read_s_per_byte": 3.0,
    }
