"""The budget is one number for everything an operator holds, it is never passed, and it is the truth."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.strategies import wide_table

from semistream import open_join
from semistream.algorithms.registry import ALGORITHMS
from semistream.errors import BudgetError
from semistream.testing import assert_same_rows, reference_join, run_join, smallest_budget, split

MakeMaster = Callable[..., dict[str, object]]

RNG = np.random.default_rng(8)
MASTER = pa.table({"k": RNG.permutation(3000), **{f"m{i}": RNG.integers(0, 9, 3000) for i in range(6)}})
STREAM = pa.table({"k": np.minimum(RNG.zipf(1.3, 12_000), 3300) - 1, "n": np.arange(12_000)})


@pytest.mark.parametrize("form", ["memory", "pages", "direct"])
def test_peak_stays_below_the_budget(operator: str, form: str, make_master: MakeMaster) -> None:
    opened = make_master(MASTER, "k", form, page_rows=32)
    arguments = {"on": "k", "how": "left", "stream_schema": STREAM.schema, **opened}
    least = smallest_budget(operator, **arguments)
    # Past the page cache every look-up is a seek: a shorter stream says as much.
    stream = STREAM.slice(0, 3_000) if form == "direct" else STREAM
    expected = reference_join(stream, MASTER, "k", "left")
    for memory in (least, int(least * 1.1), 3 * least, 10**7):
        out = []
        with open_join(operator, memory=memory, **arguments) as join:
            assert join.memory.budget_bytes == memory
            for batch in split(stream, 4_000):
                for joined in join.push(batch):
                    out.append(joined)
                    assert join.memory.bytes_now <= join.memory.peak_bytes <= memory
            out.extend(join.drain())
            assert 0 < join.memory.peak_bytes <= memory
        assert_same_rows(pa.Table.from_batches(out), expected)


def test_parts_add_up(operator: str, make_master: MakeMaster) -> None:
    """The report by component says the same as the sum."""
    with open_join(operator, on="k", memory="2MB", **make_master(MASTER, "k")) as join:
        run_join(join, split(STREAM, 4_000))
        report = join.memory
        assert sum(report.now.values()) == report.bytes_now
        assert all(size >= 0 for size in report.now.values())


def test_long_values_are_charged_for_what_they_are(operator: str, make_master: MakeMaster) -> None:
    """Strings of very different lengths: no budget may rest on the mean."""
    rng = np.random.default_rng(9)
    lengths = np.where(rng.random(400) < 0.03, 9_000, 5)
    master = pa.table({"k": np.arange(400), "text": ["x" * int(size) for size in lengths]})
    keys = rng.integers(0, 420, 3_000)
    stream = pa.table({"k": keys, "note": ["y" * (4_000 if i % 97 == 0 else 3) for i in range(3_000)]})
    arguments = {"on": "k", "how": "left", "stream_schema": stream.schema, **make_master(master, "k")}
    least = smallest_budget(operator, **arguments)
    expected = reference_join(stream, master, "k", "left")
    for memory in (int(least * 1.2), 4 * least):
        with open_join(operator, memory=memory, **arguments) as join:
            actual = run_join(join, split(stream, 500))
            assert join.memory.peak_bytes <= memory
        assert_same_rows(actual, expected)


@pytest.mark.parametrize("form", ["memory", "pages", "direct"])
def test_smallest_budget_is_exact(operator: str, form: str, make_master: MakeMaster) -> None:
    """What the refusal names works; a byte less is refused again, with the same number."""
    ids = np.random.default_rng(1).integers(0, 50, 300)
    stream, master = wide_table(ids[:200]), wide_table(ids[100:], seed=1)
    arguments = {"on": "k", "stream_schema": stream.schema, **make_master(master, "k", form)}
    least = smallest_budget(operator, **arguments)
    with open_join(operator, memory=least, **arguments) as join:
        assert_same_rows(run_join(join, split(stream, 64)), reference_join(stream, master, "k"))
        assert join.memory.peak_bytes <= least
    with pytest.raises(BudgetError) as caught:
        open_join(operator, memory=least - 1, **arguments)
    assert caught.value.minimum_bytes == least


def resident_rows(folder: Path, *arguments: str) -> list[dict[str, object]]:
    script = Path(__file__).parents[2] / "benchmarks" / "memory.py"
    command = [sys.executable, str(script), "--json", "--folder", str(folder), "--rows", "500000", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_resident_memory_obeys_the_budget(tmp_path: Path) -> None:
    """R = 60 MB, a budget of 16 MB, seen from outside the process, for a scan and an index operator."""
    chosen = {operator.access: name for name, operator in ALGORITHMS.items()}
    limits = ["--budgets", "16MB", "--tuples", "500000", "--seconds", "2"]
    rows = resident_rows(tmp_path, *chosen.values(), *limits)
    assert len(rows) == 2 * len(chosen)
    assert [row for row in rows if not row["ok"]] == []
