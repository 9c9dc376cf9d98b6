"""Stores that do not all fit: what is needed last goes first, and nothing that is not ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from semistream.errors import ConfigError
from semistream.lab.shelf import Shelf


def put(folder: Path, name: str, size: int = 1000) -> None:
    """Something that looks like a store of a size."""
    (folder / name).mkdir(parents=True)
    (folder / name / "pages").write_bytes(bytes(size))
    (folder / name / "CURRENT").write_text("")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_store_that_is_needed_last_makes_room(tmp_path: Path) -> None:
    for name in ("soon", "later", "never"):
        put(tmp_path, name)
    shelf = Shelf(tmp_path, 3100, own=True)
    shelf.ahead = [frozenset({"new"}), frozenset({"soon"}), frozenset({"later"})]
    gone: list[str] = []
    shelf.fetch("new", 900, gone.append)
    assert gone == ["never"]
    put(tmp_path, "new")
    shelf.fetch("other", 900, gone.append)
    assert gone == ["never", "later"]
    assert names(tmp_path) == {"soon", "new"}


def test_of_one_figure_the_store_used_longest_ago_goes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        put(tmp_path, name)
    shelf = Shelf(tmp_path, 2100, own=True)
    shelf.ahead = [frozenset({"a", "b", "c"})]
    gone: list[str] = []
    for name in ("b", "a"):
        shelf.fetch(name, 900, gone.append)
    shelf.fetch("c", 900, gone.append)
    assert gone == ["b"]


def test_what_is_there_stays_as_long_as_there_is_room(tmp_path: Path) -> None:
    put(tmp_path, "a")
    shelf = Shelf(tmp_path, 10_000, own=True)
    shelf.fetch("b", 1000, pytest.fail)
    shelf.fetch("a", 1_000_000, pytest.fail)
    assert names(tmp_path) == {"a"}


def test_stores_that_no_figure_needs_are_cleared(tmp_path: Path) -> None:
    for name in ("a", "b"):
        put(tmp_path, name)
    (tmp_path / "orders.parquet").write_bytes(b"")
    shelf = Shelf(tmp_path, 10_000, own=True)
    shelf.ahead = [frozenset({"b"})]
    shelf.clear(lambda _: None)
    assert names(tmp_path) == {"b", "orders.parquet"}


def test_somebody_elses_stores_are_never_removed(tmp_path: Path) -> None:
    put(tmp_path, "theirs")
    shelf = Shelf(tmp_path, 1, own=False)
    put(tmp_path, "ours")
    shelf.fetch("new", 1000, lambda _: None)
    shelf.clear(lambda _: None)
    assert names(tmp_path) == {"theirs"}


def test_a_limit_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sizes from 1"):
        Shelf(tmp_path, 0, own=True)
