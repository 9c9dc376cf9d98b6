"""Encodings that are used again: tasks of a query that follow one another in a process write rows of one kind.

To look at a sample takes some milliseconds, which is felt where every micro-batch ends in a small file per task. A
choice that does not fit any more costs bytes or time and never a row, and after some files it is made anew.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from semistream.lake.encoding import SAMPLE_ROWS, choose_encoding
from semistream.lake.target import Target

#: writers in a row that follow one choice
ALIKE_WRITERS = 16
_KEPT = 32


@dataclass
class _Kept:
    options: dict[str, Any]
    left: int


class Choices:
    """How the files of some targets were encoded last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Target, _Kept] = OrderedDict()

    def options(self, target: Target, rows: pa.Table) -> dict[str, Any]:
        """Arguments for the Parquet writer of a target, of which these are the first rows."""
        if not target.origin:
            return _chosen(target, rows)
        # What differs from batch to batch says nothing about the rows.
        key = replace(target, folder="", prefix="")
        with self._lock:
            found = self._kept.get(key)
            if found is not None and found.left:
                found.left -= 1
                self._kept.move_to_end(key)
                return found.options
        options = _chosen(target, rows)
        if rows.num_rows >= SAMPLE_ROWS:
            with self._lock:
                self._kept[key] = _Kept(options, ALIKE_WRITERS - 1)
                self._kept.move_to_end(key)
                while len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
        return options


def _chosen(target: Target, rows: pa.Table) -> dict[str, Any]:
    width = max(rows.nbytes / max(rows.num_rows, 1), 1e-9)
    chosen = choose_encoding(rows, int(target.row_group_bytes / width), target.codec)
    return chosen.writer_options(target.file_schema())


#: those of this process
CHOICES = Choices()
