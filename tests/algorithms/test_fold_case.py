"""`fold_case`: names that differ in case only are kept apart like equal ones."""

from __future__ import annotations

import pyarrow as pa
import pytest

from semistream.engine.join import SemiStreamJoin
from semistream.errors import SchemaError
from semistream.planner.open import open_request
from semistream.spec import JoinRequest

MASTER = pa.table({"K": [1], "x": [2], "X": [3], "y": [4]})


def names(*stream: str, fold_case: bool, select: list[str] | None = None) -> list[str]:
    schema = pa.schema([(name, pa.int64()) for name in ("k", *stream)])
    request = JoinRequest.make(algorithm="meshjoin", on={"k": "K"}, select=select, fold_case=fold_case)
    with open_request(MASTER, request) as join:
        assert isinstance(join, SemiStreamJoin)
        return list(join.check(schema).names)


def test_result_names() -> None:
    assert names("Y", fold_case=False) == ["k", "Y", "x", "X", "y"]
    assert names("Y", fold_case=True) == ["k", "Y", "x", "X_right", "y_right"]
    assert names(fold_case=False, select=["K", "y"]) == ["k", "K", "y"]
    assert names(fold_case=True, select=["K", "y"]) == ["k", "y"]
    with pytest.raises(SchemaError, match="'y_right' in the result"):
        names("Y", "Y_RIGHT", fold_case=True)
