"""Figures end to end on a tiny R: complete, resumable, and the same again with the same seed."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.lab.labs import TINY, tiny_lab
from typer.testing import CliRunner

from semistream.cli.app import app
from semistream.cost.profile import paper_profile
from semistream.errors import ConfigError
from semistream.lab.figure import Point
from semistream.lab.figures.family import OPC, OX, PC
from semistream.lab.figures.papers import PAPERS
from semistream.lab.figures.registry import FIGURES, chosen
from semistream.lab.laboratory import Lab
from semistream.lab.measure.runs import NotRemembered, RunLog
from semistream.lab.papers_clock import papers_clock
from semistream.lab.reproduce import SCHEMA, figure_file, read_points, read_sweep, reproduce, unfinished
from semistream.lab.sources import WeatherSource

#: rates and what is derived from the same runs, a formula beside them, and no join at all
NAMES = ["ssbj-5f", "sscj-4a", "sscj-6", "ssj-3"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    out = tmp_path_factory.mktemp("out")
    with tiny_lab(out, data) as lab:
        reproduce(lab, chosen(NAMES))
    return out


def by_clock(points: list[Point]) -> list[Point]:
    return [point for point in points if point.way != "wall"]


def test_every_figure_of_the_papers_is_there() -> None:
    wanted = {
        "ssbj-4a",
        "ssbj-6d",
        "ssj-2",
        "ssj-4f",
        "ssj-7b",
        "ssj-8",
        "sscj-5b",
        "oxhybridjoin-7",
        "opcachejoin-3",
        "opcachejoin-6c",
    }
    assert wanted <= set(FIGURES)
    assert all(figure.id == name and figure.claim and figure.title for name, figure in FIGURES.items())


def test_figures_keep_the_order_of_the_papers() -> None:
    papers = [name.partition("-")[0] for name in FIGURES]
    assert list(dict.fromkeys(papers))[: len(PAPERS)] == list(PAPERS)
    assert [figure.id for figure in chosen(["ssj-3", "ssbj-5f", "peers-batch"])] == ["ssbj-5f", "ssj-3", "peers-batch"]


@pytest.mark.parametrize(
    ("old", "name"),
    [
        ("000-5f", "ssbj-5f"),
        ("001-4f", "ssj-4f"),
        ("002-4a", "sscj-4a"),
        ("003-7", "oxhybridjoin-7"),
        ("004-6c", "opcachejoin-6c"),
    ],
)
def test_figures_are_known_by_their_old_names(old: str, name: str) -> None:
    assert [figure.id for figure in chosen([old])] == [name]


def test_results_under_old_names_are_not_measured_again(finished: Path, tmp_path: Path, data: Path) -> None:
    """An out folder of an earlier version: one file per figure, named and filled with the paper's number."""
    (tmp_path / "raw" / "figures").mkdir(parents=True)
    shutil.copy(finished / "raw" / "about.json", tmp_path / "raw")
    text = figure_file(finished, "sscj-4a").read_text().replace("sscj-4a", "002-4a")
    figure_file(tmp_path, "002-4a").write_text(text)
    with tiny_lab(tmp_path, data) as lab:
        reproduce(lab, chosen(["002-4a"]))
    assert not figure_file(tmp_path, "sscj-4a").exists()
    assert read_points(tmp_path) == {"sscj-4a": read_points(finished)["sscj-4a"]}


def test_points_are_tidy_and_judged(finished: Path) -> None:
    table = pq.read_table(finished / "raw" / "points.parquet")
    assert table.schema.equals(SCHEMA)
    points = read_points(finished)
    assert sorted(points) == NAMES
    for name, found in points.items():
        assert found, name
        assert all(point.low <= point.y <= point.high and point.n >= 1 for point in found), name
        assert FIGURES[name].judge(found).outcome in ("held", "partly", "not")
    rates = [point for point in points["sscj-4a"] if point.series == "cachejoin"]
    assert {point.way for point in rates} == {"counts", "papers", "machine", "wall"}
    assert {point.series for point in points["sscj-4a"]} >= {"cachejoin", "cachejoin, defaults"}
    assert {point.settings["tuning"] for point in rates if point.way == "papers"} <= {
        "tuned for the papers profile",
        "defaults",
    }
    assert all(point.settings["cpus"] >= 1 for point in rates)
    # When its times were taken, and how fast the machine was then, is said of what the wall clock says, and only of it.
    assert {point.way for point in rates if "taken" in point.settings} == {"wall"}
    assert all(point.settings["taken"]["work_s"] > 0 for point in rates if point.way == "wall")
    # Of so small an R 1 to 5 % are too little for any operator, and left out.
    assert {point.x for point in rates} == {10.0}
    settings = rates[0].settings
    assert settings["scale"] == "tiny"
    assert settings["source"]["rows"] == 30_000
    assert settings["memory"] > 0


