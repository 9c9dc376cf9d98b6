"""Pauses double up to a limit, and begin anew after a success."""

from __future__ import annotations

from semistream.parts.backoff import BackOff


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def _pause(off: BackOff, clock: _Clock) -> float:
    """Seconds from a failure until the next try, by looking every second."""
    off.failed()
    seconds = 0.0
    while off.waiting:
        clock.now += 1.0
        seconds += 1.0
    return seconds


def test_pauses_double_up_to_a_limit() -> None:
    clock = _Clock()
    off = BackOff(clock)
    assert not off.waiting
    assert [_pause(off, clock) for _ in range(11)] == [2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]


def test_a_success_ends_the_waiting() -> None:
    clock = _Clock()
    off = BackOff(clock)
    for _ in range(5):
        off.failed()
    off.worked()
    assert not off.waiting
    assert _pause(off, clock) == 2
