"""What the papers' own equations say of a setting: w_N, w_S, c_loop and the rate, from R, M and the stream alone.

The equations are those of `lab/equations`, priced with unit costs of this machine. A wall clock is what they are held
against: counts priced by the same unit costs would agree with them for no reason but that.

What they take as given is taken from the operator's plan: d, the tuples of a load, and h_R, those of the cache (of SSBJ
the cache inequality says which). h_S follows from the memory by equation 1. There f is a number of an implementation
like a unit cost, so it is that of ours: what a waiting tuple takes here is f·v_S + v_Q. The papers have one look-up
and one output row where we measure two kinds; they get the mean over a turn. What they have no symbol for, such as the
cost of a turn by itself, they do not get.

`corrected` takes the equation that stands beside a misprinted or incomplete one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from semistream.cost.clock import table_depth
from semistream.cost.prediction import Prediction
from semistream.cost.profile import REFERENCE_ROW_BYTES, CostProfile
from semistream.cost.situation import Options, Situation
from semistream.errors import BudgetError, ConfigError
from semistream.lab.equations import Reading, oxhybridjoin2012, ssbj2019, sscj2013, ssj2014
from semistream.lab.workloads.optimum import optimal_tuples_per_cycle

#: algorithms that read R in a circle
_SCANS = ("ssbj", "ssj", "meshjoin", "rmeshjoin")
_CACHED = ("ssbj", "ssj", "cachejoin", "oxhybridjoin")


@dataclass(frozen=True)
class Calculated:
    """A turn of the main loop by a paper's equations."""

    w_N: float
    w_S: float
    c_loop: float

    @property
    def rate_per_s(self) -> float:
        return (self.w_N + self.w_S) / self.c_loop


@dataclass(frozen=True)
class Setting:
    """What the equations are asked about: an algorithm with its sizes, as it is planned, and a profile."""

    algorithm: str
    situation: Situation
    profile: CostProfile
    M: float
    R_t: float
    d: float
    h_R: float
    #: f·v_S + v_Q: bytes that a waiting tuple takes in our tables
    waiting_bytes: float

    @property
    def scans(self) -> bool:
        return self.algorithm in _SCANS

    @property
    def has_cache(self) -> bool:
        return self.algorithm in _CACHED

    def f(self, v_S: float, v_Q: float) -> float:
        """The fudge factor of our tables, by the paper's bytes for a tuple and its place in the queue."""
        return (self.waiting_bytes - v_Q) / v_S

    def reading(self, v_R: float) -> Reading:
        """c_I/O in nanoseconds for tuples of v_R bytes; a scan seeks once per R-cycle and then reads on."""
        io = self.profile.io["direct" if self.situation.r.direct else "buffered"]
        seeks = min(self.d / self.R_t, 1.0) if self.scans else 1.0
        return lambda tuples: 1e9 * io.seconds(seeks, 1.0 - seeks, tuples * v_R)

    def cost(self, symbol: str, near: bool = False) -> float:
        """Nanoseconds of one operation in tables of this size."""
        profile, name = self.profile, self.algorithm
        unit = profile.near(symbol, name) if near else profile.unit(symbol, name)
        if symbol == "c_O":
            return 1e9 * unit * self.situation.row_bytes / REFERENCE_ROW_BYTES
        return 1e9 * (unit + profile.far(symbol, name) * table_depth(self.M))

    def costs(self, w_N: float, w_S: float) -> dict[str, float]:
        """Those that all papers have; of a look-up and of an output row the mean over a turn."""
        d, w = self.d, w_N + w_S
        look_up = (d * self.cost("c_H_S") + w_N * self.cost("c_H")) / (d + w_N)
        output = (w_S * self.cost("c_O") + w_N * self.cost("c_O", near=True)) / w
        return {"c_H": look_up, "c_O": output} | {name: self.cost(name) for name in ("c_S", "c_A", "c_E")}


def setting_of(
    algorithm: str, situation: Situation, profile: CostProfile, options: Options | None = None
) -> tuple[Setting, Prediction] | None:
    """A setting with our own prediction for it; None where the budget is refused or all of R fits."""
    try:
        ours = situation.predict(algorithm, profile, options)
    except BudgetError:
        return None
    h_S = ours.symbols.get("h_S", 0.0)
    if not h_S or "pending table" not in ours.memory:
        return None
    found = Setting(
        algorithm=ours.algorithm,
        situation=situation,
        profile=profile,
        M=ours.symbols["M"],
        R_t=ours.symbols["R_t"],
        d=ours.symbols["d"],
        h_R=ours.symbols.get("h_R", 0.0),
        waiting_bytes=ours.memory["pending table"] / h_S,
    )
    return found, ours


