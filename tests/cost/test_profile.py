"""Profiles: JSON there and back, nothing else accepted, and a place in the user's cache."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from semistream.cost.profile import (
    AHEAD,
    IO_MODES,
    SYMBOLS,
    CostProfile,
    IoCost,
    UnitCost,
    default_path,
    paper_profile,
)
from semistream.errors import ConfigError, StoreError


def test_a_profile_comes_back_as_it_was(tmp_path: Path) -> None:
    profile = paper_profile()
    path = profile.save(tmp_path / "some" / "profile.json")
    assert CostProfile.load(path) == profile
    assert [entry.name for entry in path.parent.iterdir()] == ["profile.json"]


def test_reads_made_ahead_are_optional(tmp_path: Path) -> None:
    plain = paper_profile()
    assert AHEAD not in plain.io
    assert plain.reads_ahead == plain.io["direct"]
    assert not plain.knows_ahead
    with_it = replace(plain, io={**plain.io, AHEAD: IoCost(*(UnitCost.exactly(value) for value in (1e-5, 1e-5, 3e9)))})
    loaded = CostProfile.load(with_it.save(tmp_path / "profile.json"))
    assert loaded == with_it
    assert loaded.reads_ahead.bytes_per_s.seconds == 3e9
    assert loaded.knows_ahead


def test_the_papers_profile_says_where_every_number_comes_from() -> None:
    profile = paper_profile()
    assert set(profile.units) == set(SYMBOLS)
    assert set(profile.sources) == set(SYMBOLS) | {"seek_s", "next_s", "bytes_per_s"}
    disk = profile.io["direct"]
    assert 1e-3 < disk.seek_s.seconds < 20e-3
    assert disk.bytes_per_s.seconds == pytest.approx(100e6)


def test_the_default_place_is_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert paper_profile().save() == tmp_path / "semistream" / "profile.json"
    assert CostProfile.load().name == "papers"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_path() == tmp_path / ".cache" / "semistream" / "profile.json"


def test_a_missing_profile_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="semistream calibrate"):
        CostProfile.load(tmp_path / "none.json")


@pytest.mark.parametrize("damage", ["text", "format", "unit", "mode", "interval", "type"])
def test_a_damaged_profile_is_refused(tmp_path: Path, damage: str) -> None:
    content = paper_profile().to_json()
    if damage == "format":
        content["format"] = 99
    elif damage == "unit":
        del content["units"]["c_H"]
    elif damage == "mode":
        del content["io"][IO_MODES[0]]
    elif damage == "interval":
        content["units"]["c_H"] = {"seconds": 1.0, "low": 2.0, "high": 3.0}
    elif damage == "type":
        content = ["c_H"]
    path = tmp_path / "profile.json"
    path.write_text("{" if damage == "text" else json.dumps(content))
    with pytest.raises((StoreError, ConfigError), match="calibrate anew"):
        CostProfile.load(path)


def test_an_operators_own_cost_goes_before_the_common_one() -> None:
    profile = paper_profile()
    own = CostProfile("own", {**profile.units, "c_T.ssj": UnitCost.exactly(5.0)}, profile.io)
    assert own.unit("c_T", "ssj") == 5.0
    assert own.unit("c_T", "ssbj") == 0.0
    with pytest.raises(ConfigError, match="c_X"):
        own.unit("c_X")
