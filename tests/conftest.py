"""What holds for all tests: random input is the same in every run, a slow machine is no failure, JVMs are few."""

from __future__ import annotations

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
settings.load_profile("semistream")

#: tests with Spark that start programs of their own, and those that break queries on purpose, which takes longest
_SPARKS = {
    "programs": ("cluster", "demo", "executors", "java", "kills", "pipeline"),
    "trust": ("trust",),
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Give the tests with Spark to three workers of pytest-xdist, first of all, and share out the others one by one.

    Those of a worker share a Spark session.
    `--dist loadgroup` would do, but pytest-xdist 3.8 writes its groups where pytest 9.2 does not look any more.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ThreeSparks(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if not nodeid.startswith("tests/spark/"):
                return nodeid
            name = nodeid.removeprefix("tests/spark/test_")
            return next((group for group, names in _SPARKS.items() if name.startswith(names)), "spark")

    return ThreeSparks(config, log)