# ------------------------------------------------------------------------------------------------ by paper


def by_ssbj2019(at: Setting, corrected: bool = False) -> Calculated | None:
    """Equations 1 and 2; what SSBJ caches is what theorem 2 says with the bytes of equation 1, n being W·p_j.

    Theorem 2 as printed has neither f nor v_P; that of the equation is taken in both forms.

    None where all of R is cached.
    """
    v_R, v_S, v_P = ssbj2019.V_R, ssbj2019.V_S, ssbj2019.V_P
    f, keys = at.f(v_S, v_P), at.situation.workload.keys
    h_R = p_N = 0.0
    if at.has_cache:
        room = at.M - at.d * v_R
        W = optimal_tuples_per_cycle(keys.count * keys.p, keys.count * keys.m, f * v_R, at.waiting_bytes, room)
        if math.isinf(W):
            return None
        cached = (keys.m * f * v_R < W * keys.p * at.waiting_bytes).astype(np.float64)
        h_R, p_N = float((keys.count * keys.m * cached).sum()), keys.p_N(cached)
    w_S = ssbj2019.equation_1_w_S(M=at.M, b=at.d, h_R=h_R, f=f, v_R=v_R, R_t=at.R_t, v_P=v_P, v_S=v_S)
    w_N = ssj2014.equation_7_w_N_solved(p_N=p_N, w_S=w_S)
    c_B = at.cost("c_B") if at.has_cache else 0.0
    turn = {"b": at.d, "w_N": w_N, "w_S": w_S, "c_B": c_B, **at.costs(w_N, w_S)}
    if corrected and at.has_cache:
        return Calculated(w_N, w_S, ssbj2019.equation_2_c_loop_corrected(c_IO=at.reading(v_R), **turn))
    return Calculated(w_N, w_S, ssbj2019.equation_2_c_loop(c_IO=at.reading(v_R), **turn))


def matching_by_ssj2014(at: Setting, corrected: bool = False, power_law: bool = False) -> tuple[float, float]:
    """w_N and w_S by the shares of equations 5 and 8; with `power_law` by equations 7 and 10 as they are printed."""
    h_S = _h_S_by_ssj2014(at)
    if not at.has_cache:
        return 0.0, ssj2014.equation_10_w_S_corrected(d=at.d, R_t=at.R_t, h_S=h_S)
    sizes = {"R_t": at.R_t, "h_R": at.h_R}
    if corrected:
        w_S = ssj2014.equation_10_w_S_corrected(d=at.d, R_t=at.R_t, h_S=h_S)
        p_N = ssj2014.equation_5_p_N_corrected(**sizes)
    elif power_law:
        phi_N, psi_N = ssj2014.phi_N(**sizes), ssj2014.psi_N(**sizes)
        p_N = ssj2014.equation_6_p_N(phi_N=phi_N, psi_N=psi_N, **sizes)
        whole = {**sizes, "d": at.d}
        factors = {"theta_S": ssj2014.theta_S(**whole), "psi_S": ssj2014.psi_S(**whole)}
        w_S = ssj2014.equation_10_w_S(phi_S=ssj2014.phi_S(**whole), h_S=h_S, **factors, **whole)
    else:
        p_N = ssj2014.equation_5_p_N(**sizes)
        w_S = h_S * ssj2014.equation_8_p_S(N=ssj2014.segments(d=at.d, **sizes), **sizes)
    return ssj2014.equation_7_w_N_solved(p_N=p_N, w_S=w_S), w_S


def _h_S_by_ssj2014(at: Setting) -> float:
    v_R, v_S, v_Q = ssj2014.V_R, ssj2014.V_S, ssj2014.V_Q
    # Pages of one tuple: k·v_P is d·v_R and l·v_P is h_R·v_R.
    return ssj2014.equation_1_h_S_corrected(
        M=at.M, k=at.d, l=at.h_R, v_P=v_R, h_R=at.h_R, v_S=v_S, v_Q=v_Q, f=at.f(v_S, v_Q)
    )


def by_ssj2014(at: Setting, corrected: bool = False) -> Calculated | None:
    """Equations 1 to 10; MESHJOIN is SSJ without a cache."""
    w_N, w_S = matching_by_ssj2014(at, corrected)
    if math.isinf(w_N):
        return None
    c_F = at.cost("c_F") if at.has_cache else 0.0
    reading = at.reading(1.0)
    equation = ssj2014.equation_2_c_loop_corrected if corrected and at.has_cache else ssj2014.equation_2_c_loop
    c_loop = equation(c_IO=reading, k=at.d, v_P=ssj2014.V_R, d=at.d, w_N=w_N, w_S=w_S, c_F=c_F, **at.costs(w_N, w_S))
    return Calculated(w_N, w_S, c_loop)


