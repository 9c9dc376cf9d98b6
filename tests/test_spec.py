"""What a join is asked to do is checked before anything runs."""

from __future__ import annotations

import pytest

from semistream.errors import BudgetError, ConfigError
from semistream.spec import JoinSpec, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"), [("64MB", 64_000_000), ("1.5 GiB", 1_610_612_736), ("512", 512), (".5kb", 500), (7, 7)]
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["64 parsecs", "", "MB", "-1MB", "0", 0, -5, True, None, "1e9", "9999999TB"])
def test_what_is_no_size_is_refused_by_name(text: object) -> None:
    with pytest.raises(BudgetError, match="64MB"):
        parse_bytes(text)  # type: ignore[arg-type]


def test_the_forms_of_on() -> None:
    assert JoinSpec.make("k").stream_on == ("k",)
    assert JoinSpec.make(["a", "b"]).master_on == ("a", "b")
    both = JoinSpec.make({"sku": "id"})
    assert (both.stream_on, both.master_on) == (("sku",), ("id",))


@pytest.mark.parametrize(
    "wrong", [{"on": []}, {"on": ["a", "a"]}, {"on": "k", "how": "outer"}, {"on": "k", "select": "name"}, {"on": [1]}]
)
def test_wrong_specs_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        JoinSpec.make(**wrong)  # type: ignore[arg-type]
