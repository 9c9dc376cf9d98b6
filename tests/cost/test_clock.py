"""The cost clock: linear in the counts, the same for runs and predictions, and aware of what runs side by side."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from semistream import build_pages, open_join
from semistream.algorithms.registry import ALGORITHMS
from semistream.cost.clock import CostClock, VirtualTime, chunks_per_tuple, counted, deep_counts, row_bytes
from semistream.cost.profile import AHEAD, REFERENCE_ROW_BYTES, IoCost, UnitCost, paper_profile
from semistream.engine.chunk import JoinStats
from semistream.errors import ConfigError

CLOCK = CostClock(paper_profile())
COUNTS = {
    "tuples_in": 1000.0,
    "rows_out": 900.0,
    "cache_hits": 600.0,
    "cache_misses": 400.0,
    "appended": 400.0,
    "expired": 400.0,
    "master_rows_probed": 2000.0,
    "frequency_checks": 50.0,
    "switched": 10.0,
    "intermediate_appends": 400.0,
    "reads": 4.0,
    "bytes_read": 1e6,
    "iterations": 4.0,
    "r_cycles": 1.0,
    "chunks": 2.0,
}


def price(algorithm: str, counts: dict[str, float] = COUNTS, clock: CostClock = CLOCK, **how: float) -> VirtualTime:
    return clock.price(ALGORITHMS[algorithm], counts, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_prices_name_what_is_counted(algorithm: str) -> None:
    pricing = ALGORITHMS[algorithm].pricing
    assert pricing is not None
    counted_names = {"chunks", *(each.name for each in dataclasses.fields(JoinStats))}
    assert {name for counters in pricing.operations.values() for name in counters} <= counted_names
    assert set(pricing.operations) <= set(paper_profile().units)
    assert pricing.seeks is None or pricing.seeks in counted_names


def test_what_has_no_prices_is_refused() -> None:
    bare = dataclasses.replace(ALGORITHMS["meshjoin"], name="mine", pricing=None)
    with pytest.raises(ConfigError, match="mine has no prediction"):
        CLOCK.price(bare, COUNTS)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_twice_the_work_takes_twice_the_time(algorithm: str) -> None:
    once = price(algorithm)
    twice = price(algorithm, {name: 2 * number for name, number in COUNTS.items()})
    assert twice.seconds == pytest.approx(2 * once.seconds)
    assert once.seconds <= once.serial_seconds * (1 + 1e-12)
    assert once == price(algorithm)


def test_the_terms_of_cachejoin_are_those_of_its_equation() -> None:
    """The papers' equation, term by term."""
    terms = price("cachejoin").terms
    unit = paper_profile().unit
    assert terms["c_I/O"] == pytest.approx(4 * 12.7e-3 + 1e6 / 100e6)
    assert terms["c_H"] == pytest.approx(1000 * unit("c_H"))
    assert terms["c_H_S"] == pytest.approx(2000 * unit("c_H_S"))
    assert terms["c_F"] == pytest.approx(50 * unit("c_F"))
    assert terms["c_O"] == pytest.approx(900 * unit("c_O"))
    assert terms["c_A"] + terms["c_E"] == pytest.approx(400 * (unit("c_A") + unit("c_E")))


def test_a_scan_seeks_once_a_cycle() -> None:
    scan, index = price("meshjoin").terms, price("hybridjoin").terms
    assert scan["c_I/O"] == pytest.approx(12.7e-3 + 3 * 0.2e-3 + 0.01)
    assert index["c_I/O"] == pytest.approx(4 * 12.7e-3 + 0.01)


def test_operators_without_a_cache_pay_for_no_look_up_in_it() -> None:
    for algorithm in ("meshjoin", "rmeshjoin", "hybridjoin", "xhybridjoin", "inlj"):
        assert "c_H" not in price(algorithm).terms


def test_phases_side_by_side() -> None:
    """P-CACHEJOIN takes the slower phase, OP-CACHEJOIN's loads run beside both; the work is the same."""
    alone, two, three = (price(name) for name in ("cachejoin", "pcachejoin", "opcachejoin"))
    extra = two.terms["c_AI"]
    assert two.serial_seconds == pytest.approx(alone.serial_seconds + extra)
    assert three.seconds < two.seconds < alone.seconds
    assert two.seconds >= two.serial_seconds / 2
    assert three.seconds >= three.serial_seconds / 3


def _reading_ahead(seek_s: float, bytes_per_s: float) -> CostClock:
    cost = IoCost(*(UnitCost.exactly(value) for value in (seek_s, seek_s, bytes_per_s)))
    return CostClock(dataclasses.replace(paper_profile(), io={**paper_profile().io, AHEAD: cost}))


