"""The README's examples are run, so they stay true."""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_python_example_prints_the_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, "README.md", "exec"), {})
    assert "'order': 102, 'sku': 8, 'name': None, 'price': None" in printed.getvalue()
    assert os.path.isdir("products.pages")


def test_the_map_of_the_code_names_what_exists() -> None:
    root = Path(__file__).parent.parent
    names = re.findall(r"^  ([a-z_]+(?:\.py|/))", README, flags=re.MULTILINE)
    assert len(names) > 8
    for name in names:
        assert (root / "src" / "semistream" / name).exists(), name
