"""Whatever asks for `operator` runs once for every registered one; `make_master` writes R in any form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.master.changed import build_changed
from tests.master.sharded import build_shards
from tests.strategies import PAGE_ROWS

import semistream
from semistream.algorithms.registry import ALGORITHMS
from semistream.master.memory import MemoryMaster

#: The forms master data can take. Parquet in place has no index, so only scan operators get it.
FORMS = (
    "memory",
    "pages",
    "direct",
    "shards",
    "direct shards",
    "frequency",
    "1 run",
    "parquet",
)
#: more forms, of rows that came by many changes; they take longer to write
MANY_RUNS = ("8 runs", "direct 8 runs", "frequency 8 runs")


def forms_of(operator: str) -> tuple[str, ...]:
    return FORMS[:-1] if ALGORITHMS[operator].needs_index else FORMS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "operator" in metafunc.fixturenames:
        metafunc.parametrize("operator", sorted(ALGORITHMS))


@pytest.fixture(scope="session")
def make_master(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, object]]:
    """`make_master(table, on, form)` gives the arguments with which `open_join` opens that form of the table.

    A table is written once for a session and form: the same object comes back for the same arguments.
    """
    folder = tmp_path_factory.mktemp("masters")
    made: dict[tuple[object, ...], tuple[dict[str, object], pa.Table]] = {}

    def make(
        table: pa.Table, on: str | list[str], form: str = "pages", page_rows: int = PAGE_ROWS, **options: int
    ) -> dict[str, object]:
        # The table is kept with the answer, so its id is not given to another one.
        key = (id(table), str(on), form, page_rows, *sorted(options.items()))
        if key not in made:
            made[key] = (_write(folder / str(len(made)), table, on, form, page_rows, options), table)
        return dict(made[key][0])

    return make


def _write(
    path: Path, table: pa.Table, on: str | list[str], form: str, page_rows: int, options: dict[str, int]
) -> dict[str, object]:
    if form == "memory":
        return {"master": MemoryMaster(table, on, page_rows=page_rows, **options)}
    if form == "parquet":
        path.mkdir()
        # Two files of small row groups, and the second one ends with a short group.
        half = table.num_rows // 2
        pq.write_table(table.slice(0, half), path / "a.parquet", row_group_size=page_rows)
        pq.write_table(table.slice(half), path / "b.parquet", row_group_size=page_rows)
        return {"master": path}
    if "run" in form:
        runs = 1 if "1 run" in form else 8
        build_changed(table, path, on, page_rows, runs, by_frequency=form.startswith("frequency"), **options).close()
        return {"master": path, "reads": "direct" if form.startswith("direct") else "mapped"}
    if form == "frequency":
        keys = table.select([on] if isinstance(on, str) else on)
        counts = np.random.default_rng(table.num_rows).integers(0, 100, table.num_rows)
        semistream.build_pages(
            table, path, on=on, page_rows=page_rows, order="frequency", frequency=(keys, counts), **options
        )
        return {"master": path}
    if form.endswith("shards"):
        # Many short pages, in the middle of R as well.
        build_shards(table, path, on, page_rows, shards=7, **options)
    else:
        semistream.build_pages(table, path, on=on, page_rows=page_rows, **options)
    return {"master": path, "reads": "direct" if form.startswith("direct") else "mapped"}
