"""One set of real runs for all tests of this folder; in a parallel run one worker makes it for all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cost.runs import Runs

_HERE = Path(__file__).parent


# First, for pytest-xdist reads the marks in the same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents and "runs" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("cost"))


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("cost"))
