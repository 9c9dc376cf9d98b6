"""Where the record batches of an Arrow IPC file begin and end.

pyarrow reads batches but does not say where they lie, and the page store reads them by itself. The footer is
a flatbuffer: table Footer, field 3 is the vector of `Block {offset: i64, metadata: i32, body: i64}`.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from semistream.errors import StoreError

_MAGIC = b"ARROW1"
_BLOCK = np.dtype({"names": ["offset", "metadata", "body"], "formats": ["<i8", "<i4", "<i8"], "offsets": [0, 8, 16]})


def record_batch_blocks(path: Path) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Offset and length of every record batch message, metadata and body together."""
    with path.open("rb") as file:
        end = file.seek(0, 2)
        file.seek(max(0, end - 10))
        size, magic = struct.unpack("<i6s", file.read(10))
        if magic != _MAGIC:
            raise StoreError(f"{path} is no complete Arrow file: its footer is missing")
        file.seek(end - 10 - size)
        footer = file.read(size)
    root = struct.unpack_from("<I", footer, 0)[0]
    fields = root - struct.unpack_from("<i", footer, root)[0]
    blocks = np.empty(0, dtype=_BLOCK)
    field = struct.unpack_from("<H", footer, fields + 10)[0] if struct.unpack_from("<H", footer, fields)[0] > 10 else 0
    if field:
        vector = root + field
        vector += struct.unpack_from("<I", footer, vector)[0]
        count = struct.unpack_from("<I", footer, vector)[0]
        blocks = np.frombuffer(footer, dtype=_BLOCK, count=count, offset=vector + 4)
    lengths = blocks["metadata"].astype(np.int64) + blocks["body"]
    return blocks["offset"].astype(np.int64), lengths