def test_the_machines_clock_is_that_of_the_given_profile(finished: Path) -> None:
    points = read_points(finished)["sscj-4a"]
    papers, machine = ({(p.series, p.x): p.y for p in points if p.way == way} for way in ("papers", "machine"))
    assert papers == machine


def test_the_same_seed_gives_the_same_cost_clock_results(finished: Path, tmp_path: Path, data: Path) -> None:
    with tiny_lab(tmp_path, data) as lab:
        reproduce(lab, chosen(["sscj-4a"]))
    again = read_points(tmp_path)["sscj-4a"]
    assert by_clock(again) == by_clock(read_points(finished)["sscj-4a"])


def test_another_seed_gives_others(finished: Path, tmp_path: Path, data: Path) -> None:
    with tiny_lab(tmp_path, data, seed=2) as lab:
        source = lab.synthetic()
        other = lab.measure("hybridjoin", source, lab.memory(source, 0.1))
    with tiny_lab(finished, data) as lab:
        source = lab.synthetic()
        known = lab.measure("hybridjoin", source, lab.memory(source, 0.1))
    assert other is not None
    assert known is not None
    assert other.rate("papers").mean != known.rate("papers").mean


def test_a_broken_run_goes_on(finished: Path, tmp_path: Path, data: Path) -> None:
    started: list[str] = []

    def stop_at_third(what: str) -> None:
        if "R = 30,000" in what:
            started.append(what)
            if len(started) == 3:
                raise KeyboardInterrupt

    with tiny_lab(tmp_path, data, say=stop_at_third) as lab, pytest.raises(KeyboardInterrupt):
        reproduce(lab, chosen(["sscj-4a"]))
    assert not figure_file(tmp_path, "sscj-4a").exists()
    # As if the process had been killed while it wrote.
    with (tmp_path / "raw" / "runs.jsonl").open("ab") as file:
        file.write(b'{"settings": {"run": "stea')
    again: list[str] = []
    with tiny_lab(tmp_path, data, say=again.append) as lab:
        reproduce(lab, chosen(["sscj-4a"]))
    assert not set(started[:2]) & set(again)
    assert started[2] in again
    assert by_clock(read_points(tmp_path)["sscj-4a"]) == by_clock(read_points(finished)["sscj-4a"])


def _measure(out: Path, data: Path) -> None:
    with tiny_lab(out, data) as lab:
        reproduce(lab, chosen(NAMES))


def test_two_processes_share_the_work(finished: Path, tmp_path: Path, data: Path) -> None:
    """Whoever ends first has done what there was to do; nothing is made twice, and counts are the same."""
    other = multiprocessing.get_context("spawn").Process(target=_measure, args=(tmp_path, data))
    other.start()
    _measure(tmp_path, data)
    other.join()
    assert other.exitcode == 0
    assert not unfinished(tmp_path, chosen(NAMES))
    lines = (tmp_path / "raw" / "runs.jsonl").read_text().splitlines()
    settings = [json.dumps(json.loads(line)["settings"], sort_keys=True) for line in lines]
    assert len(settings) == len(set(settings))
    found, alone = read_points(tmp_path), read_points(finished)
    assert sorted(found) == NAMES
    for name in NAMES:
        assert by_clock(found[name]) == by_clock(alone[name])


