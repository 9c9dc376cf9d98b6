"""Where a table is, and what stands in that folder already."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from semistream.errors import ConfigError, SchemaError


def local_folder(path: str | os.PathLike[str]) -> Path:
    """The folder of a path or of a file: address; tables elsewhere are refused.

    >>> local_folder("file:///data/my%20table")
    PosixPath('/data/my table')
    """
    text = os.fspath(path)
    if not text:
        raise ConfigError("the path of the table is empty; name a folder")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", text):
        parts = urlsplit(text)
        if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
            raise ConfigError(f"{text!r} is not a folder that this machine has mounted; give a path, or file:/…")
        text = unquote(parts.path)
    return Path(os.path.abspath(text))


def format_of(folder: Path) -> str:
    """What a folder is to those who read it: delta, iceberg, spark (the log of its file sink), or parquet."""
    if (folder / "_delta_log").is_dir():
        return "delta"
    if any((folder / "metadata").glob("*.metadata.json")):
        return "iceberg"
    return "spark" if (folder / "_spark_metadata").is_dir() else "parquet"


def existing_format(path: str | os.PathLike[str]) -> str:
    """The format of a table whose folder this is; refuses a folder that is none of ours."""
    folder = local_folder(path)
    found = format_of(folder)
    if found == "iceberg":
        raise ConfigError(f"{folder} is the folder of an Iceberg table: give its name and its catalog instead")
    if found == "delta" or state_folder(folder).is_dir():
        return found
    raise ConfigError(f"{folder} is not a table that semistream has written; name the folder of one")


def state_folder(folder: Path) -> Path:
    """Where the log of a plain folder is: beside it, for some readers take every file below a folder for data."""
    return folder.with_name(f".{folder.name}.semistream")


_SAID = {
    "delta": "is a Delta table; write it with format='delta', or choose another folder",
    "iceberg": "is an Iceberg table; write it with format='iceberg' and its name, or choose another folder",
    "spark": "was written by Spark's file sink: those who read it by the log in _spark_metadata would not see files of "
    "others. Choose another folder",
    "parquet": "holds Parquet files that no log knows; choose another folder, or convert it to a table first",
}


def require_format(folder: Path, format: str) -> None:
    """Refuse a folder that is a table of another format."""
    found = format_of(folder)
    if found != format and (found != "parquet" or next(parquet_files(folder), None) is not None):
        raise ConfigError(f"{folder} {_SAID[found]}")


def parquet_files(folder: Path) -> Iterator[Path]:
    """The Parquet files below a folder that readers take for data."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        for name in sorted(names):
            if name.endswith(".parquet") and not is_hidden(name):
                yield Path(place) / name


def is_hidden(name: str) -> bool:
    """Spark's rule: a partition column may begin with an underscore."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def require_same_columns(found: pa.Schema, wanted: pa.Schema, where: str) -> None:
    """Refuse rows whose columns are not those that are there, whatever their order."""
    have = {field.name: _type_text(field.type) for field in found}
    want = {field.name: _type_text(field.type) for field in wanted}
    differences = [f"no column {name!r}" for name in want if name not in have]
    differences += [f"a column {name!r} that the rows have not" for name in have if name not in want]
    differences += [
        f"column {name!r} as {have[name]}, not {want[name]}"
        for name in want
        if name in have and have[name] != want[name]
    ]
    if differences:
        raise SchemaError(
            f"{where} has {'; '.join(differences[:5])}. Give the rows the columns and types that are there, or choose "
            "another table"
        )


def require_same_partitions(found: tuple[str, ...], wanted: tuple[str, ...], where: str) -> None:
    """Refuse a table that is divided by other columns."""
    if found != wanted:
        said = [f"by {', '.join(names)}" if names else "by no column" for names in (found, wanted)]
        raise SchemaError(
            f"{where} is divided {said[0]}, and partition_by asks for a division {said[1]}; "
            f"give partition_by={list(found)}, or choose another folder"
        )


def _type_text(kind: pa.DataType) -> str:
    """A type without what files do not keep: the width of offsets, names of time zones and of list items."""
    text = re.sub(r"large_", "", str(kind))
    return re.sub(r"tz=[^]]*", "tz", text).replace("<item: ", "<element: ")
