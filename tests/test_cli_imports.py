"""What a command imports: nothing that it does not use, for that is what people wait for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

_PROGRAM = """
import json, sys
from semistream.cli import main
try:
    main()
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def modules(*words: str) -> set[str]:
    """Modules that a command has imported when it ends."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM, *words], capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("words", [["--help"], ["join", "--help"], ["algorithms"], ["algorithms", "ssj", "--json"]])
def test_who_only_asks_does_not_wait_for_the_compiler(words: list[str]) -> None:
    found = modules(*words)
    assert not found & {"numba", "llvmlite", "pandas", "pyspark", "duckdb", "polars"}
    assert ("semistream.algorithms.ssj" in found) == (words[0] == "algorithms")


def test_a_join_imports_its_algorithm_and_not_the_others(tmp_path: Path) -> None:
    table = pa.table({"k": range(100), "v": range(100)})
    for name in ("s", "r"):
        pq.write_table(table, tmp_path / f"{name}.parquet")
    place = {"--stream": tmp_path / "s.parquet", "--master": tmp_path / "r.parquet", "--out": tmp_path / "o.parquet"}
    found = modules("join", "--on", "k", "--algorithm", "ssbj", *(str(word) for pair in place.items() for word in pair))
    assert pq.read_table(tmp_path / "o.parquet").num_rows == 100
    algorithms = {name for name in found if name.startswith("semistream.algorithms.")}
    assert algorithms == {"semistream.algorithms.registry", "semistream.algorithms.ssbj"}
    assert not found & {"pandas", "pyspark", "semistream.planner.auto", "semistream.cost.tune", "semistream.lake.delta"}
    assert "numba" in found
