"""`--overwrite`: the old output stays until the new one is complete, and nothing else is ever replaced."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.conftest import MASTER, STREAM, Invoke

from semistream.cli import replacing
from semistream.cli.output import ParquetOutput
from semistream.testing import assert_same_rows, reference_join

WORDS = ("join", "--stream", "s.parquet", "--master", "r.parquet", "--on", "k", "--out")


@pytest.mark.parametrize("out", ["x.parquet", "folder"])
@pytest.mark.parametrize("can_exchange", [True, False])
def test_the_new_output_takes_the_place(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, out: str, can_exchange: bool
) -> None:
    if not can_exchange:
        monkeypatch.setattr(replacing, "_exchange", lambda first, second: False)
    assert invoke(*WORDS, out, "--how", "semi").exit_code == 0
    refused = invoke(*WORDS, out)
    assert refused.exit_code == 2
    assert f"--out {out} exists" in refused.stderr
    assert "--overwrite" in refused.stderr
    before = sorted(Path().iterdir())
    assert invoke(*WORDS, out, "--overwrite").exit_code == 0
    assert_same_rows(pq.read_table(out), reference_join(STREAM, MASTER, "k"))
    assert sorted(Path().iterdir()) == before


def test_folders_are_exchanged_in_one_step(tmp_path: Path) -> None:
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    assert replacing._exchange(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old" / "new").exists()
    assert not replacing._exchange(tmp_path / "new", tmp_path / "nowhere")


@pytest.mark.parametrize("out", ["x.parquet", "folder"])
def test_the_old_output_survives_a_failure(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, out: str) -> None:
    assert invoke(*WORDS, out).exit_code == 0
    before = sorted(Path().iterdir())

    def full(self: ParquetOutput, batch: pa.RecordBatch) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(ParquetOutput, "write", full)
    assert invoke(*WORDS, out, "--overwrite").exit_code == 2
    assert_same_rows(pq.read_table(out), reference_join(STREAM, MASTER, "k"))
    assert sorted(Path().iterdir()) == before


def test_nothing_to_replace_is_no_mistake(invoke: Invoke) -> None:
    assert invoke(*WORDS, "x.parquet", "--overwrite").exit_code == 0


def test_what_came_meanwhile_is_left_alone(tmp_path: Path) -> None:
    output = ParquetOutput(tmp_path / "x.parquet", overwrite=True)
    with output.opened(STREAM.schema):
        output.write(STREAM.to_batches()[0])
        (tmp_path / "x.parquet").write_text("mine")
        with pytest.raises(replacing.ConfigError, match="appeared"):
            output.finish()
    assert (tmp_path / "x.parquet").read_text() == "mine"


@pytest.mark.parametrize(
    ("out", "expected"),
    [
        ("s.parquet", "the join reads s.parquet"),
        ("r.parquet", "the join reads r.parquet"),
        ("link.parquet", "it is a link"),
        ("mine", "it holds 'thesis.txt'"),
        ("deep", "it holds 'inner'"),
        ("dir.parquet", "it is a folder, and a file is to be written"),
        ("plain", "it is a file, and a folder is to be written"),
    ],
)
def test_what_is_never_replaced(invoke: Invoke, out: str, expected: str) -> None:
    Path("other.parquet").touch()
    Path("link.parquet").symlink_to("other.parquet")
    for folder in ("mine", "deep/inner", "dir.parquet"):
        Path(folder).mkdir(parents=True)
    Path("mine/thesis.txt").touch()
    Path("plain").touch()
    before = {path: path.lstat().st_ino for path in Path().rglob("*")}
    done = invoke(*WORDS, out, "--overwrite")
    assert done.exit_code == 2
    assert expected in done.stderr
    assert {path: path.lstat().st_ino for path in Path().rglob("*") if "cache" not in path.parts} == before


def test_a_folder_with_the_inputs_is_never_replaced(invoke: Invoke) -> None:
    Path("all").mkdir()
    pq.write_table(STREAM, "all/s.parquet")
    done = invoke("join", "--stream", "all/s.parquet", *WORDS[3:], "all", "--overwrite")
    assert done.exit_code == 2
    assert "the join reads all/s.parquet" in done.stderr
