"""A PostgreSQL server for tests, from Debian's binaries, on a free port and in a temporary folder.

All tests of a process share one server (``shared_server``). A test that needs isolation creates its own database, which
takes 10 ms. The server does not sync, because a killed process does not lose what is in the page cache.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg

from faults.servers.fork_server import parent_death_prefix
from faults.servers.server import free_port
from faults.wait import unwatch, watch_process
from tools import debian

__all__ = ["PostgresServer", "shared_server"]

_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_wal_size": "256MB",
    "shared_buffers": "32MB",
    "max_connections": "60",
    "max_wal_senders": "4",
    "wal_keep_size": "64MB",
    "timezone": "Asia/Kolkata",  # Not the machine's time zone, and not a whole number of hours from UTC.
}
_MEMORY = Path("/dev/shm")
_START_S_MAX = 240.0
_counter = itertools.count()


class PostgresServer:
    def __init__(self) -> None:
        # In memory if there is space, because each test run starts a new server.
        memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
        self.home = Path(tempfile.mkdtemp(prefix="headrace-postgres-", dir=memory))
        self.data = self.home / "data"
        self.log = self.home / "server.log"
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            # The server refuses to run as root.
            account = pwd.getpwnam("postgres")
            os.chown(self.home, account.pw_uid, account.pw_gid)
            self._as = {"user": "postgres", "group": "postgres", "extra_groups": []}
        # Remove the folder even if this process is killed.
        self._sweeper = subprocess.Popen(
            ["sh", "-c", 'cat > /dev/null; sleep 1; rm -rf "$0"', self.home],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.command(
            "initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8",
            "--locale=C.UTF-8", "--no-sync",
        )  # fmt: skip

    # Start and stop

    def start(self) -> None:
        """Start on the same port as before, unless another program uses it."""
        settings = [f"-c{name}={value}" for name, value in _SETTINGS.items()]
        for _ in range(5):
            with self.log.open("ab") as output:
                self._process = subprocess.Popen(
                    [*parent_death_prefix(), _binary("postgres"), "-D", self.data, "-k", self.home,
                     "-p", str(self.port), "-clisten_addresses=127.0.0.1", *settings],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=self.home,
                    **self._as,
                )  # fmt: skip
            process = self._process
            if self._answers():
                watch_process(process, "postgres", self.log)
                return
            self.port = free_port()
        raise AssertionError(f"postgres did not start; it printed:\n{self.log.read_text()[-4000:]}")

    def _answers(self) -> bool:
        assert self._process is not None
        deadline = time.monotonic() + _START_S_MAX
        while self._process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.url("postgres")):
                return True
            time.sleep(0.02)
        return False

    def stop(self, sent_signal: signal.Signals = signal.SIGINT) -> None:
        """Stop the server. SIGINT closes the sessions; SIGQUIT stops immediately, as after a crash."""
        assert self._process is not None
        unwatch(self._process)
        self._process.send_signal(sent_signal)
        self._process.wait(_START_S_MAX)
        self._process = None

    def signal_all(self, which: signal.Signals) -> None:
        """Send a signal to the server and to each of its sessions."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        for pid in (*map(int, children), self._process.pid):
            os.kill(pid, which)

    def close(self) -> None:
        if self._process is not None:
            self.stop(signal.SIGQUIT)
        shutil.rmtree(self.home, ignore_errors=True)
        assert self._sweeper.stdin is not None
        self._sweeper.kill()
        self._sweeper.wait()
        self._sweeper.stdin.close()

    # Databases

    def url(self, database: str, user: str = "postgres", password: str = "") -> str:
        credentials = f"{user}:{password}" if password else user
        return f"postgresql://{credentials}@127.0.0.1:{self.port}/{database}"

    def database(self) -> str:
        """Create a database and return its name."""
        name = f"d{next(_counter)}_{os.getpid()}"
        self.execute(f"CREATE DATABASE {name}")
        return name

    def drop(self, name: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def command(self, name: str, *arguments: str | Path) -> None:
        """Run one of PostgreSQL's programs."""
        result = subprocess.run(
            [_binary(name), *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.home,
            **self._as,
        )
        assert result.returncode == 0, f"{name}: {result.stdout}\n{result.stderr}"

    def dump(self, database: str) -> Path:
        """Dump the whole database in one snapshot."""
        path = self.home / f"{database}-{next(_counter)}.dump"
        self.command("pg_dump", "-Fc", "-f", path, self.url(database))
        return path

    def restore(self, database: str, dump: Path) -> None:
        """Restore in one transaction while sessions are open. Repeat it if PostgreSQL cancels it to resolve a deadlock
        with a session, or if a session has just created a table that the dump has too.
        """
        for left in reversed(range(10)):
            try:
                self.command(
                    "pg_restore",
                    "--clean",
                    "--if-exists",
                    "--single-transaction",
                    "-d",
                    self.url(database),
                    dump,
                )
            except AssertionError as error:
                if not left or not re.search(r"deadlock detected|already exists", str(error)):
                    raise
            else:
                return


@functools.cache
def _binary(name: str) -> str:
    path = debian.find(name, debian.POSTGRES_FOLDERS)
    assert path is not None, f"{name} is not installed: run make setup-test"
    return path


@functools.cache
def shared_server() -> PostgresServer:
    """Return the shared server of this process."""
    server = PostgresServer()
    atexit.register(server.close)
    server.start()
    return server
