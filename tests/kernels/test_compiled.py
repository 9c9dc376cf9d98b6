"""The package is imported wherever it is installed, also where neither its folder nor a home can be written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from numba.core.errors import TypingError

import semistream
from semistream.kernels import compiled

#: Root may write everywhere: it gives the right to do so up, for good, before the interpreter starts anew.
_BOUND = "import ctypes, os, sys; ctypes.CDLL(None).prctl(24, 1, 0, 0, 0); os.execv(sys.executable, sys.argv[1:])"
_PROGRAM = """
import numpy as np
from semistream.kernels.raw import address_of, peek_i64
value = np.array([77])
assert peek_i64(value.ctypes.data) == 77
from numba.core import config
print(sum(peek_i64.stats.cache_hits.values()), config.CACHE_DIR)
"""


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Path]:
    """The package in a folder that cannot be written, without compiled code."""
    site = tmp_path / "site"
    source = Path(semistream.__file__).parent
    shutil.copytree(source, site / "semistream", ignore=shutil.ignore_patterns("__pycache__"))
    folders = [site, *(path for path in site.rglob("*") if path.is_dir())]
    for path in folders:
        path.chmod(0o555)
    yield site
    for path in folders:
        path.chmod(0o755)


def _run(site: Path, temporary: Path, program: str = _PROGRAM) -> tuple[int, str]:
    """Cache hits of a kernel and the folder that numba was given, in a fresh process."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "XDG_"))}
    environment |= {
        "PYTHONPATH": str(site),
        "HOME": "/proc/nonexistent",
        "TMPDIR": str(temporary),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", _BOUND, sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    hits, _, folder = done.stdout.partition(" ")
    return int(hits), folder.strip()


def test_compiled_code_is_kept_in_a_private_folder(installed: Path, tmp_path: Path) -> None:
    hits, folder = _run(installed, tmp_path)
    private = tmp_path / f"semistream-{os.geteuid()}"
    assert hits == 0
    assert Path(folder).parent == private
    assert private.stat().st_mode & 0o777 == 0o700
    assert any(private.rglob("*.nbc"))
    assert _run(installed, tmp_path) == (1, folder)


def test_a_folder_that_others_may_write_is_not_used(installed: Path, tmp_path: Path) -> None:
    private = tmp_path / f"semistream-{os.geteuid()}"
    private.mkdir()
    private.chmod(0o777)
    assert _run(installed, tmp_path) == (0, "")
    private.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    private.symlink_to(elsewhere)
    assert _run(installed, tmp_path) == (0, "")
    assert list(elsewhere.iterdir()) == []


def test_where_nothing_can_be_written_kernels_are_compiled_for_the_process(installed: Path, tmp_path: Path) -> None:
    program = "import tempfile\ntempfile.tempdir = '/proc/nonexistent'\n" + _PROGRAM
    assert _run(installed, tmp_path, program) == (0, "")


def test_a_place_that_numba_finds_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = os.environ.get("NUMBA_CACHE_DIR")

    @compiled.njit("int64(int64)", cache=True)
    def twice(value: int) -> int:
        return 2 * value

    assert twice(4) == 8
    assert twice._cache.cache_path is not None
    assert os.environ.get("NUMBA_CACHE_DIR") == before
    assert list(tmp_path.iterdir()) == []


def test_all_kernels_are_compiled_this_way() -> None:
    source = Path(semistream.__file__).parent
    direct = [path.name for path in source.rglob("*.py") if re.search(r"from numba import .*njit", path.read_text())]
    assert direct == []


def test_an_error_in_a_kernel_is_not_hidden() -> None:
    @compiled.njit("int64(int64)", cache=True)
    def wrong(value: int) -> int:
        return value + "text"  # type: ignore[operator]

    for _ in range(2):
        with pytest.raises(TypingError):
            wrong(1)


_LAZY = """
import sys
import semistream.planner.open, semistream.algorithms.registry
from semistream.kernels import compiled
assert "numba" not in sys.modules
assert not any(kernel._loaded for kernel in compiled._kernels)
import numpy as np
from semistream.kernels.raw import peek_i64
value = np.array([77])
assert peek_i64(value.ctypes.data) == 77
assert [kernel.__name__ for kernel in compiled._kernels if kernel._loaded] == ["peek_i64"]
compiled.load_kernels()
assert all(kernel._loaded for kernel in compiled._kernels if kernel.has_signature)
"""


def test_a_kernel_is_loaded_when_it_is_called() -> None:
    """And numba with the first of them; a process whose children share kernels loads all."""
    subprocess.run([sys.executable, "-c", _LAZY], check=True)


def test_threads_that_call_a_kernel_first_at_the_same_time_get_one() -> None:
    @compiled.njit("int64(int64)", nogil=True)
    def thrice(value: int) -> int:
        return 3 * value

    start = threading.Barrier(4)

    def call(value: int) -> tuple[int, object]:
        start.wait()
        return thrice(value), thrice.load()

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(call, range(4)))
    assert [value for value, _ in found] == [0, 3, 6, 9]
    assert len({id(dispatcher) for _, dispatcher in found}) == 1


def test_kernels_call_kernels_that_python_never_did() -> None:
    @compiled.njit("int64(int64)")
    def inner(value: int) -> int:
        return value + 1

    @compiled.njit("int64(int64)")
    def outer(value: int) -> int:
        return int(inner(value)) * 2

    assert outer(4) == 10
    assert not inner._can_compile
    with pytest.raises(TypeError):
        outer("4")


def test_whoever_wants_to_know_is_told_once_that_a_kernel_was_compiled() -> None:
    heard: list[str] = []
    compiled.when_compiling(lambda: heard.append("compiling"))

    @compiled.njit("int64(int64)")
    def four_times(value: int) -> int:
        return 4 * value

    @compiled.njit("int64(int64)")
    def five_times(value: int) -> int:
        return 5 * value

    assert heard == []
    assert (four_times(1), five_times(1)) == (4, 5)
    assert heard == ["compiling"]
