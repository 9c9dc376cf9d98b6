"""The pages of docs/arguments: every number that they print is computed here, and no other stands on them."""

from __future__ import annotations

import doctest
import math
import re
from pathlib import Path

import numpy as np
import pytest

from semistream.algorithms.registry import ALGORITHMS
from semistream.cost.clock import CostClock
from semistream.cost.profile import typical_profile
from semistream.cost.situation import Situation
from semistream.lab.equations import opcachejoin2020, ssbj2019, ssj2014
from semistream.lab.figures.by_equation import setting_of
from semistream.lab.papers_clock import papers_clock
from semistream.lab.workloads.optimum import optimal_tuples_per_cycle
from semistream.lab.workloads.weather_reports import WeatherReports
from semistream.predict.keys import KeyClasses, harmonic, zipf

PAGES = Path(__file__).parents[2] / "docs" / "arguments"
R_T, V_R, V_S = 100_000_000, ssbj2019.V_R, ssbj2019.V_S + ssbj2019.V_P
SHARES = (0.01, 0.03, 0.05, 0.1)
UNIQUE, REPEATED = zipf(R_T, 1.0), zipf(R_T, 1.0, repeated=True)
#: bytes of a key that nobody would cache
NEVER = 1e18


def best(keys: KeyClasses, share: float, v_R: float = V_R, v_S: float = V_S, absent: float = 0.0) -> float:
    """W* of the papers' R with memory of a share of it; `absent` are the bytes of a cached key that R lacks."""
    entry = np.where(keys.m == 0, absent, 0.0)
    memory = share * R_T * V_R
    return optimal_tuples_per_cycle(keys.count * keys.p, keys.count * keys.m, v_R, v_S, memory, entry)


def ratio(keys: KeyClasses, share: float, v_R: float = V_R, v_S: float = V_S, absent: float = 0.0) -> float:
    """W* over MESHJOIN's W."""
    return best(keys, share, v_R, v_S, absent) / (share * R_T * V_R / v_S)


def memory_for(keys: KeyClasses, times: float) -> float:
    """The share of R that W* over MESHJOIN needs as memory to be so large."""
    low, high = 0.01, 0.99
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if ratio(keys, middle) < times else (low, middle)
    return high


def page(name: str) -> str:
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


def tables(name: str) -> list[list[list[str]]]:
    """The cells of a page's tables, heads left out."""
    found = re.findall(r"^\|(?: --- \|)+\n((?:\|.*\|\n)+)", page(name), flags=re.MULTILINE)
    assert found
    rows = [[line.strip("|").split("|") for line in table.splitlines()] for table in found]
    return [[[cell.strip() for cell in row] for row in table] for table in rows]