def test_figures_that_another_process_is_at_are_left_to_it(tmp_path: Path, data: Path) -> None:
    """A lock keeps nobody of the same process out, so the other one is played by a process of its own."""
    (tmp_path / "raw").mkdir()
    code = "import sys, pathlib; from semistream.lab.measure.together import Together; "
    code += "t = Together(pathlib.Path(sys.argv[1])); t.take('ssj-3'); o = t.away(); o.__enter__(); "
    code += "print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(tmp_path / "raw")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline()
        with tiny_lab(tmp_path, data) as lab:
            reproduce(lab, chosen(["ssj-3", "sscj-2"]))
        assert unfinished(tmp_path, chosen(["ssj-3", "sscj-2"])) == ["ssj-3"]
        profile = str(papers_clock().save(tmp_path / "given.json"))
        shutil.copy(profile, tmp_path / "profile.json")
        about = tmp_path / "raw" / "about.json"
        about.write_text(about.read_text().replace('"tiny"', '"small"').replace("30000", "1000000"))
        arguments = ["reproduce", "--figure", "ssj-3", "--figure", "sscj-2", "--out", str(tmp_path)]
        result = CliRunner().invoke(app, arguments)
        other.communicate()
    assert result.exit_code == 0, result.output
    assert "another process is still at ssj-3" in result.output
    assert not (tmp_path / "report.html").exists()


def test_what_is_finished_is_not_run_again(finished: Path, data: Path) -> None:
    before = (finished / "raw" / "points.parquet").read_bytes()
    said: list[str] = []
    with tiny_lab(finished, data, say=said.append) as lab:
        runs = len(lab.log)
        reproduce(lab, chosen(NAMES))
        assert len(lab.log) == runs
    assert not said
    assert (finished / "raw" / "points.parquet").read_bytes() == before


def test_an_out_folder_is_of_one_seed_and_one_profile(finished: Path, data: Path, tmp_path: Path) -> None:
    with tiny_lab(finished, data, seed=7) as lab, pytest.raises(ConfigError, match="seed 1, not 7"):
        reproduce(lab, [])
    other = paper_profile().to_json() | {"name": "another"}
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(other))
    result = CliRunner().invoke(app, ["reproduce", "--out", str(finished), "--profile", str(path), "--figure", "ssj-3"])
    assert result.exit_code == 2
    assert "other unit costs" in result.output


def test_other_cpus_are_refused(finished: Path, tmp_path: Path, data: Path) -> None:
    """Wall times of one and of two CPUs must not stand in one figure."""
    shutil.copytree(finished, tmp_path / "about", ignore=shutil.ignore_patterns("runs.jsonl"))
    path = tmp_path / "about" / "raw" / "about.json"
    about = json.loads(path.read_text())
    about["machine"]["cpus"] += 1
    path.write_text(json.dumps(about))
    with tiny_lab(tmp_path / "about", data) as lab, pytest.raises(ConfigError, match=r"CPUs.*another out folder"):
        reproduce(lab, chosen(["ssj-3"]))
    line = json.loads((finished / "raw" / "runs.jsonl").read_text().splitlines()[0])
    line["machine"]["cpus"] += 1
    log = tmp_path / "runs.jsonl"
    log.write_text(json.dumps(line) + "\n")
    with pytest.raises(ConfigError, match=r"CPUs.*another out folder"):
        RunLog(log)


def test_the_papers_clock_is_varied_with_the_same_runs(finished: Path) -> None:
    swept = read_sweep(finished)
    usual = [point for point in read_points(finished)["sscj-4a"] if point.way == "papers"]
    assert {"seek ÷ 4", "seek × 4", "bandwidth × 4", "c_O × 4", "overlap 0"} <= set(swept["sscj-4a"])
    slow = swept["sscj-4a"]["seek × 4"]
    assert [(p.series, p.x) for p in slow] == [(p.series, p.x) for p in usual]
    rates = {point.series: (point.y, other.y) for point, other in zip(usual, slow, strict=True)}
    # Every load of an index operator seeks; a scan hardly does.
    assert rates["hybridjoin, defaults"][1] < 0.5 * rates["hybridjoin, defaults"][0]
    assert rates["meshjoin, defaults"][1] > 0.5 * rates["meshjoin, defaults"][0]
    # What no clock has a part in is not varied.
    assert "ssbj-5f" not in swept


