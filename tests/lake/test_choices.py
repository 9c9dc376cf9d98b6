"""Choices of encodings that are used again: by files of one origin, for a while."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from semistream.lake.choices import ALIKE_WRITERS, Choices
from semistream.lake.encoding import SAMPLE_ROWS
from semistream.lake.table import open_table
from semistream.lake.target import Target

ROWS = 2 * SAMPLE_ROWS
FEW = pa.table({"v": np.arange(ROWS) % 5})
MANY = pa.table({"v": np.random.default_rng(1).integers(0, 1 << 62, ROWS)})
TARGET = Target("here", FEW.schema.serialize().to_pybytes(), prefix="part-1", origin="a query")


def with_dictionary(choices: Choices, target: Target, rows: pa.Table) -> bool:
    return choices.options(target, rows)["use_dictionary"] == ["v"]


def test_the_next_writers_follow_the_choice_of_the_first() -> None:
    choices = Choices()
    assert with_dictionary(choices, TARGET, FEW)
    later = replace(TARGET, folder="there", prefix="part-2")
    followed = [with_dictionary(choices, later, MANY) for _ in range(2 * ALIKE_WRITERS)]
    assert followed == [True] * (ALIKE_WRITERS - 1) + [False] * (ALIKE_WRITERS + 1)


def test_others_choose_for_themselves() -> None:
    choices = Choices()
    assert with_dictionary(choices, TARGET, FEW)
    for other in (
        replace(TARGET, origin="another query"),
        replace(TARGET, row_group_bytes=TARGET.row_group_bytes // 2),
        replace(TARGET, schema=pa.schema([("v", pa.int64()), ("w", pa.int64())]).serialize().to_pybytes()),
        replace(TARGET, origin=""),
    ):
        rows = MANY if other.schema == TARGET.schema else MANY.append_column("w", MANY["v"])
        assert not with_dictionary(choices, other, rows)


def test_few_rows_decide_for_themselves_alone() -> None:
    choices = Choices()
    assert with_dictionary(choices, TARGET, FEW.slice(0, SAMPLE_ROWS - 1))
    assert not with_dictionary(choices, TARGET, MANY)


def test_without_an_origin_every_writer_looks_at_its_rows() -> None:
    choices = Choices()
    alone = replace(TARGET, origin="")
    assert with_dictionary(choices, alone, FEW)
    assert not with_dictionary(choices, alone, MANY)


def test_what_is_remembered_has_an_end() -> None:
    choices = Choices()
    for number in range(100):
        with_dictionary(choices, replace(TARGET, origin=str(number)), FEW)
    assert not with_dictionary(choices, replace(TARGET, origin="0"), MANY)
    assert with_dictionary(choices, replace(TARGET, origin="99"), MANY)


def test_batches_of_a_query_have_one_origin_and_queries_and_tables_have_their_own(tmp_path: Path) -> None:
    origins = []
    for name in ("one", "other"):
        table = open_table(str(tmp_path / name))
        table.prepare(FEW.schema)
        origins += [table.target(app, batch).origin for app, batch in (("a", 0), ("a", 1), ("b", 0))]
    assert origins[0] == origins[1] != ""
    assert len(set(origins)) == 4
