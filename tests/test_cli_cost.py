"""`semistream calibrate`, `tune`, `explain`, and `join --algorithm auto`."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from semistream import build_pages
from semistream.algorithms.registry import ALGORITHMS
from semistream.cli.app import app
from semistream.cost.profile import SYMBOLS, CostProfile
from semistream.lab.workloads.relation import KEY, master_table, stream_batches
from semistream.testing import assert_same_rows, reference_join

ROWS = 10_000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cost")
    table = master_table(ROWS, seed=1).select([KEY, "m01", "m02", "m03"])
    build_pages(table, folder / "r", on=KEY, page_rows=32)
    pq.write_table(table, folder / "r.parquet", row_group_size=2_000)
    pq.write_table(pa.Table.from_batches(stream_batches(30_000, ROWS, 1.0, seed=2)), folder / "s.parquet")
    return folder


def said(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_explain(data: Path) -> None:
    common = ("--stream", data / "s.parquet", "--master", data / "r", "--on", KEY, "--memory", "400KB")
    text = said("explain", *common)
    assert text.exit_code == 0, text.output
    for words in ("tuples per second", "found in the cache", "runner-up", "a sample of 30,000", "for the join alone"):
        assert words in text.output
    printed = json.loads(said("explain", *common, "--algorithm", "cachejoin", "--run", "--json").stdout)
    assert printed["algorithm"] == "cachejoin"
    assert printed["measured"]["tuples"] == 30_000
    assert "for the join alone" in printed["scope"]
    # What is said of the whole was measured, and cannot be faster than a part of it.
    assert 0 < printed["measured"]["whole_rate_per_s"] <= printed["measured"]["service_rate_per_s"]
    assert "measured as a whole" not in text.output
    assert printed["runner_up"]["why_not"]
    assert abs(printed["stream"]["exponent"] - 1.0) < 0.2


def test_explain_says_how_r_is_read(data: Path) -> None:
    common = ("explain", "--stream", data / "s.parquet", "--master", data / "r", "--on", KEY, "--memory", "400KB")
    for algorithm in ("auto", "cachejoin"):
        assert "reads    R has " in said(*common, "--algorithm", algorithm).output
        given = (*common, "--algorithm", algorithm, "--reads", "direct", "--run", "--json")
        printed = json.loads(said(*given).stdout)
        assert printed["setting"]["direct"]
        assert printed["setting"]["reads"] == "reads='direct' was asked for: reads go past the page cache"
        assert printed["measured"]["tuples"] == 30_000


@pytest.mark.parametrize("command", ["join", "explain", "tune"])
def test_ways_to_read_are_known(command: str, data: Path, tmp_path: Path) -> None:
    words: tuple[object, ...] = ("--stream", data / "s.parquet", "--master", data / "r.parquet", "--on", KEY)
    words = ("tune", "meshjoin", *words) if command == "tune" else (command, *words)
    words = (*words, "--out", tmp_path / "out.parquet") if command == "join" else words
    unknown = said(*words, "--reads", "buffered")
    assert unknown.exit_code == 2
    assert unknown.stderr == "error: reads='buffered' is unknown; allowed are auto, mapped, direct\n"
    algorithm = () if command == "tune" else ("--algorithm", "meshjoin")
    in_place = said(*words, *algorithm, "--reads", "direct")
    assert in_place.exit_code == 2
    assert "which only a page store allows" in in_place.stderr


def test_explain_is_for_the_rows_of_the_stream(data: Path) -> None:
    common = ("--stream", data / "s.parquet", "--master", data / "r", "--on", KEY, "--memory", "400KB")
    assert "predicted over the first 30,000 tuples" in said("explain", *common).output
    longer = json.loads(said("explain", *common, "--horizon", 50_000_000, "--json").stdout)
    assert longer["setting"]["horizon"] == longer["predicted"]["tuples"] == 50_000_000
    refused = said("explain", *common, "--horizon", 0)
    assert refused.exit_code == 2
    assert "at least 1" in refused.stderr


def test_explain_without_an_index(data: Path) -> None:
    common = ("--stream", data / "s.parquet", "--on", KEY, "--memory", "20MB", "--micro-batches", "--json")
    printed = json.loads(said("explain", "--master", data / "r.parquet", *common).stdout)
    assert "sweepjoin" in printed["refused"]
    text = said("explain", "--master", data / "r.parquet", *common[:-1]).output
    assert "`semistream join` builds a page store by itself" in text
    assert text.count("needs an index") == 1
    assert "semistream master build" in text
    assert "unsorted, without an index" in text
    refused = said("explain", "--master", data / "r.parquet", *common, "--algorithm", "sweepjoin")
    assert refused.exit_code == 2
    assert "build a page store" in refused.stderr


def test_auto_joins(data: Path, tmp_path: Path) -> None:
    for master in ("r", "r.parquet"):
        out = tmp_path / f"{master}.out.parquet"
        words = (
            "--stream",
            data / "s.parquet",
            "--master",
            data / master,
            "--on",
            KEY,
            "--memory",
            "20MB",
            "--out",
            out,
        )
        result = said("join", *words, "--algorithm", "auto", "--json")
        assert result.exit_code == 0, result.output
        counts = json.loads(result.stdout)
        assert counts["rows_in"] == 30_000
        assert counts["asked"] == "auto"
        assert counts["algorithm"] in ALGORITHMS
        assert f"auto chose {counts['algorithm']}" in result.stderr
        expected = reference_join(pq.read_table(data / "s.parquet"), pq.read_table(data / "r.parquet"), KEY)
        assert_same_rows(pq.read_table(out), expected)


def test_tune(data: Path, tmp_path: Path) -> None:
    words = ("--memory", "400KB", "--tuples", 20_000, "--profile", "papers", "--json")
    printed = json.loads(said("tune", "cachejoin", "--rows", 10_000, *words, "--plot", tmp_path / "surface.svg").stdout)
    assert set(printed) == {"algorithm", "analytic", "empirical", "reached_per_s", "deviation", "surface"}
    assert len(printed["surface"]) > 4
    assert (tmp_path / "surface.svg").read_text().startswith("<?xml")
    given = ("--master", data / "r", "--stream", data / "s.parquet", "--on", KEY, "--no-runs")
    mine = json.loads(said("tune", "ssbj", *given, *words).stdout)
    assert mine["analytic"]["rate_per_s"] > 0
    words_for_people = said("tune", "ssbj", *given, *words[:-1]).output
    for expected in ("by formula", "R in the cache", "rates are for the join alone"):
        assert expected in words_for_people
    alone = said("tune", "ssbj", "--master", data / "r", *words)
    assert alone.exit_code == 2
    assert "belong together" in alone.stderr


def test_calibrate(tmp_path: Path) -> None:
    place = tmp_path / "profile.json"
    result = said("calibrate", "--out", place, "--folder", tmp_path, "--seconds", 0.1)
    assert result.exit_code == 0, result.output
    profile = CostProfile.load(place)
    for symbol in SYMBOLS:
        assert symbol in result.output
        assert profile.units[symbol].low <= profile.units[symbol].seconds <= profile.units[symbol].high
    assert said("calibrate", "--seconds", 0).exit_code == 2
