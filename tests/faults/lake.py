"""Results written to tables of a lake: after any fault each row is there once, as soon as the batch was tried again.

Calls of delta-rs, and of the database of an Iceberg catalog, are not seen by the harness; for these formats it strikes
what this project does around them. `tests/lake/kills.py` kills at any time, whoever is at work.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.faults.harness import Scenario, Verdict, compare
from tests.lake.lakes import SCHEMA, expected, found_by, open_lake, write_batch

from semistream.lake.table import Committed, LakeTable

_APP = "query"
FORMATS = ("parquet", "delta", "iceberg")


def _here(folder: Path) -> Path:
    """One path for a folder and its copies: an Iceberg table knows where it is."""
    link = folder.parent / "here"
    link.unlink(missing_ok=True)
    link.symlink_to(folder)
    return link


def _open(folder: Path, format: str, by: Sequence[str]) -> LakeTable:
    table = open_lake(_here(folder), format)
    table.prepare(SCHEMA, by)
    return table


def _write(folder: Path, format: str, by: Sequence[str], number: int) -> Committed:
    """One task whose rows are divided, or four whose files the commit merges."""
    return write_batch(_open(folder, format, by), _APP, number, tasks=1 if by else 4, rows=4)


def _imported(folder: Path) -> None:
    """What children of this process need, so that not every one of them has to import it."""
    import deltalake
    import pyarrow.dataset
    import pyiceberg.catalog.sql
    import pyiceberg.io.pyarrow

    del deltalake, pyarrow, pyiceberg


def _prepared(format: str, by: Sequence[str]) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        _imported(folder)
        # In a program of its own: what delta-rs starts in a process does not outlive a fork of it.
        child = multiprocessing.get_context("spawn").Process(target=_write, args=(folder, format, by, 0))
        child.start()
        child.join()
        assert child.exitcode == 0

    return prepare


def _acting(format: str, by: Sequence[str], number: int) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        _write(folder, format, by, number)

    return act


_READERS = {"parquet": "pyarrow", "delta": "delta-rs", "iceberg": "pyiceberg"}


def _seen(folder: Path, format: str, *allowed: list[int]) -> Verdict:
    return compare(found_by(_READERS[format], _here(folder), format), *(expected(numbers, 4) for numbers in allowed))


def _checking(format: str, by: Sequence[str]) -> Callable[[Path, bool], Verdict]:
    def check(folder: Path, finished: bool) -> Verdict:
        found = Verdict()
        if format == "parquet":
            # Without a log to look into, readers may see a part of a committed batch while it gets its names.
            rows = found_by("pyarrow", folder, format)
            found += compare([row for row in rows if row[0] < 1000], expected([0], 4))
            later = [row for row in rows if row[0] >= 1000]
            assert set(later) <= set(expected([1], 4)), "rows that nobody wrote"
            assert len(set(later)) == len(later), "rows are doubled"
            assert not later or any((folder / ".t.semistream/log").glob("*/000000000001.batch"))
        else:
            found += _seen(folder, format, *([] if finished else [[0]]), [0, 1])
        was_done = _open(folder, format, by).done(_APP, 1)
        assert was_done or not finished
        assert _write(folder, format, by, 1).skipped == was_done
        found += _seen(folder, format, [0, 1])
        _write(folder, format, by, 2)
        table = _open(folder, format, by)
        table.clean(0)
        assert table.clean(0) == []
        left = list((folder / ".t.semistream").glob("staged/*/*"))
        assert not left, left
        return found + _seen(folder, format, [0, 1, 2])

    return check


def _created(format: str) -> Callable[[Path, bool], Verdict]:
    def check(folder: Path, finished: bool) -> Verdict:
        was_done = _open(folder, format, ["p"]).done(_APP, 0)
        assert was_done or not finished
        assert _write(folder, format, ["p"], 0).skipped == was_done
        return _seen(folder, format, [0])

    return check


SCENARIOS = [
    *(
        Scenario(f"lake: {words} {format}", _prepared(format, by), _acting(format, by, 1), _checking(format, by))
        for format in FORMATS
        for words, by in (("commit to", ()), ("commit divided to", ("p",)))
    ),
    *(Scenario(f"lake: create {format}", _imported, _acting(format, ["p"], 0), _created(format)) for format in FORMATS),
]
