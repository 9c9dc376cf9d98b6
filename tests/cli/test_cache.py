"""`semistream cache`: what is there, of what, and what may go; nothing that somebody uses."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.cli.conftest import MASTER, Invoke

from semistream import open_master
from semistream.cli.store_cache import NOTE
from semistream.master.publish import scratch_folder

DAY = 86_400.0


def join(invoke: Invoke, master: str = "r.parquet", algorithm: str = "sweepjoin") -> Path:
    """The store that a join has used."""
    before = {path: _used(path) for path in _stores()}
    words = ("--stream", "s.parquet", "--on", "k", "--algorithm", algorithm, "--out", "x.parquet", "--overwrite")
    done = invoke("join", "--master", master, *words)
    assert done.exit_code == 0, done.output
    (store,) = [path for path in _stores() if before.get(path) != _used(path)]
    return store


def _stores() -> list[Path]:
    return sorted(path for path in Path("cache").glob("*") if path.is_dir()) if Path("cache").exists() else []


def _used(path: Path) -> int:
    return (path / NOTE).stat().st_mtime_ns if (path / NOTE).exists() else 0


def age(store: Path, days: float) -> None:
    then = time.time() - days * DAY
    os.utime(store / NOTE, (then, then))


def listed(invoke: Invoke) -> list[dict[str, Any]]:
    done = invoke("cache", "list", "--json")
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def pruned(invoke: Invoke, *words: object) -> dict[str, Any]:
    done = invoke("cache", "prune", *words, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_list(invoke: Invoke, tmp_path: Path) -> None:
    assert listed(invoke) == []
    assert "0 stores" in invoke("cache", "list").stdout
    store = join(invoke)
    (found,) = listed(invoke)
    assert found["path"] == str(tmp_path / store)
    assert found["master"] == str(tmp_path / "r.parquet")
    assert found["on"] == ["k"]
    assert found["bytes"] == sum(file.stat().st_size for file in store.rglob("*") if file.is_file())
    assert abs(found["last_used"] - time.time()) < 60
    assert found["state"] == "current"
    assert not found["in_use"]
    text = invoke("cache", "list").stdout
    assert "R is as it was" in text
    assert str(tmp_path / "r.parquet") in text


def test_use_is_remembered(invoke: Invoke) -> None:
    age(join(invoke), 40)
    assert time.time() - listed(invoke)[0]["last_used"] > 39 * DAY
    join(invoke)
    assert time.time() - listed(invoke)[0]["last_used"] < DAY


def test_states(invoke: Invoke) -> None:
    pq.write_table(MASTER, "other.parquet")
    store, other = join(invoke), join(invoke, "other.parquet")
    hot = join(invoke, algorithm="oxhybridjoin")
    nobody_knows = join(invoke, "other.parquet", "oxhybridjoin")
    (nobody_knows / NOTE).unlink()
    cut_short = store.with_name(f"x-{'0' * 16}-{'0' * 16}")
    (cut_short / ".build-abc").mkdir(parents=True)
    Path("cache/profile.json").touch()
    Path("cache/mine").mkdir()
    Path("other.parquet").unlink()
    pq.write_table(MASTER.slice(1), "r.parquet")
    states = {Path(each["path"]).name: each["state"] for each in listed(invoke)}
    assert states == {
        store.name: "changed",
        hot.name: "changed",
        other.name: "gone",
        nobody_knows.name: "unknown",
        cut_short.name: "unfinished",
    }
    gone = pruned(invoke, "--dry-run")
    assert {Path(each["path"]).name for each in gone["removed"]} == states.keys() - {nobody_knows.name}
    assert set(_stores()) >= {store, hot, other, nobody_knows, cut_short}
    assert pruned(invoke)["removed"] == gone["removed"]
    assert _stores() == sorted([nobody_knows, Path("cache/mine")])
    assert Path("cache/profile.json").exists()


def test_prune_by_age_and_size(invoke: Invoke) -> None:
    names = ["a.parquet", "b.parquet", "c.parquet"]
    for name in names:
        pq.write_table(MASTER, name)
    stores = [join(invoke, name) for name in names]
    for store, days in zip(stores, (20, 40, 10), strict=True):
        age(store, days)
    assert [Path(each["path"]).name for each in listed(invoke)] == [stores[i].name for i in (1, 0, 2)]
    assert pruned(invoke)["removed"] == []
    assert pruned(invoke, "--older-than", "50d")["removed"] == []
    would = invoke("cache", "prune", "--older-than", "30d", "--dry-run")
    assert "would remove" in would.stdout
    assert len(_stores()) == 3
    assert len(pruned(invoke, "--older-than", "30d")["removed"]) == 1
    assert _stores() == sorted([stores[0], stores[2]])
    each = listed(invoke)[0]["bytes"]
    assert pruned(invoke, "--max-size", 2 * each)["removed"] == []
    assert pruned(invoke, "--max-size", int(1.5 * each))["bytes"] == each
    assert _stores() == [stores[2]]
    said = invoke("cache", "prune", "--max-size", "0")
    assert said.stdout.startswith("removed ")
    assert _stores() == []
    assert list(Path("cache").iterdir()) == []


def test_what_is_in_use_stays(invoke: Invoke) -> None:
    store = join(invoke)
    age(store, 100)
    reader = open_master(store, "k")
    (found,) = listed(invoke)
    assert found["in_use"]
    assert found["processes"] == [os.getpid()]
    done = pruned(invoke, "--older-than", "1d")
    assert done["removed"] == []
    assert "in use" in done["kept"][found["path"]]
    # Its data change: a join builds anew, and does not take the old store from under its reader.
    pq.write_table(MASTER.slice(1), "r.parquet")
    newer = join(invoke)
    assert _stores() == sorted([store, newer])
    assert reader.n_rows == 200
    reader.close()
    assert [each["path"] for each in pruned(invoke)["removed"]] == [found["path"]]
    assert _stores() == [newer]


def test_what_is_being_built_or_was_just_used_stays(invoke: Invoke) -> None:
    store = join(invoke)
    kept = pruned(invoke, "--max-size", "0")["kept"]
    assert "about to open it" in next(iter(kept.values()))
    building = store.with_name(f"x-{'0' * 16}-{'0' * 16}")
    with scratch_folder(building):
        assert str(building.absolute()) in pruned(invoke)["kept"]
        assert building.exists()


def test_what_a_killed_prune_left_goes(invoke: Invoke) -> None:
    store = join(invoke)
    store.rename(store.with_name(f".{store.name}.removed-abcd"))
    assert listed(invoke) == []
    pruned(invoke)
    assert list(Path("cache").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [(("--older-than", "soon"), "'soon' is not a duration"), (("--max-size", "little"), "--max-size 'little'")],
)
def test_mistakes(invoke: Invoke, words: tuple[str, ...], expected: str) -> None:
    done = invoke("cache", "prune", *words)
    assert done.exit_code == 2
    assert expected in done.stderr
