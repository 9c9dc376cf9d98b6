"""The command line: exact output, honest counts, and for every mistake one line and status 2."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import semistream
from semistream import build_pages
from semistream.algorithms.registry import ALGORITHMS
from semistream.cli.app import app
from semistream.cli.output import ParquetOutput
from semistream.engine.options import defaults, rules
from semistream.errors import ConfigError
from semistream.spec import DEFAULT_HOW
from semistream.testing import assert_same_rows, reference_join

Invoke = Callable[..., Any]

STREAM = pa.table(
    {
        "k": pa.array([i * 7 % 300 for i in range(2000)] + [None, 5000], pa.int64()),
        "city": pa.array([("Kraków", "Łódź", "Ulm")[i % 3] for i in range(2002)]),
        "n": pa.array(range(2002), pa.int32()),
    }
)
MASTER = pa.table(
    {
        "k": pa.array([i % 200 for i in range(500)] + [None], pa.int64()),
        "city": pa.array([("Kraków", "Łódź")[i % 2] for i in range(501)]),
        "price": pa.array([i / 4 for i in range(501)]),
    }
)


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run the command in a folder with the data, its own cache folder, and an empty folder for output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEMISTREAM_CACHE", str(tmp_path / "cache"))
    pq.write_table(STREAM, "s.parquet", row_group_size=300)
    pq.write_table(MASTER, "r.parquet", row_group_size=64)
    Path("out").mkdir()

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, list(arguments))

    return run


def joined(invoke: Invoke, *more: str, out: str = "out/x.parquet") -> tuple[pa.Table, dict[str, Any], str]:
    given = {"--stream": "s.parquet", "--master": "r.parquet", "--on": "k", "--out": out, "--memory": "4MB"}
    given.update(zip(more[::2], more[1::2], strict=True))
    result = invoke("join", *(word for pair in given.items() for word in pair), "--json")
    assert result.exit_code == 0, result.output
    return pq.read_table(out), json.loads(result.stdout), result.stderr


def test_algorithms_as_json(invoke: Invoke) -> None:
    rows = json.loads(invoke("algorithms", "--json").stdout)
    assert [row["name"] for row in rows] == list(ALGORITHMS)
    for row in rows:
        facts = {"name", "title", "aliases", "needs_index", "access", "paper", "weighed_by_auto", "options"}
        assert set(row) == facts
        assert row["access"] in ("scan", "index")
        assert row["title"].strip()
        assert row["weighed_by_auto"]
        options = {option["name"]: option for option in row["options"]}
        assert options["buffer_bytes"]["default"] is None
        assert "direct" not in options
        assert all(set(option) == {"name", "default", "allowed", "about"} for option in row["options"])
    by_name = {row["name"]: row for row in rows}
    assert "cmeshjoin" in by_name["ssj"]["aliases"]
    assert "sscj" in by_name["cachejoin"]["aliases"]
    assert by_name["hybridjoin"]["needs_index"]
    assert not by_name["meshjoin"]["needs_index"]
    share = {option["name"]: option for option in by_name["ssj"]["options"]}["cache_share"]
    assert (share["default"], share["allowed"]) == (0.4, "numbers above 0 and below 0.95")


def test_algorithms_as_a_table(invoke: Invoke) -> None:
    text = invoke("algorithms").stdout
    assert all(len(line) <= 80 for line in text.splitlines())
    for operator in ALGORITHMS.values():
        keys = (part.split(" ")[0] for part in operator.paper.split(", "))
        assert all(name in text for name in (operator.name, *operator.aliases, *keys)), "cut off at 80 columns"
        assert " ".join(operator.title.split()) in " ".join(text.split())


@pytest.mark.parametrize("name", ["ssj", "cmeshjoin", "C-MESHJOIN"])
def test_one_algorithm_in_full(invoke: Invoke, name: str) -> None:
    """By its name or an alias: the whole description, then every option with its default and range."""
    record = ALGORITHMS["ssj"]
    text = invoke("algorithms", name).stdout
    assert record.about.strip() in text
    table = " ".join(text.partition(record.about.strip())[2].split())
    for option, rule in rules(record.options).items():
        assert option in table
        assert str(defaults(record.options)[option]) in table
        assert rule.about.split()[0] in table
    assert json.loads(invoke("algorithms", name, "--json").stdout)["name"] == "ssj"


def test_an_algorithm_that_is_not_known(invoke: Invoke) -> None:
    result = invoke("algorithms", "mashjoin")
    assert result.exit_code == 2
    assert "meshjoin" in result.stderr


@pytest.mark.parametrize("algorithm", ["meshjoin", "ssbj", "inlj", "oxhybridjoin", "sscj", "sweepjoin"])
def test_join_of_parquet_files(invoke: Invoke, algorithm: str) -> None:
    table, counts, _ = joined(invoke, "--algorithm", algorithm)
    assert_same_rows(table, reference_join(STREAM, MASTER, "k"))
    assert set(counts) == {
        "algorithm",
        "asked",
        "how",
        "rows_in",
        "rows_out",
        "service_rate_per_s",
        "hit_rate",
        "peak_bytes",
        "budget_bytes",
        "pages_read",
        "seconds",
    }
    assert counts["rows_in"] == STREAM.num_rows
    assert counts["rows_out"] == table.num_rows
    assert counts["budget_bytes"] == 4_000_000
    assert 0 < counts["peak_bytes"] <= counts["budget_bytes"]
    assert 0 <= counts["hit_rate"] <= 1
    assert counts["service_rate_per_s"] == pytest.approx(counts["rows_in"] / counts["seconds"], rel=0.05)


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_how(invoke: Invoke, how: str) -> None:
    table, counts, _ = joined(invoke, "--how", how)
    assert counts["algorithm"] == "sweepjoin"
    assert_same_rows(table, reference_join(STREAM, MASTER, "k", how))


def test_select_and_two_key_columns(invoke: Invoke) -> None:
    table, _, _ = joined(invoke, "--on", "k,city", "--select", "price")
    assert_same_rows(table, reference_join(STREAM, MASTER, ["k", "city"], select=["price"]))


def test_key_columns_of_different_names(invoke: Invoke) -> None:
    renamed = MASTER.rename_columns(["id", "city", "price"])
    pq.write_table(renamed, "renamed.parquet")
    table, _, _ = joined(invoke, "--on", "k=id", "--master", "renamed.parquet")
    assert_same_rows(table, reference_join(STREAM, renamed, {"k": "id"}))


def test_folders_in_and_out(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semistream.cli.output.ROW_GROUP_BYTES", 4096)
    monkeypatch.setattr("semistream.cli.output.PART_BYTES", 16384)
    for name, table in (("ss", STREAM), ("rr", MASTER)):
        Path(name).mkdir()
        pq.write_table(table.slice(0, 100), f"{name}/a.parquet")
        pq.write_table(table.slice(100), f"{name}/b.parquet")
    given = ("--stream", "ss", "--master", "rr", "--batch-rows", "97")
    table, _, _ = joined(invoke, *given, out="out/folder")
    assert_same_rows(table, reference_join(STREAM, MASTER, "k"))
    parts = sorted(path.name for path in Path("out/folder").iterdir())
    assert len(parts) > 1
    assert parts == [f"part-{number:05d}.parquet" for number in range(len(parts))]


def test_empty_stream_gives_an_empty_file_with_the_columns(invoke: Invoke) -> None:
    pq.write_table(STREAM.slice(0, 0), "none.parquet")
    for number, algorithm in enumerate(("meshjoin", "xhybridjoin")):
        given = ("--stream", "none.parquet", "--algorithm", algorithm)
        table, counts, _ = joined(invoke, *given, out=f"out/{number}.parquet")
        assert_same_rows(table, reference_join(STREAM.slice(0, 0), MASTER, "k"))
        assert counts["rows_in"] == counts["rows_out"] == 0


def test_columns_of_every_kind_go_through(invoke: Invoke) -> None:
    rows = 3000
    table = pa.table(
        {
            "k": pa.array([i % 250 for i in range(rows)], pa.int64()),
            "coded": pa.array([("red", "blue", None)[i % 3] for i in range(rows)]).dictionary_encode(),
            "view": pa.array([f"text {i}" for i in range(rows)], pa.string_view()),
            "list": pa.array([[i, None] if i % 5 else None for i in range(rows)], pa.list_(pa.int32())),
            "struct": pa.array([{"a": i, "b.c": str(i)} for i in range(rows)]),
            "map": pa.array([[("x", i)] for i in range(rows)], pa.map_(pa.string(), pa.int64())),
            "flag": pa.array([i % 2 == 0 for i in range(rows)]),
            "money": pa.array(list(range(rows)), pa.decimal128(12, 2)),
            "nothing": pa.nulls(rows),
        }
    )
    pq.write_table(table, "wide.parquet", row_group_size=700)
    given = pq.read_table("wide.parquet")
    for out in ("out/wide.parquet", "out/wide"):
        found, _, _ = joined(invoke, "--stream", "wide.parquet", "--how", "left", "--memory", "16MB", out=out)
        assert_same_rows(found, reference_join(given, MASTER, "k", "left"))
        assert pa.types.is_dictionary(found.schema.field("coded").type)


def test_page_store_as_master(invoke: Invoke, tmp_path: Path) -> None:
    build_pages(MASTER, tmp_path / "store", on="k", page_rows=16)
    table, _, notices = joined(invoke, "--master", "store")
    assert_same_rows(table, reference_join(STREAM, MASTER, "k"))
    assert notices == ""
    assert not Path("cache").exists()


def test_store_is_built_once_said_so_and_replaced_when_the_data_changes(invoke: Invoke) -> None:
    assert "building the page store" in joined(invoke, out="out/1.parquet")[2]
    (store,) = Path("cache").iterdir()
    assert "using the page store" in joined(invoke, out="out/2.parquet")[2]
    assert [store] == list(Path("cache").iterdir())
    other = MASTER.slice(0, 100)
    pq.write_table(other, "r.parquet")
    table, _, notices = joined(invoke, out="out/3.parquet")
    assert "building the page store" in notices
    assert store not in Path("cache").iterdir()
    assert_same_rows(table, reference_join(STREAM, other, "k"))


def test_auto_stays_with_parquet_for_a_short_stream_and_uses_a_store_that_is_there(invoke: Invoke) -> None:
    notices = joined(invoke, "--algorithm", "auto", "--memory", "16MB", out="out/1.parquet")[2]
    assert "page store" not in notices
    assert not Path("cache").exists()
    joined(invoke, out="out/2.parquet")
    table, _, notices = joined(invoke, "--algorithm", "auto", "--memory", "16MB", out="out/3.parquet")
    assert "auto may use an index; using the page store" in notices
    assert_same_rows(table, reference_join(STREAM, MASTER, "k"))


def test_auto_builds_a_store_where_it_pays_and_says_so(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """With costs of a machine on which Parquet is slow to scan and quick to sort."""
    monkeypatch.setattr("semistream.planner.store._BUILD_PASSES", 1e-6)
    table, _, notices = joined(invoke, "--algorithm", "auto", "--memory", "16MB")
    assert "auto: a page store pays: about 0.0 s to build it once" in notices
    assert "building the page store" in notices
    assert_same_rows(table, reference_join(STREAM, MASTER, "k"))


def test_auto_stays_with_parquet_where_the_disk_has_no_room(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semistream.planner.store._BUILD_PASSES", 1e-6)
    monkeypatch.setattr("semistream.cli.master._free_bytes", lambda _: 1000)
    table, _, notices = joined(invoke, "--algorithm", "auto", "--memory", "16MB")
    assert "has 1,000 bytes free" in notices
    assert not Path("cache").exists()
    assert_same_rows(table, reference_join(STREAM, MASTER, "k"))


def test_a_store_that_another_release_built_is_built_again(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as older:
        older.setattr("semistream.cli.store_cache.FORMAT_VERSION", 0)
        joined(invoke, out="out/1.parquet")
    assert "building the page store" in joined(invoke, out="out/2.parquet")[2]
    assert len(list(Path("cache").iterdir())) == 1


def test_scan_operator_reads_parquet_in_place(invoke: Invoke) -> None:
    assert joined(invoke, "--algorithm", "ssbj")[2] == ""
    assert not Path("cache").exists()


def test_summary_for_people(invoke: Invoke) -> None:
    result = invoke(*shlex.split("join --stream s.parquet --master r.parquet --on k --out out/x.parquet"))
    assert result.exit_code == 0
    words = " ".join(result.stdout.split())
    for said in ("algorithm sweepjoin", "how left", "rows out", "rows per second, all in all", "memory allowed 64 MB"):
        assert said in words
    assert "asked" not in words


# ---------------------------------------------------------------------------------------------- mistakes

MISTAKES = {
    "stream that is not there": (["--stream", "nowhere.parquet"], "nowhere.parquet does not exist"),
    "master that is not there": (["--master", "nowhere"], "nowhere does not exist"),
    "folder without Parquet": (["--stream", "out"], "out"),
    "file that is no Parquet": (["--stream", "junk.parquet"], "junk.parquet"),
    "master that is no Parquet": (["--master", "junk.parquet"], "junk.parquet"),
    "key missing in the stream": (["--on", "n=k,nope=city"], "'nope'"),
    "key missing in the master": (["--on", "n"], "'n'"),
    "selected column missing": (["--select", "prise"], "'price'"),
    "key types that differ": (["--on", "city=k"], "int64"),
    "key types that differ, scan": (["--on", "city=k", "--algorithm", "meshjoin"], "int64"),
    "unknown algorithm": (["--algorithm", "mashjoin"], "meshjoin"),
    "budget that is none": (["--memory", "64 parsecs"], "64 parsecs"),
    "budget too small": (["--memory", "1kB"], "at least"),
    "unknown engine": (["--engine", "steam"], "local and spark"),
    "unknown how": (["--how", "sideways"], "inner, left, semi, anti"),
    "no batch": (["--batch-rows", "0"], "at least 1"),
    "output that exists": (["--out", "taken.parquet"], "taken.parquet exists"),
    "output folder that exists": (["--out", "taken"], "taken exists"),
    "output of another format": (["--out", "out/x.csv"], "allowed are a name that ends in .parquet"),
    "output of another format, packed": (["--out", "out/x.parquet.GZ"], "ends in .GZ"),
    "output in capitals": (["--out", "out/x.PARQUET"], "ends in .PARQUET"),
    "folder of files that differ": (["--stream", "mixed"], "b.parquet has the column 'k' as string"),
    "master folder of files that differ": (["--master", "mixed"], "b.parquet has the column 'k' as string"),
    "master folder of files that differ, scan": (
        ["--master", "mixed", "--algorithm", "meshjoin"],
        "b.parquet has the column 'k' as string",
    ),
    "output in no folder": (["--out", "far/away.parquet"], "does not exist"),
    "empty key": (["--on", "k,,n"], "--on"),
    "half a pair": (["--on", "k="], "--on"),
    "key twice": (["--on", "k,k"], "--on"),
    "column twice": (["--select", "price,price"], "--select"),
    "index operator on a broken store": (["--master", "truncated"], "truncated"),
    "wrong checksum": (["--master", "flipped", "--how", "left"], "checksum"),
    "other key than the store's": (["--master", "whole", "--on", "city"], "city"),
    "word that is no number": (["--batch-rows", "many"], "--batch-rows"),
    "unknown option": (["--colour", "red"], "--colour"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(invoke: Invoke, tmp_path: Path, mistake: str) -> None:
    Path("junk.parquet").write_bytes(b"PAR1 but nothing else")
    Path("taken.parquet").write_text("mine")
    Path("taken").mkdir()
    Path("mixed").mkdir()
    pq.write_table(MASTER, "mixed/a.parquet")
    pq.write_table(MASTER.set_column(0, "k", MASTER["k"].cast(pa.string())), "mixed/b.parquet")
    for name in ("whole", "truncated", "flipped"):
        build_pages(MASTER, tmp_path / name, on="k", page_rows=16)
    spoil(tmp_path / "truncated", lambda data: data[: len(data) // 2])
    spoil(
        tmp_path / "flipped",
        lambda data: bytes(b ^ 1 if 1000 <= i < len(data) - 2000 else b for i, b in enumerate(data)),
    )
    before = listing(tmp_path)
    words, expected = MISTAKES[mistake]
    given = {"--stream": "s.parquet", "--master": "r.parquet", "--on": "k", "--out": "out/x.parquet"}
    given.update(zip(words[::2], words[1::2], strict=True))
    result = invoke("join", *(word for pair in given.items() for word in pair), "--json")
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert expected in result.stderr
    assert "error: " in result.stderr.lower()
    assert "Traceback" not in result.stderr
    assert listing(tmp_path) == before
    assert Path("taken.parquet").read_text() == "mine"


def spoil(store: Path, change: Callable[[bytes], bytes]) -> None:
    (pages,) = store.rglob("pages-00000.arrow")
    pages.write_bytes(change(pages.read_bytes()))


def listing(folder: Path) -> list[Path]:
    """Everything but the cache: a page store that is there after an error is whole, and of use next time."""
    return sorted(path for path in folder.rglob("*") if folder / "cache" not in (path, *path.parents))


def test_missing_option(invoke: Invoke) -> None:
    assert invoke("join", "--stream", "s.parquet").exit_code == 2


@pytest.mark.parametrize("out", ["x.parquet", "folder"])
@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt, 130), (OSError, 2)])
def test_nothing_is_left_when_it_ends_early(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, out: str, error: type[BaseException], status: int
) -> None:
    whole = ParquetOutput.write

    def fails_later(self: ParquetOutput, batch: pa.RecordBatch) -> None:
        whole(self, batch)
        raise error("disk full")

    monkeypatch.setattr(ParquetOutput, "write", fails_later)
    words = shlex.split("join --stream s.parquet --master r.parquet --on k --batch-rows 100 --out")
    assert invoke(*words, f"out/{out}").exit_code == status
    assert list(Path("out").iterdir()) == []


@pytest.mark.parametrize("name", ["out.v2", "2026.11", "out.d", "day.one"])
def test_a_folder_may_have_a_dot_in_its_name(invoke: Invoke, name: str) -> None:
    table, _, _ = joined(invoke, out=f"out/{name}")
    assert_same_rows(table, reference_join(STREAM, MASTER, "k"))
    assert Path("out", name).is_dir()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_behind(invoke: Invoke, tmp_path: Path, number: signal.Signals) -> None:
    """A stream of many tiny batches is under way for much longer than it takes to see its output begin."""
    long = pa.table({"k": pa.array(range(200_000), pa.int64())})
    pq.write_table(long, "long.parquet")
    words = shlex.split("join --stream long.parquet --master r.parquet --on k --batch-rows 1 --out out/x.parquet")
    command = [sys.executable, "-m", "semistream.cli", *words]
    # Whoever runs the tests may ignore a signal (nohup does), and children inherit that.
    heard = partial(signal.signal, number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, preexec_fn=heard) as process:
        while not list(Path("out").iterdir()) and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(number)
        out, err = process.communicate(timeout=300)
    assert process.returncode == 128 + number, err
    assert out == ""
    assert "Traceback" not in err
    assert list(Path("out").iterdir()) == []


def test_output_that_appears_meanwhile_is_left_alone(tmp_path: Path) -> None:
    output = ParquetOutput(tmp_path / "x.parquet")
    with output.opened(STREAM.schema):
        output.write(STREAM.to_batches()[0])
        (tmp_path / "x.parquet").write_text("mine")
        with pytest.raises(ConfigError, match="appeared"):
            output.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["x.parquet"]
    assert (tmp_path / "x.parquet").read_text() == "mine"


def test_version(invoke: Invoke) -> None:
    assert invoke("--version").stdout == f"semistream {semistream.__version__}\n"


def test_every_row_of_the_stream_stays_unless_it_is_said_otherwise(invoke: Invoke) -> None:
    table, counts, _ = joined(invoke)
    assert counts["how"] == DEFAULT_HOW == "left"
    assert set(table["n"].to_pylist()) == set(STREAM["n"].to_pylist())


def test_it_runs_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "semistream.cli", "algorithms", "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert len(json.loads(done.stdout)) == len(ALGORITHMS)