def numbers(name: str) -> set[str]:
    """Numbers in the prose of a page, those of sections and the like left out; blocks are run, tables compared."""
    text = re.sub(r"```.*?```", "", page(name), flags=re.DOTALL)
    text = "\n".join(line for line in text.splitlines() if not line.startswith("|"))
    text = re.sub(r"\]\([^)]*\)|`[^`]*`|\b[a-z]+\d{4}\b|^\d\. ", "", text, flags=re.MULTILINE)
    places = r"\b(figure|section|algorithm|theorem|equations?)\s\d[a-f]?(\.\d)?( and \d)?"
    text = re.sub(places, "", text, flags=re.IGNORECASE)
    return set(re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", text))


NAMES = sorted(path.stem for path in PAGES.glob("*.md") if path.stem != "README")


@pytest.mark.parametrize("name", NAMES)
def test_what_a_page_shows_runs_as_it_is_shown(name: str) -> None:
    (session,) = re.findall(r"```pycon\n(.*?)```", page(name), flags=re.DOTALL)
    test = doctest.DocTestParser().get_doctest(session, {}, name, name, 0)
    found = doctest.DocTestRunner(verbose=False).run(test)
    assert found.attempted >= 3
    assert found.failed == 0


def test_every_page_is_listed() -> None:
    assert re.findall(r"\]\(([a-z-]+)\.md\)", page("README")) == [
        "w-star",
        "cache-share",
        "fudge-factor",
        "shared-distribution",
        "second-buffer",
    ]
    assert set(NAMES) == set(re.findall(r"\]\(([a-z-]+)\.md\)", page("README")))


def test_w_star() -> None:
    (table,) = tables("w-star")
    columns = [(UNIQUE, 0.0), (REPEATED, 0.0), (REPEATED, NEVER)]
    assert table == [
        [f"{100 * share:g}", *(f"{ratio(keys, share, absent=absent):.2f}" for keys, absent in columns)]
        for share in SHARES
    ]
    needed = [f"{100 * memory_for(keys, times):.0f}" for keys in (UNIQUE, REPEATED) for times in (7, 8)]
    assert needed == ["49", "60", "14", "21"]
    absent = REPEATED.absent_share
    computed = {f"{100 * absent:.0f}", f"{ssbj2019.most_times_meshjoin(1 - absent):.2f}", *needed}
    #: x_j = 0 and 1 − x_j; claimed factors; memory, R, v_R and the exponent
    given = {"0", "1", "5", "7", "8", "10", "100", "120"}
    assert computed == {"37", "2.72", *needed}
    assert numbers("w-star") == computed | given


def test_w_star_is_a_bound_and_is_reached() -> None:
    """No split of the keys between cache and H_S does better within the memory, and theorem 2 gives the best one."""
    keys, share = UNIQUE, 0.1
    W, memory = best(keys, share), share * R_T * V_R
    bytes_cached, bytes_waiting = keys.count * keys.m * V_R, W * keys.count * keys.p * V_S
    cached = bytes_cached < bytes_waiting
    assert bytes_cached[cached].sum() + bytes_waiting[~cached].sum() == pytest.approx(memory, rel=1e-6)
    assert ssbj2019.theorem_3_memory(keys.count * keys.p, keys.count * keys.m, W=W, v_R=V_R, v_S=V_S) == pytest.approx(
        memory, rel=1e-6
    )
    dice = np.random.default_rng(1)
    for chance in (0.01, 0.2):
        other = cached ^ (dice.random(len(cached)) < chance)
        assert bytes_cached[other].sum() + bytes_waiting[~other].sum() > memory


def test_what_a_waiting_tuple_takes_cancels() -> None:
    for v_S in (20.0, 164.0):
        assert ratio(UNIQUE, 0.03, v_S=v_S) == pytest.approx(ratio(UNIQUE, 0.03))


def test_cache_share() -> None:
    (table,) = tables("cache-share")
    shares = {"1": 0.39, "9 and above": 0.54}
    claimed = {"1": "7", "9 and above": "8"}
    assert table == [
        [memory, f"{100 * p:.0f} %", f"{ssbj2019.most_times_meshjoin(p):.2f}", claimed[memory]]
        for memory, p in shares.items()
    ]
    needed = {f"{100 * ssbj2019.least_cache_share(times):.0f}" for times in (7, 8)}
    # The ranks k for which one master tuple takes fewer bytes than W*·p_k waiting ones.
    whole = float(harmonic(R_T, 1.0))
    cached = [int(best(UNIQUE, share) * V_S / (V_R * whole)) for share in (0.01, 0.1)]
    hits = [float(harmonic(k, 1.0)) / whole for k in cached]
    computed = {f"{ssbj2019.most_times_meshjoin(shares['1']):.2f}", *needed}
    computed |= {f"{100 * p:.0f}" for p in hits} | {f"{ssbj2019.most_times_meshjoin(p):.2f}" for p in hits}
    assert computed == {"1.64", "86", "88", "65", "80", "2.86", "4.88"}
    assert numbers("cache-share") == computed | {"39", "54", "1", "7", "8", "9", "10"}


@pytest.mark.parametrize("c_IO", [0.0, 1e4, 1e9])
@pytest.mark.parametrize("p_N", [0.39, 0.54, 0.9])
def test_no_unit_costs_lift_the_bound_of_a_cache_share(c_IO: float, p_N: float) -> None:
    dice = np.random.default_rng(7)
    sizes = {"b": 1000.0, "v_R": 120.0, "R_t": 1e6, "v_P": 4.0, "v_S": 20.0, "f": 1.0}
    for _ in range(200):
        costs = {name: float(dice.exponential(100)) for name in ("c_H", "c_S", "c_O", "c_E", "c_A")}
        M, h_R = 5e6, float(dice.uniform(0, 30_000))

        def rate(h_R: float, p_N: float, c_B: float, M: float = M, costs: dict[str, float] = costs) -> float:
            w_S = ssbj2019.equation_1_w_S(M=M, h_R=h_R, **sizes)
            w_N = ssj2014.equation_7_w_N_solved(p_N=p_N, w_S=w_S)
            c_loop = ssbj2019.equation_2_c_loop(c_IO=lambda _: c_IO, b=sizes["b"], w_N=w_N, w_S=w_S, c_B=c_B, **costs)
            return ssbj2019.equation_3_service_rate(w_N=w_N, w_S=w_S, c_loop=c_loop)

        most = ssbj2019.most_times_meshjoin(p_N)
        assert rate(h_R, p_N, c_B=float(dice.exponential(10))) <= most * rate(0.0, 0.0, c_B=0.0)


def test_fudge_factor() -> None:
    f = opcachejoin2020.F
    waiting = ssbj2019.V_P + f * ssbj2019.V_S
    (table,) = tables("fudge-factor")
    settings = [(V_R, V_S), (f * V_R, waiting), (V_R, waiting)]
    assert table == [
        [f"{100 * share:g}", *(f"{ratio(UNIQUE, share, *bytes_):.2f}" for bytes_ in settings)] for share in SHARES
    ]
    assert ratio(UNIQUE, 0.1, f * V_R, waiting) == pytest.approx(ratio(UNIQUE, 0.1 / f))
    repeated = [f"{ratio(REPEATED, share, f * V_R, waiting):.2f}" for share in (0.01, 0.1)]
    assert repeated == ["3.05", "4.14"]
    R_t = 10_000_000
    known = setting_of("meshjoin", Situation.sketch(R_t, R_t * 12, zipf(R_t, 1.0)), typical_profile())
    assert known is not None
    ours = f"{known[0].f(ssbj2019.V_S, ssbj2019.V_P):.1f}"
    computed = {str(f), f"{f * V_R}", str(waiting), f"{100 * 0.1 / f:g}", ours, *repeated}
    computed |= {f"{ratio(UNIQUE, 0.1, f * V_R, waiting):.2f}"}
    assert computed == {"8", "960", "164", "1.25", "1.1", "3.05", "4.14", "2.57"}
    assert numbers("fudge-factor") == computed | {"1", "5", "7", "10", "100", "120"}


def _reports(months: tuple[int, ...]) -> np.ndarray:
    """How many made-up reports each longitude has in these months."""
    year = tuple((1982, month) for month in months)
    made = WeatherReports(year, seed=1, stations=704, ships=150, land_reports=423, ship_reports=52)
    counts = np.zeros(36_001, dtype=np.int64)
    for batch in made.batches(batch_rows=65_536):
        counts += np.bincount(np.asarray(batch.column("lon")), minlength=len(counts))
    return counts


def test_shared_distribution() -> None:
    alike, made_up = tables("shared-distribution")
    q = 1 / np.arange(1, 36_001)
    q /= q.sum()
    R_t, v = 20_000_000, 128.0

    def row(share: float) -> list[str]:
        W = optimal_tuples_per_cycle(q, R_t * q, v, v, share * R_t * v)
        return [f"{100 * share:g}", f"{W * v / (share * R_t * v):.2f}", f"{R_t * v / (W * v):.0f}"]

    assert alike == [row(share) for share in (0.01, 0.1, 0.5, 0.99)]
    m, s = _reports((4, 8)), _reports((12,))
    p = s / s.sum()

    def made_up_row(share: float) -> list[str]:
        memory = share * m.sum() * v
        W = optimal_tuples_per_cycle(p, m, v, v, memory)
        cached = (m * v < W * p * v) & (p > 0)
        parts = [f"{100 * p[cached].sum():.2f}", f"{100 * p[cached & (m == 0)].sum():.2f}"]
        return [f"{100 * share:g}", f"{W / (memory / v):.3f}", *parts]

    assert made_up == [made_up_row(share) for share in (0.01, 0.1)]
    computed = {f"{m.sum():,}", f"{s.sum():,}"}
    #: s_j of 0 and 1; R / M at 1 and 10 %; the papers' reports and longitudes, our stations and ships
    given = {"0", "1", "10", "100", "20", "128", "36,000", "704", "150"}
    assert numbers("shared-distribution") == computed | given


def test_with_one_distribution_the_cache_stays_empty_until_all_of_r_fits() -> None:
    q = np.array([0.7, 0.2, 0.1])
    m = 1000 * q
    for share in (0.1, 0.999):
        W = optimal_tuples_per_cycle(q, m, 128.0, 128.0, share * 1000 * 128)
        assert pytest.approx(share * 1000) == W
        assert not any(
            ssbj2019.theorem_2_is_cached(m=a, v_R=128.0, n=W * b, v_S=128.0) for a, b in zip(m, q, strict=True)
        )
    assert optimal_tuples_per_cycle(q, m, 128.0, 128.0, 1001 * 128) == math.inf


def _disk_phase() -> tuple[float, float, float]:
    """Seconds of a load, of the joining behind it and of the stream phase: P-CACHEJOIN on the papers' clock."""
    R_t, profile = 2_000_000, papers_clock()
    situation = Situation.sketch(R_t, 100_000_000, zipf(R_t, 1.0), page_rows=850, direct=True)
    found = situation.predict("pcachejoin", profile, {"buffer_bytes": situation.r.buffer_bytes(1)})
    time = CostClock(profile).price(ALGORITHMS["pcachejoin"], found.counts, direct=True, row_bytes=situation.row_bytes)
    stream, disk, _ = time.phases
    load = time.terms["c_I/O"]
    return load, disk - load, stream


def test_second_buffer() -> None:
    (table,) = tables("second-buffer")
    shares = (0.01, 0.1, 0.2, 0.5, 0.8, 0.9, 0.99)
    bounds = [f"{opcachejoin2020.most_times_p_cachejoin(load=x, join=1 - x):.2f}" for x in shares]
    assert table == [["the most that a second buffer gives", *bounds]]
    load, join, stream = _disk_phase()
    part = f"{100 * load / (load + join):.0f}"
    bound = f"{opcachejoin2020.most_times_p_cachejoin(load=load, join=join, stream=stream):.2f}"
    assert numbers("second-buffer") == {part, bound} | {"1", "2", "100", "850", "120"}
