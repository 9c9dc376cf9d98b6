"""The papers' clock: unit costs of their machines, fitted to the rates that their texts print, and how sure they are.

Two texts print a rate, and none prints a unit cost. ssbj2019 holds both algorithms at 51,242 tuples per second in
figure 4b, for R from 20 million tuples on; opcachejoin2020 has 13,200 records per second on the axis of figure 3, for
P-CACHEJOIN with 100 MB, a disk buffer of 850 records and R of up to 2 million. CPU costs are round numbers of that time
(`paper_profile`). The disk follows from the papers' own cost equations at these rates: a scan's rate gives the bytes
per second that disk and database deliver, an index operator's rate the seek. The bytes of a waiting tuple are the
papers' too: 8 times its 20 in the hash table (the fudge factor that opcachejoin2020 gives for its multi-hash-map) and 4
in the queue. Our tables take fewer, so our counts on this clock give higher rates: the clock is a machine's, the
counts are ours.

Two rates cannot settle all unit costs. `variants` makes each of seek, bandwidth and c_O four times smaller and larger,
and has phases of several threads not at all and wholly side by side; a verdict that changes depends on them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from semistream.cost.profile import OVERLAP, CostProfile, IoCost, UnitCost, paper_profile
from semistream.lab.workloads.relation import MASTER_ROW_BYTES, STREAM_ROW_BYTES

_FUDGE = 8
_QUEUE_BYTES = 4
_WAITING_BYTES = _FUDGE * STREAM_ROW_BYTES + _QUEUE_BYTES
_FACTOR = 4.0
_EULER = 0.5772156649


@dataclass(frozen=True)
class Level:
    """A rate that a text prints, and the setting it belongs to."""

    rate_per_s: float
    rows: int
    memory: int
    says: str


SSBJ_LEVEL = Level(
    51_242.0,
    20_000_000,
    240_000_000,
    "figure 4b: both algorithms serve 51,242 tuples/s at every size of R; the memory is not named, and taken as the "
    "largest that the paper gives MESHJOIN, 10 % of R",
)
PCACHEJOIN_LEVEL = Level(
    13_200.0,
    2_000_000,
    100_000_000,
    "figure 3: 13,200 records/s is on the axis, with 100 MB, a disk buffer of 850 records and 2 MB for I_B; R is not "
    "named and taken as the largest, the cache as 40 % of the memory",
)
_BUFFER_RECORDS, _INTERMEDIATE_BYTES, _CACHE_SHARE, _RECORDER_BYTES = 850, 2_000_000, 0.4, 8


def papers_clock(machine: CostProfile | None = None) -> CostProfile:
    """Unit costs for the papers' figures.

    How much of their phases algorithms with threads run side by side is nothing that a text says. It is taken as
    measured on this machine, if `machine` has it.
    """
    base = paper_profile()
    speed = _bytes_per_s(base, SSBJ_LEVEL)
    seek = _seek_s(base, PCACHEJOIN_LEVEL, speed)
    fitted = _with_disk(base, seek / _seek(base), speed / base.io["direct"].bytes_per_s.seconds)
    said = {
        "seek_s": f"fitted by eqs 2 and 3 of opcachejoin2020 ({PCACHEJOIN_LEVEL.says})",
        "bytes_per_s": f"fitted by MESHJOIN's cost equation ({SSBJ_LEVEL.says})",
    }
    beside = {} if machine is None else {n: c for n, c in machine.units.items() if n.startswith(f"{OVERLAP}.")}
    return replace(fitted, units={**fitted.units, **beside}, sources={**fitted.sources, **said})


def _bytes_per_s(base: CostProfile, level: Level) -> float:
    """Bandwidth: an R-cycle serves h_S tuples, and takes a pass over R and their CPU time."""
    waiting = level.memory / _WAITING_BYTES
    tuples = waiting * sum(base.unit(symbol) for symbol in ("c_S", "c_A", "c_E", "c_O"))
    disk = waiting / level.rate_per_s - tuples - level.rows * base.unit("c_H_S") - _seek(base)
    return level.rows * MASTER_ROW_BYTES / disk


def _seek_s(base: CostProfile, level: Level, bytes_per_s: float) -> float:
    """Seek: opcachejoin2020 eqs 2 and 3, with w_S and w_N by ssj2014 eqs 4 and 8."""
    cache, d = _CACHE_SHARE * level.memory, _BUFFER_RECORDS
    cached = cache / (MASTER_ROW_BYTES + _RECORDER_BYTES)
    waiting = (level.memory - cache - _INTERMEDIATE_BYTES - d * MASTER_ROW_BYTES) / _WAITING_BYTES
    hits = (math.log(cached) + _EULER) / (math.log(level.rows) + _EULER)
    segments = (level.rows - cached) / d
    w_s = waiting * (1 - hits) / segments
    w_n = w_s * hits / (1 - hits)
    tuples = w_s * sum(base.unit(symbol) for symbol in ("c_O", "c_S", "c_A", "c_E", "c_AI"))
    tuples += w_n * sum(base.unit(symbol) for symbol in ("c_H", "c_O", "c_S"))
    probes = d * (base.unit("c_H_S") + base.unit("c_F"))
    return (w_s + w_n) / level.rate_per_s - tuples - probes - d * MASTER_ROW_BYTES / bytes_per_s


def _seek(profile: CostProfile) -> float:
    return profile.io["direct"].seek_s.seconds


def _with_disk(profile: CostProfile, seek: float = 1.0, speed: float = 1.0) -> CostProfile:
    """The same with another disk, by factors of its seek and its bandwidth."""
    io = {
        mode: IoCost(
            UnitCost.exactly(cost.seek_s.seconds * seek),
            cost.next_s,
            UnitCost.exactly(cost.bytes_per_s.seconds * speed),
        )
        for mode, cost in profile.io.items()
    }
    return replace(profile, io=io)


def variants(profile: CostProfile) -> dict[str, CostProfile]:
    """The clock with one unit cost four times smaller or larger, by name."""
    found = {}
    for word, by in (("÷ 4", 1 / _FACTOR), ("× 4", _FACTOR)):
        found[f"seek {word}"] = _with_disk(profile, seek=by)
        found[f"bandwidth {word}"] = _with_disk(profile, speed=by)
        found[f"c_O {word}"] = _with_unit(profile, "c_O", profile.unit("c_O") * by)
    for share in (0.0, 1.0):
        beside = {f"{OVERLAP}.{name}": UnitCost.exactly(share) for name in ("pcachejoin", "opcachejoin")}
        found[f"overlap {share:.0f}"] = replace(profile, units={**profile.units, **beside})
    return found


def _with_unit(profile: CostProfile, symbol: str, seconds: float) -> CostProfile:
    return replace(profile, units={**profile.units, symbol: UnitCost.exactly(seconds)})
