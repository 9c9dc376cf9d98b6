"""Stores that are kept up to date beside whatever uses them: when, how old they may be, and what failures do."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.sources.tables import FIRST, SqliteTable
from tests.sources.test_stores import check, watched

from semistream.errors import ConfigError, SourceError
from semistream.master.format import current_version
from semistream.sources.keeper import Keeper, Schedule
from semistream.testing import FakeClock


@pytest.fixture
def table(tmp_path: Path) -> SqliteTable:
    return SqliteTable(tmp_path)


def keeper(table: SqliteTable, schedule: Schedule | None, said: list[str], clock: FakeClock) -> Keeper:
    return Keeper(table.path.parent / "r.pages", watched(table, "sqlite"), schedule, said.append, clock=clock)


def test_a_store_is_built_refreshed_and_kept_when_that_fails(table: SqliteTable) -> None:
    said: list[str] = []
    clock = FakeClock()
    kept = keeper(table, None, said, clock)
    kept.start()
    assert "built from sqlite:" in said[-1]
    table.update(1, "eins", 70)
    assert kept.refresh().version == 2
    assert said[-1].endswith("version 2")
    check(kept.path, [(1, "eins", 70), *FIRST[1:]])
    kept.refresh()
    assert len(said) == 2, "nothing changed, and nothing is said"
    table.path.rename(table.path.with_name("away"))
    with pytest.raises(SourceError, match=r"there is no file .* \(version 2 of .* stays in force\)"):
        kept.refresh()
    assert current_version(kept.path) == 2


def test_what_is_too_old_is_told_once_or_ends_the_query(table: SqliteTable) -> None:
    said: list[str] = []
    clock = FakeClock()
    kept = keeper(table, Schedule(10, 60), said, clock)
    kept.refresh()
    clock.advance(60)
    kept.check()
    assert len(said) == 1
    clock.advance(1)
    kept.check()
    kept.check()
    assert len(said) == 2, "it is said once"
    assert "is 61 s old, more than max_age = 60 s" in said[1]
    kept.refresh()
    kept.check()
    clock.advance(61)
    kept.check()
    assert len(said) == 3, "and again when it happens again"
    strict = keeper(table, Schedule(10, 60, "fail"), said, clock)
    strict.refresh()
    strict.check()
    clock.advance(61)
    with pytest.raises(SourceError, match="more than max_age"):
        strict.check()


def test_a_thread_refreshes_says_failures_and_goes_on(table: SqliteTable) -> None:
    """Failed refreshes are said, each in one line with source and version; the next one is as if nothing had been."""
    said: list[str] = []
    news = threading.Condition()

    def say(line: str) -> None:
        with news:
            said.append(line)
            news.notify_all()

    kept = Keeper(table.path.parent / "r.pages", watched(table, "sqlite"), Schedule(0.02), say)
    kept.start()
    try:
        away = table.path.with_name("away")
        table.path.rename(away)
        with news:
            assert news.wait_for(lambda: sum("was not refreshed" in line for line in said) >= 2, 60)
        failed = next(line for line in said if "was not refreshed" in line)
        assert "version 1 of" in failed
        assert failed.count("\n") == 0
        assert kept.failure is not None
        away.rename(table.path)
        table.update(2, "zwei", 71)
        with news:
            assert news.wait_for(lambda: any("version 2" in line for line in said), 60), said
    finally:
        kept.stop()
    assert not any(thread.name == "refresh of r.pages" for thread in threading.enumerate())
    check(kept.path, [FIRST[0], (2, "zwei", 71), *FIRST[2:]])


def test_a_store_that_is_too_old_at_the_start_is_refreshed_first(table: SqliteTable) -> None:
    said: list[str] = []
    keeper(table, None, said, FakeClock()).start()
    table.update(1, "eins", 70)
    kept = keeper(table, Schedule(1e-9, 1e-9, "fail"), said, FakeClock())
    kept.start()
    kept.stop()
    assert any("version 2" in line for line in said)


@pytest.mark.parametrize("arguments", [(10, 5), (10, 60, "shout")])
def test_schedules_that_cannot_work(arguments: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match=r"max_age|on_stale"):
        Schedule(*arguments)
