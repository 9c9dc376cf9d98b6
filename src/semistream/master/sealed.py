"""Small files that prove themselves: a JSON value and, on the last line, a checksum of every byte before it.

The manifest of a version, the file that names the version in force and the pins of queries are such files. A byte that
changed after they were written makes them unreadable, and never a file that says something else.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

_MARK = b"\nblake2b "
_DIGEST_BYTES = 16


def sealed(value: object) -> tuple[bytes, str]:
    """The bytes of such a file, and their checksum."""
    body = json.dumps(value, indent=1).encode()
    checksum = digest(body)
    return body + _MARK + checksum.encode() + b"\n", checksum


def unsealed(raw: bytes) -> tuple[Any, str]:
    """The value and the checksum of such bytes; ValueError where they are not as they were written."""
    body, mark, last = raw.rpartition(_MARK)
    checksum = digest(body)
    if not mark or last != f"{checksum}\n".encode():
        raise ValueError("its checksum is missing or does not fit its content")
    return json.loads(body), checksum


def read_sealed(path: Path) -> tuple[Any, str]:
    """`unsealed` of a file; OSError where it cannot be read."""
    return unsealed(path.read_bytes())


def digest(content: bytes) -> str:
    """A name for these bytes that no others have."""
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()
