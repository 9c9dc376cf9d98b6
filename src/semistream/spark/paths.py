"""Paths that driver and executors both see."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlparse

from semistream.errors import ConfigError


def shared_path(path: str | Path, what: str) -> Path:
    """The absolute path of something on a mounted file system; `what` it is, for the message that refuses another."""
    text = str(path)
    parts = urlparse(text)
    if len(parts.scheme) > 1 and parts.scheme != "file":
        raise ConfigError(
            f"{what} {text!r} is on {parts.scheme}:; it must be on a file system that the driver and all executors "
            "mount: give a path without a scheme, or with file:"
        )
    if parts.scheme == "file" and parts.netloc not in ("", "localhost"):
        raise ConfigError(f"{what} {text!r} names the host {parts.netloc!r}: write file:/{parts.netloc}{parts.path}")
    return Path(unquote(parts.path) if parts.scheme == "file" else text).absolute()
