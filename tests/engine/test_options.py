"""Options say what is allowed; whatever else is given is refused by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from semistream.algorithms.registry import ALGORITHMS
from semistream.engine.options import CommonOptions, defaults, make_options, option, rules
from semistream.errors import ConfigError


@dataclass(frozen=True)
class Options(CommonOptions):
    """Options of no algorithm."""

    share: float = option(0.5, "a part", above=0, below=1)
    pages: int | None = option(None, "a number of pages", kind=int, least=1)
    quick: bool = option(False, "whether to hurry")


@pytest.mark.parametrize(
    "given",
    [{}, {"share": 0.999}, {"share": 1e-9}, {"pages": 1}, {"pages": None}, {"quick": True}, {"buffer_bytes": 1}],
)
def test_what_is_allowed(given: dict[str, Any]) -> None:
    made = make_options(Options, given, "myjoin")
    assert {name: getattr(made, name) for name in given} == given


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"share": 0}, "share=0 .*above 0 and below 1"),
        ({"share": 1.0}, "share=1.0 .*above 0 and below 1"),
        ({"share": float("nan")}, "share=nan"),
        ({"share": "0.5"}, "share='0.5'"),
        ({"share": None}, "share=None"),
        ({"share": True}, "share=True"),
        ({"pages": 0}, "pages=0 .*whole numbers from 1"),
        ({"pages": 2.5}, "pages=2.5 .*whole numbers"),
        ({"pages": True}, "pages=True"),
        ({"quick": 1}, "quick=1 .*True and False"),
        ({"buffer_bytes": -1}, "buffer_bytes=-1 .*from 1"),
        ({"shares": 0.5}, "myjoin has no option 'shares'; did you mean 'share'"),
        ({"zzz": 0}, "myjoin has no option 'zzz'; it takes buffer_bytes, pages, quick, share"),
    ],
)
def test_what_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_options(Options, given, "myjoin")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_default_is_allowed_and_every_option_explained(name: str) -> None:
    kind = ALGORITHMS[name].options
    for option_name, rule in rules(kind).items():
        assert rule.accepts(defaults(kind)[option_name])
        assert len(rule.about) > 10
