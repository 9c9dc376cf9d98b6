"""What holds for all tests: random input is the same in every run, a slow machine is no failure, one JVM is enough."""

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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Give the tests with Spark to one worker of pytest-xdist, first of all, and share out the others one by one.

    `--dist loadgroup` would do, but pytest-xdist 3.8 writes its groups where pytest 9.2 does not look any more.
    """
    from xdist.scheduler import LoadScopeScheduling

    class OneSpark(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "spark" if nodeid.startswith("tests/spark/") else nodeid

    return OneSpark(config, log)
