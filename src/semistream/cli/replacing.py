"""Output that takes the place of older output, in one step where the file system can do that."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from semistream.errors import ConfigError

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def require_apart(path: Path, inputs: Iterable[Path]) -> None:
    """Refuse to replace what the join itself reads."""
    written = path.resolve()
    for given in inputs:
        read = given.resolve()
        if read == written or read in written.parents or written in read.parents:
            raise ConfigError(f"--out {path} cannot be replaced: the join reads {given}; choose another name")


def check_replaceable(path: Path, *, as_folder: bool) -> None:
    """Refuse to replace what is not the output of a join."""
    said = f"--out {path} cannot be replaced:"
    if path.is_symlink():
        raise ConfigError(f"{said} it is a link; name what it points to, {path.resolve()}")
    if as_folder != path.is_dir():
        kinds = ("a folder", "a file") if path.is_dir() else ("a file", "a folder")
        raise ConfigError(f"{said} it is {kinds[0]}, and {kinds[1]} is to be written; remove it or choose another name")
    if as_folder:
        # Whoever names a wrong folder must not lose what is in it.
        foreign = next((each for each in sorted(path.iterdir()) if not _is_output(each)), None)
        if foreign is not None:
            raise ConfigError(
                f"{said} it holds {foreign.name!r}, which is no Parquet file; remove it or choose another name"
            )


def _is_output(path: Path) -> bool:
    notes = path.name.startswith(("_", ".")) and path.suffix in ("", ".crc")
    return path.is_file() and (path.suffix == ".parquet" or notes)


def take_place(new: Path, old: Path) -> None:
    """Give `new` the name of `old`, which goes.

    A file is replaced in one step. A folder too where the system can exchange two names (Linux); elsewhere there is a
    moment without either, in which the old one has a hidden name beside it.
    """
    if not new.is_dir():
        os.replace(new, old)
        return
    if _exchange(new, old):
        shutil.rmtree(new, ignore_errors=True)
        return
    aside = old.with_name(f".{old.name}.{os.getpid()}.old")
    old.rename(aside)
    try:
        new.rename(old)
    except BaseException:
        aside.rename(old)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    """Whether the two names were exchanged."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    return bool(
        renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), ctypes.c_uint(_RENAME_EXCHANGE)) == 0
    )
