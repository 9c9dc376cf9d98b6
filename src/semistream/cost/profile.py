"""Unit costs: what one operation of each kind takes on a machine.

A profile is a JSON file with the papers' symbols: c_S, c_H, c_A ... in seconds, c_I/O as a seek and a bandwidth.
`calibrate` measures one on this machine; `paper_profile` is one of the papers' time, with which their figures can be
reproduced.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from semistream.errors import ConfigError, StoreError

#: What is priced. c_L, c_P, c_C and c_T are ours: an index look-up, a page, a chunk of the stream and a turn of the
#: main loop have a cost of their own where operators work in chunks. c_H_S is c_H for a master tuple probed in H_S:
#: papers have one.
SYMBOLS = {
    "c_S": "read one stream tuple: slice, key code, column view",
    "c_H": "look one stream tuple up in H_R",
    "c_H_S": "look one master tuple up in H_S",
    "c_L": "look one key up through the index and on its page",
    "c_P": "visit one page in a sweep: find it in the mapping, and its columns",
    "c_O": "build one output row",
    "c_A": "append one tuple to H_S and Q",
    "c_E": "remove one tuple from H_S and Q",
    "c_F": "compare the frequency of one tuple or key with the threshold",
    "c_B": "switch one master tuple into the cache",
    "c_AI": "append one tuple to I_B",
    "c_C": "begin and end one chunk of the stream",
    "c_T": "begin and end one turn of the main loop, its output batches included",
}
#: how R is read; "parquet" is decoding in place
IO_MODES = ("direct", "buffered", "mapped", "parquet")
#: direct reads by threads that go on while the caller joins; where a profile lacks it they are plain direct reads
AHEAD = "ahead"
#: no cost but a share: how much of what an algorithm's threads could do side by side they do ("overlap.pcachejoin")
OVERLAP = "overlap"
#: what an operation costs more for each doubling, beyond 1 MB, of the tables or pages it goes to ("far.c_H")
FAR = "far"
#: what an operation costs for a tuple that the cache answered ("near.c_O"): the CPU has hot master tuples near by
NEAR = "near"
#: seconds per byte of a page that is mapped and checked because nobody has asked for it before
FIRST_VISIT = "first.c_P"
#: width of the output rows that c_O was measured with; other widths in proportion
REFERENCE_ROW_BYTES = 132
FORMAT = 1


@dataclass(frozen=True)
class UnitCost:
    """Seconds of one operation, with a 95 % confidence interval."""

    seconds: float
    low: float
    high: float

    @staticmethod
    def exactly(seconds: float) -> UnitCost:
        return UnitCost(seconds, seconds, seconds)


@dataclass(frozen=True)
class IoCost:
    """c_I/O(bytes) = a seek, or the step to the next read of a scan, + bytes / bandwidth."""

    seek_s: UnitCost
    next_s: UnitCost
    bytes_per_s: UnitCost

    def seconds(self, seeks: float, nexts: float, size: float) -> float:
        return seeks * self.seek_s.seconds + nexts * self.next_s.seconds + size / self.bytes_per_s.seconds


@dataclass(frozen=True)
class CostProfile:
    """Unit costs of one machine. `units` may hold `c_T.<algorithm>`, which goes before `c_T`; c_C and c_O likewise."""

    name: str
    units: Mapping[str, UnitCost]
    io: Mapping[str, IoCost]
    machine: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def unit(self, symbol: str, algorithm: str = "") -> float:
        """Seconds of one operation, for this algorithm if it has a cost of its own."""
        own = self.units.get(f"{symbol}.{algorithm}")
        cost = own if own is not None else self.units.get(symbol)
        if cost is None:
            known = ", ".join(sorted(SYMBOLS))
            raise ConfigError(
                f"the profile {self.name!r} has no unit cost {symbol!r}; priced are {known}: calibrate anew"
            )
        return cost.seconds

    def far(self, symbol: str, algorithm: str = "") -> float:
        """Seconds more of one operation for each doubling of where it goes to; none where nothing was measured."""
        far = f"{FAR}.{symbol}"
        known = self.units.get(f"{far}.{algorithm}", self.units.get(far))
        return 0.0 if known is None else known.seconds

    def near(self, symbol: str, algorithm: str = "") -> float:
        """Seconds of one operation for a tuple that the cache answered; as for others where nothing was measured."""
        near = f"{NEAR}.{symbol}"
        known = self.units.get(f"{near}.{algorithm}", self.units.get(near))
        return self.unit(symbol, algorithm) if known is None else known.seconds

    @property
    def first_visit(self) -> float:
        """Seconds per byte of a mapped page that is wanted for the first time; none where nothing was measured."""
        known = self.units.get(FIRST_VISIT)
        return 0.0 if known is None else known.seconds

    def overlap(self, algorithm: str) -> float:
        """From 0 (its threads take turns) to 1 (the slowest phase hides all others); 1 where nothing was measured."""
        known = self.units.get(f"{OVERLAP}.{algorithm}")
        return 1.0 if known is None else known.seconds

    @property
    def reads_ahead(self) -> IoCost:
        """c_I/O of reads made ahead; that of direct reads where nothing was measured."""
        return self.io.get(AHEAD, self.io["direct"])

    @property
    def knows_ahead(self) -> bool:
        """Whether reads made ahead were measured; else none of them is taken to be hidden."""
        return AHEAD in self.io

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "name": self.name,
            "machine": dict(self.machine),
            "units": {name: asdict(cost) for name, cost in self.units.items()},
            "io": {mode: asdict(cost) for mode, cost in self.io.items()},
            "sources": dict(self.sources),
        }

    @staticmethod
    def from_json(content: Any) -> CostProfile:
        """Read what `to_json` gave; anything else is refused."""
        try:
            if content["format"] != FORMAT:
                raise ConfigError(
                    f"the profile has format {content['format']!r}, this version reads {FORMAT}: calibrate anew"
                )
            units = {str(name): _unit(cost) for name, cost in content["units"].items()}
            io = {
                str(mode): IoCost(_unit(cost["seek_s"]), _unit(cost["next_s"]), _unit(cost["bytes_per_s"]))
                for mode, cost in content["io"].items()
            }
            profile = CostProfile(str(content["name"]), units, io, content["machine"], content["sources"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(f"this is not a cost profile ({error!r}): calibrate anew") from error
        missing = [mode for mode in IO_MODES if mode not in profile.io] + [s for s in SYMBOLS if s not in profile.units]
        if missing:
            raise StoreError(f"the profile {profile.name!r} lacks {', '.join(missing)}: calibrate anew")
        return profile

    def save(self, path: str | Path | None = None) -> Path:
        """Write the profile beside its place, then put it there: a reader never sees half of it."""
        target = default_path() if path is None else Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = target.with_name(f".{target.name}.{os.getpid()}")
        scratch.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
        scratch.replace(target)
        return target

    @staticmethod
    def load(path: str | Path | None = None) -> CostProfile:
        """Read a profile; without a path the one `calibrate` stored last."""
        source = default_path() if path is None else Path(path)
        try:
            content = json.loads(source.read_text(encoding="utf-8"))
        except OSError as error:
            raise StoreError(f"{source} cannot be read ({error.strerror}): run `semistream calibrate` first") from error
        except ValueError as error:
            raise StoreError(f"{source} is not JSON ({error}): calibrate anew") from error
        return CostProfile.from_json(content)


def _unit(content: Any) -> UnitCost:
    cost = UnitCost(float(content["seconds"]), float(content["low"]), float(content["high"]))
    if not 0 <= cost.low <= cost.seconds <= cost.high:
        raise ValueError(f"a unit cost of {content} is not a number inside its interval")
    return cost


def default_path() -> Path:
    """Where the profile of this machine stands: the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(cache) if cache and Path(cache).is_absolute() else Path.home() / ".cache"
    return folder / "semistream" / "profile.json"