def by_sscj2013(at: Setting, corrected: bool = False) -> Calculated | None:
    """Equations 1 to 3, with w_N and w_S of ssj2014, since sscj2013 has none.

    HYBRIDJOIN is SSCJ without a cache. A scan's w_S is the same with and without an index: h_S·d/R_t.
    """
    v_R, v_S, v_Q = sscj2013.V_R, sscj2013.V_S, sscj2013.V_Q
    h_S = sscj2013.equation_1_h_S_corrected(M=at.M, d=at.d, v_R=v_R, h_R=at.h_R, v_S=v_S, v_Q=v_Q, f=at.f(v_S, v_Q))
    N = ssj2014.segments(R_t=at.R_t, h_R=at.h_R, d=at.d)
    p_N = 0.0
    if at.has_cache:
        find = ssj2014.equation_5_p_N_corrected if corrected else ssj2014.equation_5_p_N
        p_N = find(h_R=at.h_R, R_t=at.R_t)
    if corrected and not at.scans:
        w_S = oxhybridjoin2012.equation_9_w_S_corrected(n=N, h_S=h_S)
    else:
        w_S = h_S * ssj2014.equation_8_p_S(R_t=at.R_t, h_R=at.h_R, N=N)
    w_N = ssj2014.equation_7_w_N_solved(p_N=p_N, w_S=w_S)
    if math.isinf(w_N):
        return None
    c_F = at.cost("c_F") if at.has_cache else 0.0
    equation = sscj2013.equation_2_c_loop_corrected if corrected and at.has_cache else sscj2013.equation_2_c_loop
    c_loop = equation(c_IO=at.reading(v_R), d=at.d, w_N=w_N, w_S=w_S, c_F=c_F, **at.costs(w_N, w_S))
    return Calculated(w_N, w_S, c_loop)


def by_oxhybridjoin2012(at: Setting, corrected: bool = False) -> Calculated | None:
    """Equations 1 to 4, 6, 7 and 9, without the power laws of 5 and 8."""
    v_R, v_S, v_Q = oxhybridjoin2012.V_R, oxhybridjoin2012.V_S, oxhybridjoin2012.V_Q
    sizes = {"R_t": at.R_t, "h_R": at.h_R}
    h_S = oxhybridjoin2012.equation_1_h_S_corrected(
        M=at.M, k=at.d, l=at.h_R, v_P=v_R, v_S=v_S, v_Q=v_Q, f=at.f(v_S, v_Q)
    )
    n = oxhybridjoin2012.partitions(d=at.d, **sizes)
    if corrected:
        p_N = oxhybridjoin2012.equation_4_p_N_sum(**sizes)
        w_S = oxhybridjoin2012.equation_9_w_S_corrected(n=n, h_S=h_S)
    else:
        p_N = oxhybridjoin2012.equation_4_p_N(**sizes)
        w_S = h_S * oxhybridjoin2012.equation_7_p_S(n=n, **sizes)
    w_N = oxhybridjoin2012.equation_6_w_N_solved(p_N=p_N, w_S=w_S)
    if math.isinf(w_N):
        return None
    equation = oxhybridjoin2012.equation_2_c_loop_corrected if corrected else oxhybridjoin2012.equation_2_c_loop
    reading = at.reading(1.0)
    c_loop = equation(c_IO=reading, k=at.d, v_P=v_R, d=at.d, w_N=w_N, w_S=w_S, **at.costs(w_N, w_S))
    return Calculated(w_N, w_S, c_loop)


_PAPERS: dict[str, Callable[[Setting, bool], Calculated | None]] = {
    "ssbj": by_ssbj2019,
    "ssj": by_ssj2014,
    "sscj": by_sscj2013,
    "oxhybridjoin": by_oxhybridjoin2012,
}


def calculate(paper: str, at: Setting, corrected: bool = False) -> Calculated | None:
    """A turn by the equations of a paper, named as in the names of its figures; None where they give none."""
    if paper not in _PAPERS:
        raise ConfigError(f"there are no equations of {paper!r} to calculate with; allowed are {', '.join(_PAPERS)}")
    if at.d * ssj2014.V_R >= at.M:
        return None
    found = _PAPERS[paper](at, corrected)
    return found if found is not None and found.w_S > 0 else None