@pytest.mark.parametrize(("algorithm", "hidden"), [("orderedjoin", 1 / 3), ("sweepjoin", 2 / 3)])
@pytest.mark.parametrize("seek_s", [1e-6, 1e-3])
def test_reads_made_ahead_hide_a_part(algorithm: str, hidden: float, seek_s: float) -> None:
    """Whether reading or joining takes longer, a part of the shorter one goes on beside it."""
    clock = _reading_ahead(seek_s, 1e10)
    found = price(algorithm, COUNTS, clock, direct=True, ahead=True)
    reading = 4 * seek_s + 1e6 / 1e10
    joining = price(algorithm).serial_seconds - price(algorithm).terms["c_I/O"]
    assert (reading < joining) == (seek_s == 1e-6)
    assert found.terms["c_I/O"] == pytest.approx(reading)
    assert found.phases == pytest.approx((joining, reading))
    assert found.seconds == pytest.approx(max(reading, joining) + (1 - hidden) * min(reading, joining))
    assert found.serial_seconds == pytest.approx(reading + joining)


def test_only_direct_reads_are_made_ahead() -> None:
    clock = _reading_ahead(1e-6, 1e10)
    for how in ({}, {"parquet": True}):
        assert price("sweepjoin", COUNTS, clock, ahead=True, **how) == price("sweepjoin", COUNTS, **how)
    assert price("sweepjoin", COUNTS, clock, direct=True) == price("sweepjoin", COUNTS, direct=True)


def test_a_profile_that_does_not_know_them_prices_reads_made_ahead_as_direct_ones() -> None:
    found, plain = (price("sweepjoin", COUNTS, direct=True, ahead=ahead) for ahead in (True, False))
    assert found.terms == plain.terms
    assert found.seconds == pytest.approx(plain.seconds)


def test_wider_rows_take_longer_to_build() -> None:
    narrow = price("ssbj", COUNTS, row_bytes=REFERENCE_ROW_BYTES)
    wide = price("ssbj", COUNTS, row_bytes=2 * REFERENCE_ROW_BYTES)
    assert wide.terms["c_O"] == pytest.approx(2 * narrow.terms["c_O"])
    assert wide.terms["c_A"] == narrow.terms["c_A"]


def test_tables_take_longer_the_larger_they_are() -> None:
    """Tables where the operator keeps tuples, pages where it looks R up in a mapping; the papers have no such cost."""
    far = {f"far.{symbol}": UnitCost.exactly(1e-9) for symbol in ("c_H", "c_A", "c_L")}
    clock = CostClock(dataclasses.replace(paper_profile(), units={**paper_profile().units, **far}))

    def more(algorithm: str, symbol: str) -> float:
        counts = {**COUNTS, **deep_counts(ALGORITHMS[algorithm], COUNTS, 7 << 20, 1 << 20)}
        assert price(algorithm, counts) == price(algorithm)
        return price(algorithm, counts, clock).terms[symbol] - price(algorithm, counts).terms[symbol]

    assert more("cachejoin", "c_H") == pytest.approx(3 * 1000e-9)
    assert more("cachejoin", "c_A") == pytest.approx(3 * 400e-9)
    assert more("cachejoin", "c_E") == 0.0
    assert more("sweepjoin", "c_H") == pytest.approx(3 * 1000e-9)
    assert more("sweepjoin", "c_L") == pytest.approx(1 * 2000e-9)


def test_chunks_of_a_push() -> None:
    assert chunks_per_tuple(100, None) == pytest.approx(0.01)
    assert chunks_per_tuple(100, 250) == pytest.approx(3 / 250)
    assert chunks_per_tuple(1000, 250) == pytest.approx(1 / 250)


def test_a_join_by_the_clock() -> None:
    """Two runs with the same input take the same virtual time, to the last bit."""
    master = pa.table({"k": np.arange(5000), "v": np.arange(5000) * 2})
    batch = pa.record_batch({"k": np.arange(4000) * 7 % 6000})
    times = []
    for _ in range(2):
        with open_join("hybridjoin", master=master, on="k", memory="1MB") as join:
            assert sum(rows.num_rows for rows in [*join.push(batch), *join.drain()]) == counted(join)["rows_out"]
            times.append(CLOCK.since(join, batch=4000))
    assert times[0] == times[1]
    assert times[0].seconds > 0


@pytest.mark.parametrize(("algorithm", "ahead"), [("sweepjoin", True), ("orderedjoin", True), ("inlj", False)])
def test_a_join_that_reads_ahead_is_priced_so(algorithm: str, ahead: bool, tmp_path: Path) -> None:
    """As its plan says, with and without a run."""
    master = pa.table({"k": np.arange(20_000), "v": np.arange(20_000) * 2.0, "w": np.arange(20_000)})
    build_pages(master, tmp_path / "r", on="k", page_rows=32)
    batch = pa.record_batch({"k": np.arange(4000) * 7 % 20_000})
    clock = _reading_ahead(1e-3, 1e6)
    with open_join(algorithm, master=tmp_path / "r", on="k", memory="600KB", reads="direct") as join:
        for _ in (*join.push(batch), *join.drain()):
            pass
        counts = counted(join, batch=4000)
        assert counts["reads"] > 0
        assert join.plan.division.reads_ahead == ahead
        how = {"direct": True, "row_bytes": row_bytes(join)}
        assert clock.price_of(join, counts) == clock.price(join.algorithm, counts, ahead=ahead, **how)
        assert clock.price_of(join, counts) != clock.price(join.algorithm, counts, ahead=not ahead, **how)
