"""The archive's lines: every column where it belongs, bad ones named, made-up reports read back."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semistream.errors import ConfigError, StoreError
from semistream.lab.workloads import weather
from semistream.lab.workloads.weather import FIELDS, KEY, LINE_CHARACTERS, SCHEMA, read_file, read_months, write_lines
from semistream.lab.workloads.weather_reports import WeatherReports
from semistream.testing import reference_join

#        yrmndyhr IB LAT    LON    ID     LO ww   N  Nh   h    CL   CM   CH   AM    AH    UM  UH  IC   SA     RI
LAND = "85091512 1  5133  35950   3772   1  61   8   7   3   6   2  -1  250  900   2   9   0   -87   110"
SHIP = "91123121 0  -945      0      9   2  -1   0   0  -1   0   0   0    0    0   0   0   9  -900  -110"
WIDTHS = (8, 1, 5, 5, 5, 1, 2, 1, 2, 2, 2, 2, 2, 3, 3, 1, 1, 2, 4, 4)
SMALL = WeatherReports(((1982, 4), (1982, 8)), 5, stations=400, ships=60, land_reports=240, ship_reports=40)


def line(values: str) -> str:
    return "".join(value.rjust(width) for value, width in zip(values.split(), WIDTHS, strict=True))


def read(folder: Path, text: str | bytes) -> pa.Table:
    path = folder / "SEP85L"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return pa.Table.from_batches(read_file(path), SCHEMA)


def test_columns_cover_the_line_without_gap() -> None:
    ends = [9] + [field.first + field.width for field in FIELDS]
    assert [field.first for field in FIELDS] == ends[:-1]
    assert ends[-1] - 1 == LINE_CHARACTERS == sum(WIDTHS)


def test_lines_written_by_hand(tmp_path: Path) -> None:
    land, ship = read(tmp_path, f"{line(LAND)}\n{line(SHIP)}\n").to_pylist()
    assert land == {
        "time": datetime(1985, 9, 15, 12, tzinfo=UTC),
        "ib": 1,
        "lat": 5133,
        "lon": 35950,
        "id": 3772,
        "lo": 1,
        "ww": 61,
        "n": 8,
        "nh": 7,
        "h": 3,
        "cl": 6,
        "cm": 2,
        "ch": None,
        "am": 250,
        "ah": None,
        "um": 2,
        "uh": None,
        "ic": 0,
        "sa": -87,
        "ri": 110,
    }
    assert (ship["time"], ship["lat"], ship["lon"]) == (datetime(1991, 12, 31, 21, tzinfo=UTC), -945, 0)
    assert (ship["ww"], ship["h"], ship["am"], ship["um"], ship["sa"]) == (None, None, 0, 0, -900)


def test_zeros_or_blanks_in_front_are_the_same(tmp_path: Path) -> None:
    padded = line(LAND).replace(" 3772", "03772")
    assert read(tmp_path, padded).equals(read(tmp_path, line(LAND)))


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_line_ends(tmp_path: Path, end: str) -> None:
    text = ("\r\n" if "\r" in end else "\n").join([line(LAND), line(SHIP)]) + end
    assert read(tmp_path, text).num_rows == 2


def test_mixed_line_ends(tmp_path: Path) -> None:
    mixed = read(tmp_path, f"{line(LAND)}\r\n{line(SHIP)}\n{line(LAND)}\n")
    assert mixed.equals(read(tmp_path, "\n".join([line(LAND), line(SHIP), line(LAND)])))


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("35950", "36001", "lon is '36001'.*from column 15.*from 0 to 36000"),
        ("35950", "3595x", "lon is '3595x'"),
        ("35950", " 3 50", "lon is ' 3 50'"),
        ("35950", "     ", "lon is '     '"),
        (" 5133", " -  3", "lat is ' -  3'"),
        (" 5133", "51-33", "lat is '51-33'"),
        (" 5133", "9001 ", "lat is '9001 '"),
        ("850915", "851315", "mn is '13'.*from 1 to 12"),
        ("850915", "850931", "dy is '31'"),
        ("091512", "091524", "hr is '24'"),
        ("250", "2é", "am is"),
        ("-87", "--7", "sa is ' --7'"),
        ("-87", "  -", "sa is '   -'"),
    ],
)
def test_bad_fields_are_named_with_file_and_line(tmp_path: Path, old: str, new: str, problem: str) -> None:
    bad = line(LAND).replace(old, new, 1)
    with pytest.raises(StoreError, match=rf"SEP85L, line 3: {problem}"):
        read(tmp_path, f"{line(LAND)}\n{line(SHIP)}\n{bad}\n{bad}\n")


@pytest.mark.parametrize("bad", [line(LAND)[:-1], line(LAND) + " ", ""])
def test_lines_of_another_length_are_named(tmp_path: Path, bad: str) -> None:
    with pytest.raises(StoreError, match=rf"SEP85L, line 2: {len(bad)} characters; a report has 56"):
        read(tmp_path, f"{line(LAND)}\n{bad}\n{line(LAND)}\n")


def test_line_numbers_count_through_all_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weather, "_READ_BYTES", 100)
    lines = [line(LAND)] * 50
    assert read(tmp_path, "\n".join(lines)).num_rows == 50
    lines[41] = lines[41].replace("35950", "40000")
    with pytest.raises(StoreError, match="line 42: lon is '40000'"):
        read(tmp_path, "\n".join(lines))


@given(
    lat=st.integers(-9000, 9000),
    lon=st.integers(0, 36000),
    station=st.integers(0, 99_999),
    sun=st.integers(-999, 9999),
    weather_code=st.none() | st.integers(-9, 99).filter(lambda code: code != -1),
    middle=st.none() | st.integers(-99, 999).filter(lambda amount: amount != 900),
)
def test_any_report_comes_back(
    lat: int, lon: int, station: int, sun: int, weather_code: int | None, middle: int | None
) -> None:
    report = SMALL.rows(0, 1).to_pylist()[0] | {"lat": lat, "lon": lon, "id": station, "sa": sun}
    report |= {"ww": weather_code, "am": middle}
    batch = pa.RecordBatch.from_pylist([report], SCHEMA)
    text = np.frombuffer(write_lines(batch), dtype=np.uint8)[:LINE_CHARACTERS]
    assert weather.parse(text[:, None]).to_pylist() == [report]


def test_made_up_months_come_back_from_files(tmp_path: Path) -> None:
    paths = SMALL.write(tmp_path, batch_rows=1_000)
    assert [path.name for path in paths] == ["APR82", "AUG82"]
    assert {path.stat().st_size % (LINE_CHARACTERS + 1) for path in paths} == {0}
    assert read_months(tmp_path, (4, 8)).read_all().combine_chunks().equals(SMALL.table())
    assert SMALL.n_rows == (30 + 31) * 8 * 280


def test_folder_of_months(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a report")
    (tmp_path / "dec90o.gz").write_bytes(gzip.compress(f"{line(SHIP)}\n".encode()))
    (tmp_path / "AUG84L.DAT").write_text(f"{line(LAND)}\n{line(LAND)}\n")
    (tmp_path / "APR83L").write_text(f"{line(LAND)}\n")
    assert read_months(tmp_path, weather.MASTER_MONTHS).read_all().num_rows == 3
    assert read_months(tmp_path, weather.STREAM_MONTHS).read_all().num_rows == 1
    with pytest.raises(StoreError, match=r"no file of the months jul.*APR82L"):
        read_months(tmp_path, (7,))
    with pytest.raises(StoreError, match="is not a folder"):
        read_months(tmp_path / "nowhere", (4,))
    whole = gzip.compress(f"{line(SHIP)}\n".encode() * 1_000)
    (tmp_path / "JAN84L.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StoreError, match=r"JAN84L\.gz cannot be read to its end"):
        read_months(tmp_path, (1,)).read_all()
    (tmp_path / "JUN83L.Z").write_bytes(b"\x1f\x9d")
    with pytest.raises(StoreError, match="unpack it: uncompress"):
        read_months(tmp_path, (6,)).read_all()


def test_reports_are_realistic() -> None:
    reports = WeatherReports(((1985, 9),), seed=1)
    assert reports.n_rows == pytest.approx(1_140_000)
    table = reports.table(0, 8 * 4_750)
    lon, ship = table.column(KEY).to_numpy(), table.column("lo").to_numpy() == 2
    assert lon.min() >= 0
    assert lon.max() <= 36_000
    assert ship.mean() == pytest.approx(520 / 4_750)
    # Ships give tenths of a degree and move; stations stay where they are and crowd in Europe and eastern Asia.
    assert (lon[ship] % 10 == 0).all()
    assert ((lon[~ship] < 4_000) | (lon[~ship] > 34_000)).mean() > 0.2
    places = set(zip(table.column("id").to_pylist(), lon.tolist(), strict=True))
    assert len({place for place in places if place[0]}) <= reports.stations
    assert len({place for place in places if not place[0]}) > 600
    # At noon UTC the sun is high over Greenwich and below the horizon at the date line.
    noon = np.array([moment.hour == 12 for moment in table.column("time").to_pylist()])
    sun, lat = table.column("sa").to_numpy(), table.column("lat").to_numpy()
    temperate = noon & (np.abs(lat) < 5_000)
    assert sun[temperate & ((lon < 1_000) | (lon > 35_000))].min() > 200
    assert sun[temperate & (lon > 17_000) & (lon < 19_000)].max() < -200
    for name in ("ww", "ch", "am", "uh"):
        assert 0 < table.column(name).null_count < table.num_rows / 2


def test_a_ship_moves_and_a_station_stays() -> None:
    both = WeatherReports(((1985, 9),), 1, stations=1, ships=1, land_reports=1, ship_reports=1).table()
    station, ship = (both.column(KEY).to_numpy()[first::2] for first in (0, 1))
    assert len(np.unique(station)) == 1
    # A month is long enough for a good part of a crossing; three hours are a few degrees at most, across 0 too.
    assert len(np.unique(ship)) > 50
    steps = (np.diff(ship) + 18_000) % 36_000 - 18_000
    assert 0 < np.abs(steps).max() < 300


def test_one_report_a_station_and_time() -> None:
    table = SMALL.table(0, 280)
    assert len(table.column("time").unique()) == 1
    land = table.filter(pa.compute.field("lo") == 1)
    assert len(set(zip(*(land.column(name).to_pylist() for name in ("id", "lat", "lon")), strict=True))) == 240


def test_the_join_is_many_to_many() -> None:
    stream = WeatherReports(((1982, 12),), 5, stations=400, ships=60, land_reports=240, ship_reports=40)
    joined = reference_join(stream.table(0, 280), SMALL.table(0, 10 * 280), KEY)
    assert joined.num_rows > 1_000


def test_master_and_stream_are_the_papers_months() -> None:
    assert WeatherReports.master(range(1982, 1984)).months == ((1982, 4), (1982, 8), (1983, 4), (1983, 8))
    assert WeatherReports.stream(range(1982, 1984)).months == ((1982, 12), (1983, 12))
    assert 20e6 < WeatherReports.master().n_rows < 25e6


def test_impossible_reports_are_refused() -> None:
    with pytest.raises(ConfigError, match="each can report once"):
        WeatherReports(((1982, 4),), stations=5, land_reports=6)
    with pytest.raises(ConfigError, match="give at least one"):
        WeatherReports(())
    with pytest.raises(ConfigError, match=r"months \(\(1982, 13\),\)"):
        WeatherReports(((1982, 13),))


def test_a_wide_report_has_the_papers_bytes_and_its_line(tmp_path: Path) -> None:
    narrow = pa.Table.from_batches([SMALL.rows(0, 700)])
    wide = weather.widened(SMALL.rows(0, 700))
    assert wide.schema == weather.WIDE_SCHEMA
    assert sum(column.type.bit_width for column in wide.schema) == 8 * weather.TUPLE_BYTES == 8 * 128
    assert pa.Table.from_batches([wide]).select(SCHEMA.names).equals(narrow)
    lines = b"\n".join(value[:LINE_CHARACTERS] for value in wide.column(weather.LINE).to_pylist())
    assert read(tmp_path, lines).equals(narrow)
    assert {value[LINE_CHARACTERS:].strip() for value in wide.column(weather.LINE).to_pylist()} == {b""}


def test_no_report_widened_is_none() -> None:
    assert weather.widened(SMALL.rows(0, 0)).num_rows == 0