def profile_of_machine() -> CostProfile:
    """The profile that `calibrate` stored last, or one that was measured on another machine and ships with us."""
    return CostProfile.load() if default_path().exists() else typical_profile()


def typical_profile() -> CostProfile:
    """Measured on two virtual cores with a network disk, 2026: right about orders, not about this machine."""
    text = resources.files("semistream.cost").joinpath("typical.json").read_text(encoding="utf-8")
    return CostProfile.from_json(json.loads(text))


def machine_info() -> dict[str, Any]:
    """What the figures of a profile belong to."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
    }


#: Seconds a look-up takes in the papers' Java programs. Their texts give no unit cost; a hash map of boxed
#: objects that do not fit the CPU's caches takes two or three accesses to memory of about 100 ns each.
_ERA_LOOKUP = 300e-9


def paper_profile() -> CostProfile:
    """A machine of the papers' time: Core i5 or Pentium IV, one 7,200 rpm disk, Java programs (about 2008 to 2014).

    The texts name the hardware but no unit cost, so these are round numbers of that time; `sources` says which.
    Orders between algorithms come from the disk, which is four powers of ten slower than a look-up; the tests
    check that they stay when every CPU cost is three times smaller or larger.
    """
    cpu = {
        "c_S": 100e-9,
        "c_H": _ERA_LOOKUP,
        "c_H_S": _ERA_LOOKUP,
        "c_L": 2 * _ERA_LOOKUP,
        "c_P": 0.0,
        "c_O": 500e-9,
        "c_A": 600e-9,
        "c_E": 600e-9,
        "c_F": 50e-9,
        "c_B": 1e-6,
        "c_AI": 200e-9,
        "c_C": 0.0,
        "c_T": 0.0,
    }
    disk = IoCost(UnitCost.exactly(12.7e-3), UnitCost.exactly(0.2e-3), UnitCost.exactly(100e6))
    return CostProfile(
        name="papers",
        units={symbol: UnitCost.exactly(seconds) for symbol, seconds in cpu.items()},
        io=dict.fromkeys(IO_MODES, disk),
        machine={"system": "Core i5 or Pentium IV, 500 GB or 160 GB disk, Java, MySQL (the five papers)"},
        sources={
            "seek_s": "7,200 rpm desktop disk: mean seek 8.5 ms and half a turn, 4.2 ms",
            "next_s": "command overhead of the next read of a scan: the head stands there already",
            "bytes_per_s": "sequential rate of such a disk, about 100 MB/s",
            "c_S": "copy of 20 bytes into an object, allocation included",
            "c_H": "hash map of boxed objects beyond the CPU's caches: two or three memory accesses of 100 ns",
            "c_H_S": "as c_H: the papers have one c_H",
            "c_L": "a search among fence keys and one on the page, both in memory",
            "c_P": "not in the papers: part of reading a page",
            "c_O": "copy of 140 bytes into a new object",
            "c_A": "insertion into the multi-hash-map and the queue: twice a look-up",
            "c_E": "removal from both: as c_A",
            "c_F": "one comparison, the count being at hand",
            "c_B": "insertion into H_R with a copy of 120 bytes and an update of the recorder",
            "c_AI": "append to a queue of 20-byte tuples",
            "c_C": "not in the papers: their loops have no chunks",
            "c_T": "not in the papers: part of the other costs",
        },
    )
