"""PostgreSQL and MariaDB for tests: real servers on loopback, unprivileged, in a temporary folder.

Where a binary is missing the test is skipped and says which; `make test` tries to install them (`make servers`).
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

PASSWORD = "Ge heim/42%&="
_START_SECONDS = 60
_PLACES = [*map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"))), "/usr/sbin", "/usr/libexec"]


def _binary(*names: str) -> str:
    """The path of the first program that is there."""
    places = os.pathsep.join([*_PLACES, os.environ["PATH"]])
    for name in names:
        found = shutil.which(name, path=places)
        if found is not None:
            return found
    pytest.skip(f"{names[0]} is not installed: `make servers` tries to install it")


def _as_user() -> tuple[list[str], int | None]:
    """What to put before a command so that it does not run as root, and the user's number: servers refuse root."""
    if os.geteuid() != 0:
        return [], None
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("setpriv (util-linux) is not installed, and a server does not run as root")
    # A user that owns nothing; initdb wants one that has a name.
    user = pwd.getpwuid(65534)
    return [setpriv, f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"], user.pw_uid


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A server's process in a folder of its own; `start` may follow `kill`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = _free_port()
        self.prefix, self.user = _as_user()
        self.process: subprocess.Popen[bytes] | None = None
        if self.user is not None:
            os.chown(folder, self.user, -1)

    def run(self, *command: str, **options: str) -> None:
        done = subprocess.run([*self.prefix, *command], cwd=self.folder, capture_output=True, text=True, env=_env())
        assert done.returncode == 0, f"{command[0]} failed: {done.stdout}{done.stderr}"

    def launch(self, *command: str) -> None:
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, *command],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_env(),
                start_new_session=True,
            )
        until = time.monotonic() + _START_SECONDS
        while not self.answers():
            log_text = (self.folder / "server.log").read_text(errors="replace")
            assert self.process.poll() is None, f"the server ended at once: {log_text}"
            assert time.monotonic() < until, f"the server does not answer: {log_text}"
            time.sleep(0.05)

    def answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def kill(self) -> None:
        """End it at once with all its processes, as a crash of the machine does."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


def _env() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "LC_ALL": "C", "TZ": "UTC"}


class Postgres(Server):
    user_name = "reader"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.initdb, self.server = _binary("initdb"), _binary("postgres")
        word = folder / "word"
        word.write_text(PASSWORD)
        word.chmod(0o644)
        self.run(
            self.initdb, "-D", str(folder / "data"), "-U", self.user_name, "-A", "scram-sha-256",
            f"--pwfile={word}", "-E", "UTF8", "--locale=C", "--no-sync",
        )  # fmt: skip
        word.unlink()

    def start(self) -> None:
        self.launch(
            self.server, "-D", str(self.folder / "data"), "-p", str(self.port), "-c", "listen_addresses=127.0.0.1",
            "-c", f"unix_socket_directories={self.folder}", "-c", "fsync=off", "-c", "shared_buffers=16MB",
        )  # fmt: skip

    def answers(self) -> bool:
        import adbc_driver_postgresql.dbapi as driver

        try:
            with driver.connect(self.dsn()):
                return True
        except driver.Error:
            return False

    def dsn(self, password: str = PASSWORD) -> str:
        from urllib.parse import quote

        return f"postgresql://{self.user_name}:{quote(password, safe='')}@127.0.0.1:{self.port}/postgres"

    def execute(self, *statements: str) -> None:
        import adbc_driver_postgresql.dbapi as driver

        with driver.connect(self.dsn()) as connection:
            for statement in statements:
                with connection.cursor() as cursor:
                    cursor.execute(statement)
            connection.commit()


class MariaDb(Server):
    user_name = "reader"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.install, self.server = _binary("mariadb-install-db", "mysql_install_db"), _binary("mariadbd", "mysqld")
        self.run(
            self.install, "--no-defaults", f"--datadir={folder / 'data'}", "--auth-root-authentication-method=normal",
            "--skip-test-db", "--skip-name-resolve",
        )  # fmt: skip
        word = PASSWORD.replace("'", "''")
        first = folder / "first.sql"
        first.write_text(
            f"CREATE DATABASE shop CHARACTER SET utf8mb4;\nCREATE USER '{self.user_name}'@'%' IDENTIFIED BY '{word}';\n"
            f"GRANT ALL ON *.* TO '{self.user_name}'@'%';\n"
        )
        first.chmod(0o644)
        self.first: Path | None = first

    def start(self) -> None:
        self.launch(
            self.server, "--no-defaults", f"--datadir={self.folder / 'data'}", f"--port={self.port}",
            "--bind-address=127.0.0.1", f"--socket={self.folder / 's'}", f"--pid-file={self.folder / 'pid'}",
            "--skip-name-resolve", "--innodb-buffer-pool-size=16M", "--innodb-flush-log-at-trx-commit=0",
            "--innodb-log-file-size=8M", "--default-time-zone=+00:00",
            *([] if self.first is None else [f"--init-file={self.first}"]),
        )  # fmt: skip
        self.first = None

    def dsn(self, password: str = PASSWORD) -> str:
        from urllib.parse import quote

        return f"mysql://{self.user_name}:{quote(password, safe='')}@127.0.0.1:{self.port}/shop"

    def execute(self, *statements: str) -> None:
        """Statements go before a query that is read: connectorx has nothing for statements without rows."""
        import connectorx

        connectorx.read_sql(self.dsn(), "SELECT 1 AS one", return_type="arrow", pre_execution_query=list(statements))


def _quick_folder() -> str:
    """In memory where there is room: servers sync their files when they are set up."""
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() and shutil.disk_usage(memory).free > 1 << 30 else "/tmp"


@contextmanager
def running(kind: type[Postgres] | type[MariaDb]) -> Iterator[Postgres | MariaDb]:
    """A server in a folder that is short enough for the path of a socket, gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix="db-", dir=_quick_folder()))
    server = None
    try:
        server = kind(folder)
        server.start()
        yield server
    finally:
        if server is not None:
            server.kill()
        shutil.rmtree(folder, ignore_errors=True)