def test_contestants_are_tuned_for_the_clock(finished: Path, data: Path) -> None:
    points = {(p.series, p.way): p for p in read_points(finished)["sscj-4a"]}
    tuned, usual = points["cachejoin", "papers"], points["cachejoin, defaults", "papers"]
    assert tuned.settings["options"]
    assert not usual.settings["options"]
    assert tuned.y > usual.y
    with tiny_lab(finished, data) as lab:
        source = PC.source(lab)
        memory = lab.memory(source, 0.5)
        for algorithm in OPC.algorithms:
            options = lab.tuned(algorithm, source, memory, "papers", OPC.held(lab, algorithm))
            run = lab.measure(algorithm, source, memory, options=options, turns=2)
            assert run is not None
            # What the paper held fixed is: disk buffers of 850 records, and I_B of 2 MB where R has 240.
            assert run.symbols["d"] == 850
            held = source.rows * 120 * 2 // 240
            assert options.get("intermediate_bytes") == (None if algorithm == "cachejoin" else held)
            assert (run.side_by_side is None) == (algorithm == "cachejoin")


def test_both_parts_of_x_hybridjoins_buffer_are_equal(tmp_path: Path, data: Path) -> None:
    with tiny_lab(tmp_path, data) as lab:
        source, held = OX.source(lab), OX.held(lab, "xhybridjoin")
        memory = lab.memory(source, 0.5)
        options = lab.tuned("xhybridjoin", source, memory, "papers", held)
        assert options["pinned_pages"] is None
        run = lab.measure("xhybridjoin", source, memory, options=options, turns=2)
        usual = lab.measure("xhybridjoin", source, memory, turns=2)
        assert run is not None
        assert usual is not None
        # An option that is None is the default: both parts have the pages that the budget gives them.
        assert "pinned_pages" not in run.settings["options"]
        assert lab.measure("xhybridjoin", source, memory, options=held, turns=2).settings == usual.settings


def test_streams_without_a_law_are_sampled(tmp_path: Path, data: Path) -> None:
    source = WeatherSource(20_000)
    with tiny_lab(tmp_path, data) as lab:
        keys = lab.keys(source)
        assert float((keys.count * keys.p).sum()) == pytest.approx(1.0)
        assert lab.keys(source) is keys
        # Many reports per longitude: a key has many master tuples.
        assert keys.m.max() > 2
        assert lab.tuned("ssj", source, 2_000_000, "papers")


def test_a_log_of_remembered_runs_makes_none(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "runs.jsonl")
    log.once({"a": 1}, lambda: {"x": 1})
    known = log.remembered()
    assert known.once({"a": 1}, lambda: {"x": 2}) == {"x": 1}
    with pytest.raises(NotRemembered):
        known.once({"a": 2}, lambda: {"x": 2})
    assert log.once({"a": 2}, lambda: {"x": 3}) == {"x": 3}


def test_stores_are_removed_when_no_figure_needs_them(tmp_path: Path) -> None:
    with Lab(tmp_path, scale=TINY, profile=papers_clock(), data_limit=10**9) as lab:
        reproduce(lab, chosen(["ssbj-5f", "sscj-4a"]))
    left = {path.name for path in (tmp_path / "data").iterdir()}
    assert "unique-key-30000-seed1" in left
    assert not any(name.startswith("repeated") for name in left)


def test_a_log_finds_what_it_was_given(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "runs.jsonl")
    made = [log.once({"b": 1, "a": [2.5]}, lambda: {"x": 0.1 + 0.2, "list": [1, 2]}) for _ in range(2)]
    found = RunLog(tmp_path / "runs.jsonl").once({"a": [2.5], "b": 1}, lambda: {"x": 7})
    assert made == [found, found]
    assert found["x"] == 0.1 + 0.2


def test_the_command_measures_and_reports(tmp_path: Path) -> None:
    profile = paper_profile().save(tmp_path / "given.json")
    arguments = ["reproduce", "--figure", "sscj-2", "--out", str(tmp_path / "out"), "--profile", str(profile), "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert [figure["figure"] for figure in printed["figures"]] == ["sscj-2"]
    assert printed["figures"][0]["outcome"] == "held"
    assert Path(printed["report"]).is_file()


def test_the_command_lists_and_refuses() -> None:
    listed = CliRunner().invoke(app, ["reproduce", "--list", "--json"])
    assert [figure["figure"] for figure in json.loads(listed.stdout)] == list(FIGURES)
    unknown = CliRunner().invoke(app, ["reproduce", "--figure", "ssbj-5z"])
    assert unknown.exit_code == 2
    assert "there is no figure 'ssbj-5z'; did you mean" in unknown.output
    scale = CliRunner().invoke(app, ["reproduce", "--scale", "huge", "--figure", "ssj-3"])
    assert scale.exit_code == 2
    assert "small, medium, paper" in scale.output
