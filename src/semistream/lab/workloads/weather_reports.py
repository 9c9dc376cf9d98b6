"""Made-up cloud reports with the places and rhythms of real ones, in the columns of NDP-026B.

What matters for a join on longitude is where reports come from: land stations stand in clusters and report
from the same place again and again, ships move along lanes and give their place in tenths of a degree. So a
few longitudes have many reports, most have some, and many have none.

Sizes by default are those of a month of the archive (September 1985: about 7,000 land stations and a million land
reports); the clouds themselves are drawn at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from semistream.errors import ConfigError
from semistream.lab.workloads.cells import Draws
from semistream.lab.workloads.counter import scaled, stream_seed, unit, words_at
from semistream.lab.workloads.weather import FIELDS, MASTER_MONTHS, MONTH_NAMES, SCHEMA, STREAM_MONTHS, write_lines
from semistream.lab.workloads.workload import Workload

#: Every third hour is a synoptic one.
_SLOTS_PER_DAY = 8
#: Share of the land stations; longitude and latitude with their spread in degrees; first station number.
_REGIONS = np.array(
    [
        (0.24, 12.0, 14.0, 49.0, 7.0, 1_000),  # Europe
        (0.16, 65.0, 30.0, 54.0, 7.0, 20_000),  # northern Asia
        (0.08, 78.0, 9.0, 22.0, 7.0, 40_000),  # southern Asia
        (0.16, 113.0, 12.0, 33.0, 8.0, 50_000),  # eastern Asia
        (0.09, 20.0, 17.0, 5.0, 15.0, 60_000),  # Africa
        (0.14, 265.0, 17.0, 41.0, 8.0, 70_000),  # North America
        (0.06, 300.0, 9.0, -18.0, 14.0, 80_000),  # South America
        (0.05, 140.0, 13.0, -28.0, 7.0, 94_000),  # Australia
        (0.02, 190.0, 60.0, -5.0, 15.0, 91_000),  # Pacific islands
    ]
)
_NUMBERS_PER_REGION = 3_900
#: From (longitude, latitude) to (longitude, latitude); longitudes beyond 360 cross the meridian of Greenwich.
_LANES = np.array(
    [
        (286.0, 40.0, 355.0, 49.0),  # New York to the Channel
        (286.0, 38.0, 350.0, 36.0),  # New York to Gibraltar
        (142.0, 35.0, 236.0, 38.0),  # Tokyo to San Francisco
        (122.0, 31.0, 242.0, 33.0),  # Shanghai to Los Angeles
        (352.0, 36.0, 393.0, 32.0),  # Gibraltar to Suez
        (43.0, 12.0, 104.0, 2.0),  # Aden to Singapore
        (104.0, 2.0, 140.0, 34.0),  # Singapore to Yokohama
        (18.0, -34.0, 116.0, -31.0),  # the Cape to Fremantle
        (316.0, -23.0, 378.0, -34.0),  # Rio de Janeiro to the Cape
        (151.0, -34.0, 280.0, 8.0),  # Sydney to Panama
    ]
)


@dataclass(frozen=True)
class WeatherReports(Workload):
    """Reports of some months, (year, month) each, in the order of time."""

    months: tuple[tuple[int, int], ...]
    seed: int = 0
    stations: int = 7_037
    ships: int = 1_500
    land_reports: int = 4_230
    ship_reports: int = 520
    n_rows: int = field(init=False)

    def __post_init__(self) -> None:
        if not 0 <= self.land_reports <= self.stations or not 0 <= self.ship_reports <= self.ships:
            raise ConfigError(
                f"{self.land_reports} reports at a time from {self.stations} stations, {self.ship_reports} from "
                f"{self.ships} ships; each can report once at a time"
            )
        if self._each < 1 or not self.months or any(not 1 <= month <= 12 for _, month in self.months):
            raise ConfigError(f"months {self.months} with {self._each} reports at a time; give at least one of each")
        object.__setattr__(self, "n_rows", int(self._slots[1][-1]) * self._each)

    @classmethod
    def master(cls, years: Sequence[int] = range(1982, 1992), seed: int = 0) -> WeatherReports:
        """R: April and August of those years."""
        return cls(tuple((year, month) for year in years for month in MASTER_MONTHS), seed)

    @classmethod
    def stream(cls, years: Sequence[int] = range(1982, 1991), seed: int = 0) -> WeatherReports:
        """S: December of those years, from the same stations and ships if the seed is the same."""
        return cls(tuple((year, month) for year in years for month in STREAM_MONTHS), seed)

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    @property
    def _each(self) -> int:
        return self.land_reports + self.ship_reports

    @cached_property
    def _slots(self) -> tuple[np.ndarray, np.ndarray]:
        """For each month, its first three-hour slot since 1970, and how many slots come before it here."""
        first = np.array([(year - 1970) * 12 + month - 1 for year, month in self.months]).astype("datetime64[M]")
        days = [edge.astype("datetime64[D]").astype(np.int64) for edge in (first, first + 1)]
        before = np.concatenate(([0], np.cumsum((days[1] - days[0]) * _SLOTS_PER_DAY)))
        return days[0] * _SLOTS_PER_DAY, before

    def _make(self, start: int, stop: int) -> list[pa.Array]:
        draws = Draws(self.seed, "weather", start, stop)
        first_slot, before = self._slots
        turn, place = np.divmod(np.arange(start, stop, dtype=np.int64), self._each)
        month = np.searchsorted(before, turn, side="right") - 1
        slot = first_slot[month] + turn - before[month]
        ship = place >= self.land_reports
        # Neighbouring numbers report together; from one time to the next the window moves on.
        station = (place + slot * (self.stations // 3)) % self.stations
        vessel = (place - self.land_reports + slot * (self.ships // 3)) % self.ships
        on_land, at_sea = self._stations(station), self._ships(vessel, slot)
        lat, lon = np.where(ship, at_sea, on_land[:2])
        number = np.where(ship, 0, on_land[2])
        altitude = _solar_altitude(slot, lat, lon)
        moon = _moonlight(slot, lon)
        values: dict[str, np.ndarray] = {
            "ib": (altitude >= -90) | (moon >= 11),
            "lat": lat,
            "lon": lon,
            "id": number,
            "lo": np.where(ship, 2, 1),
            "ic": draws.below(10, "ic"),
            "sa": altitude,
            "ri": moon,
        }
        missing: dict[str, np.ndarray] = {}
        self._clouds(draws, values, missing)
        time = pa.array(slot * (24 // _SLOTS_PER_DAY * 3_600_000_000)).cast(SCHEMA.field("time").type)
        return [time] + [
            pa.array(values[column.name].astype(column.type.to_pandas_dtype()), mask=missing.get(column.name))
            for column in FIELDS
        ]

    @staticmethod
    def _clouds(draws: Draws, values: dict[str, np.ndarray], missing: dict[str, np.ndarray]) -> None:
        """Amounts that fit together; what low clouds hide is missing."""
        total = draws.below(9, "n")
        low = total * draws.below(5, "nh") // 4
        values |= {"n": total, "nh": low, "ww": draws.below(100, "ww"), "h": draws.below(10, "h")}
        values |= {"cl": draws.below(12, "cl"), "cm": draws.below(13, "cm"), "ch": draws.below(10, "ch")}
        for name, share in (("ww", 0.04), ("nh", 0.03), ("h", 0.1), ("cl", 0.05)):
            missing[name] = draws.missing(share, name)
        for level, share in (("m", 0.15), ("h", 0.25)):
            hidden = draws.missing(share, f"c{level}") | (low == 8)
            seen = total * draws.below(101, f"a{level}")
            values |= {f"a{level}": seen, f"u{level}": seen // 100}
            missing |= {f"c{level}": hidden, f"a{level}": hidden, f"u{level}": hidden}

    def _stations(self, station: np.ndarray) -> np.ndarray:
        """Latitude, longitude (hundredths, from whole minutes as catalogues have them) and number of stations."""
        draw = words_at(stream_seed(self.seed, "weather/stations"), station * 7)
        region = _REGIONS[np.searchsorted(np.cumsum(_REGIONS[:-1, 0]), unit(draw))]
        sums = [self._bell(station * 7 + 1), self._bell(station * 7 + 4)]
        minutes = [np.rint(60 * (region[:, 1 + 2 * i] + region[:, 2 + 2 * i] * sums[i])) for i in (0, 1)]
        lon = (np.rint(minutes[0] / 0.6).astype(np.int64)) % 36000
        lat = np.clip(np.rint(minutes[1] / 0.6), -8900, 8900).astype(np.int64)
        return np.stack((lat, lon, region[:, 5].astype(np.int64) + scaled(draw << np.uint64(20), _NUMBERS_PER_REGION)))

    def _bell(self, positions: np.ndarray) -> np.ndarray:
        """Nearly normal with deviation 1: three uniform draws from there on, summed up."""
        seed = stream_seed(self.seed, "weather/stations")
        total = sum(unit(words_at(seed, positions + i)) for i in range(3))
        return (np.asarray(total) - 1.5) * 2.0

    def _ships(self, ship: np.ndarray, slot: np.ndarray) -> np.ndarray:
        """Latitude and longitude of ships that go to and fro on their lanes; 8 to 33 days for a crossing."""
        seed = stream_seed(self.seed, "weather/ships")
        lane = _LANES[scaled(words_at(seed, ship * 4), len(_LANES))]
        crossing = 64.0 + 200.0 * unit(words_at(seed, ship * 4 + 1))
        way = (2.0 * unit(words_at(seed, ship * 4 + 2)) + slot / crossing) % 2.0
        done = np.minimum(way, 2.0 - way)
        aside = 4.0 * (unit(words_at(seed, ship * 4 + 3)) - 0.5)
        lon = lane[:, 0] + (lane[:, 2] - lane[:, 0]) * done
        lat = lane[:, 1] + (lane[:, 3] - lane[:, 1]) * done + aside
        return np.stack((np.rint(lat * 10).astype(np.int64) * 10, np.rint(lon * 10).astype(np.int64) * 10 % 36000))

    def write(self, folder: Path, batch_rows: int = 65_536) -> list[Path]:
        """One file per month, named as the archive does; what `read_months` reads."""
        folder.mkdir(parents=True, exist_ok=True)
        edges = (self._slots[1] * self._each).tolist()
        paths = []
        for (year, month), first, last in zip(self.months, edges[:-1], edges[1:], strict=True):
            paths.append(folder / f"{MONTH_NAMES[month - 1].upper()}{year % 100:02d}")
            with paths[-1].open("wb") as file:
                for batch in self.batches(first, last, batch_rows):
                    file.write(write_lines(batch))
        return paths


def _solar_altitude(slot: np.ndarray, lat: np.ndarray, lon: np.ndarray) -> np.ndarray:
    """Tenths of a degree above the horizon."""
    day, eighth = np.divmod(slot, _SLOTS_PER_DAY)
    tilt = np.radians(-23.44) * np.cos((day + 11) * (2 * np.pi / 365.25))
    hour_angle = np.radians(eighth * (360.0 / _SLOTS_PER_DAY) + lon / 100.0 - 180.0)
    phi = np.radians(lat / 100.0)
    height = np.sin(phi) * np.sin(tilt) + np.cos(phi) * np.cos(tilt) * np.cos(hour_angle)
    degrees = np.degrees(np.arcsin(np.clip(height, -1.0, 1.0)))
    return np.asarray(np.rint(degrees * 10).astype(np.int64))


def _moonlight(slot: np.ndarray, lon: np.ndarray) -> np.ndarray:
    """Hundredths of a full moon overhead; negative while it is below the horizon."""
    phase = 0.5 - 0.5 * np.cos(slot * (2 * np.pi / (29.53 * _SLOTS_PER_DAY)))
    up = np.cos(slot * (2 * np.pi / (_SLOTS_PER_DAY * 1.035)) + np.radians(lon / 100.0))
    return np.asarray(np.rint(110 * phase * up).astype(np.int64))
