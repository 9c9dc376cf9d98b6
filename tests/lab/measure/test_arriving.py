"""Tuples that arrive by a clock: each comes out once, none before it came, and memory follows the rate."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from semistream.cost.profile import paper_profile
from semistream.engine.join import SemiStreamJoin
from semistream.lab.measure.arriving import Arriving, Even, Floats, Listed, at_rest, bursty, even
from semistream.lab.measure.delays import VirtualClock
from semistream.lab.measure.opening import open_named
from semistream.lab.workloads.relation import KEY, STREAM_SCHEMA, SyntheticMaster, SyntheticStream
from semistream.master.build import build_pages

ROWS = 20_000
RATE = 50_000.0
MEMORY = 1_000_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "r"
    build_pages(SyntheticMaster(ROWS, 1).reader(), path, on=KEY)
    return path


@pytest.fixture
def stream() -> SyntheticStream:
    return SyntheticStream(ROWS, 1.0, 1)


def opened(name: str, store: Path) -> SemiStreamJoin:
    return open_named(name, master=store, on=KEY, memory=MEMORY, stream_schema=STREAM_SCHEMA)


class Kept(list[Floats]):
    """Stays by call, to be looked at together."""

    @property
    def all(self) -> Floats:
        return np.concatenate(self)


@pytest.mark.parametrize("schedule", [Even(7.0), even(7.0, 1_000, 0), bursty(7.0, 1_000, 3)])
def test_who_was_waited_for_has_come(schedule: Even | Listed) -> None:
    for number in (1, 16, 333, 1_000):
        assert schedule.arrived(schedule.moment(number)) >= number
        assert schedule.arrived(schedule.moment(number) - 1e-3) < number + 1
    assert schedule.moments(np.array([0]))[0] == pytest.approx(schedule.moment(1))


def test_bursts_have_the_rate_of_an_even_stream() -> None:
    times, calm = bursty(RATE, 20_000, 3).seconds, even(RATE, 20_000, 3).seconds
    assert times[-1] == pytest.approx(calm[-1]) == pytest.approx(20_000 / RATE)
    assert (np.diff(times) >= 0).all()
    counts = [np.histogram(one, bins=50, range=(0, calm[-1]))[0] for one in (times, calm)]
    assert counts[0].std() > 10 * max(counts[1].std(), 1.0)
    assert np.array_equal(bursty(RATE, 20_000, 3).seconds, times)
    assert not np.array_equal(bursty(RATE, 20_000, 4).seconds, times)


@pytest.mark.parametrize("name", ["meshjoin", "hybridjoin", "ssbj", "cachejoin"])
@pytest.mark.parametrize("kind", [even, bursty])
def test_every_tuple_comes_out_once_and_not_before_it_came(
    name: str, kind: type, store: Path, stream: SyntheticStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[np.ndarray] = []
    with opened(name, store) as join:
        push, advance = join.push, join.advance

        def noted(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in rows:
                seen.append(batch.column("seq").to_numpy())
                yield batch

        monkeypatch.setattr(join, "push", lambda batch: noted(push(batch)))
        monkeypatch.setattr(join, "advance", lambda: noted(advance()))
        stays = Kept()
        arriving = Arriving(join, stream, 5_000)
        samples = list(arriving.turns(kind(RATE, 8_000, 1), VirtualClock(join, paper_profile()), stays))
        assert join.waiting == 0
    assert np.array_equal(np.sort(np.concatenate(seen)), np.arange(5_000, 13_000))
    assert arriving.position == 13_000
    assert len(stays.all) == 8_000
    assert stays.all.min() >= -1e-9
    moments = [sample.seconds for sample in samples]
    assert moments == sorted(moments)
    assert all(0 <= sample.bytes <= sample.all_bytes <= MEMORY for sample in samples)


def test_what_a_scan_holds_follows_the_rate_and_falls_with_it(store: Path, stream: SyntheticStream) -> None:
    held = []
    with opened("meshjoin", store) as join:
        arriving = Arriving(join, stream)
        for rate in (2_000.0, 20_000.0, 2_000.0):
            cycles = join.stats.r_cycles
            turns = arriving.turns(Even(rate), VirtualClock(join, paper_profile()))
            samples = list(islice((s for s in turns if s.r_cycles >= cycles + 3), 1))
            held.append((samples[0].waiting, samples[0].bytes))
    (low, low_bytes), (high, high_bytes), (again, again_bytes) = held
    assert high > 3 * low
    assert high_bytes > low_bytes
    assert again == pytest.approx(low, rel=0.5)
    assert again_bytes <= 1.2 * low_bytes + 4096


def test_rest_is_the_same_for_a_while() -> None:
    assert at_rest([1.0, 5.0, 5.0, 5.0, 5.1, 5.0]) == (pytest.approx(5.05), True)
    assert at_rest([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])[1] is False
    assert at_rest([3.0]) == (3.0, False)
