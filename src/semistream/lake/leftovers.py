"""Files that nobody needs any more."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path


def is_old_file(path: Path, seconds: float) -> bool:
    """Whether a file has been as it is for so long."""
    try:
        return time.time() - path.stat().st_mtime > seconds
    except OSError:
        return False


def remove_files(paths: Iterable[Path]) -> None:
    """What cannot be removed now is found by the next cleaning."""
    for path in paths:
        try:
            os.unlink(path)
        except OSError:
            continue
