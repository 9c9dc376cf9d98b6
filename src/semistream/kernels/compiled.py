"""`njit` that compiles wherever it runs, also where no cache of compiled code can be kept.

Numba keeps compiled code beside the source, or under the user's home, and refuses to compile with `cache=True` where
neither can be written: in most container images, where the program is installed by another user and nobody has a
home. Kernels then go to a folder of this user's own among the temporary files, and where that cannot be had either,
or the disk is full, they are compiled for this process only.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import config

_VARIABLE = "NUMBA_CACHE_DIR"
_numba_njit: Any = numba.njit
_numba_config: Any = config


def njit(*signature: Any, cache: bool = False, **options: Any) -> Any:
    """Numba's `njit`; `cache` asks for compiled code to be kept between processes and does not insist."""
    if not cache:
        return _numba_njit(*signature, **options)

    def compile_kernel(function: Callable[..., Any]) -> Any:
        cached = _numba_njit(*signature, cache=True, **options)
        try:
            return cached(function)
        except (RuntimeError, OSError):
            # RuntimeError: numba found no place for its cache. Any other one is raised again below.
            pass
        if _move_cache():
            try:
                return cached(function)
            except (RuntimeError, OSError):
                pass
        return _numba_njit(*signature, **options)(function)

    return compile_kernel


def _move_cache() -> bool:
    """Have numba keep compiled code in a private folder; False if there is none, or the user has named one.

    The environment is changed too: numba reads it again whenever a variable of its own changes there.
    """
    if _numba_config.CACHE_DIR:
        return False
    folder = _private_folder()
    if folder is None:
        return False
    os.environ[_VARIABLE] = _numba_config.CACHE_DIR = str(folder)
    return True


def _private_folder() -> Path | None:
    """A folder among the temporary files that nobody else can have put code into, or None.

    Numba sees a change of the file a kernel stands in, not of those it calls into: other sources, another folder.
    """
    sources = hashlib.sha256()
    try:
        folder = Path(tempfile.gettempdir()) / f"semistream-{os.geteuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        for path in sorted(Path(__file__).parent.glob("*.py")):
            sources.update(path.read_bytes())
    except OSError:
        return None
    own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
    return folder / sources.hexdigest()[:16] if own else None
