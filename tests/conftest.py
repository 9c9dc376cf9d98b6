"""What holds for all tests: random input is the same in every run, a slow machine is no failure, JVMs are few."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "semistream",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("thorough", settings.get_profile("semistream"))
settings.load_profile("semistream")

#: tests with Spark that start programs of their own, and those that break queries on purpose, which takes longest
_SPARKS = {
    "programs": ("cluster", "demo", "executors", "java", "kills", "pipeline"),
    "trust": ("trust",),
}


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the kernels once, before the workers of pytest-xdist start: each would compile all of them."""
    if session.config.getoption("numprocesses", None) and not hasattr(session.config, "workerinput"):
        subprocess.run(
            [sys.executable, "-c", "import semistream.algorithms.registry, semistream.lab.workloads.relation"],
            check=True,
        )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, and what can be shared out in the smallest parts last, so that nobody is idle at the end."""
    order = {"tests/spark": 0, "tests/algorithms": 2}
    items.sort(key=lambda item: order.get(item.nodeid.partition("/test_")[0], 1))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Give the tests with Spark to three workers of pytest-xdist, first of all, and share out the others by file.

    Tests that share a Spark session, or what a fixture has made for a file, belong to one worker. Files of tests that
    run for every operator are large, so these come last and are shared out by their last parameter: the operators
    that are tested with it share the master data that was written for it.
    `--dist loadgroup` would do, but pytest-xdist 3.8 writes its groups where pytest 9.2 does not look any more.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ThreeSparks(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, _, case = nodeid.partition("::")
            if file.startswith("tests/algorithms/"):
                name, _, parameters = case.partition("[")
                return f"{file}::{name}[{parameters.rpartition('-')[2]}"
            if not file.startswith("tests/spark/"):
                return file
            name = file.removeprefix("tests/spark/test_")
            return next((group for group, names in _SPARKS.items() if name.startswith(names)), "spark")

    # In the order they are collected in, not those with most tests first.
    config.option.loadscopereorder = False
    return ThreeSparks(config, log)
