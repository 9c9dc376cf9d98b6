"""What runs once for every algorithm is asked for here as in tests/algorithms."""

from tests.algorithms.conftest import make_master, pytest_generate_tests

__all__ = ["make_master", "pytest_generate_tests"]
