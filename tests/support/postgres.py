"""A PostgreSQL server of the tests' own, from Debian's binaries, on a free port and a folder that goes with it.

One for a whole session of tests (``shared_server``): whoever needs it apart asks for a database of its own, which takes
a hundredth of a second. Nothing is synced: a process that is killed loses nothing by that.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg

from bench.faults.forking import dying_with_us
from tests.support.server import free_port
from tests.support.waiting import unwatch, watch_process
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
    "timezone": "Asia/Kolkata",  # Not ours, and not a whole hour away.
}
_MEMORY = Path("/dev/shm")
_START_S_MAX = 240.0
_counter = itertools.count()


class PostgresServer:
    """``locale`` is that of the databases: one in which letters are not sorted by their bytes."""

    def __init__(self, locale: str = "C.UTF-8") -> None:
        # In memory where there is room for it: what is started anew for each session should be quick.
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
        # However this process ends, also killed: nothing is left in memory.
        self._sweeper = subprocess.Popen(
            ["sh", "-c", 'cat > /dev/null; sleep 1; rm -rf "$0"', self.home],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.command(
            "initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8",
            f"--locale={locale}", "--no-sync",
        )  # fmt: skip

    # Its life

    def start(self) -> None:
        """On the port that it had, if nobody has taken it."""
        settings = [f"-c{name}={value}" for name, value in _SETTINGS.items()]
        for _ in range(5):
            with self.log.open("ab") as output:
                self._process = subprocess.Popen(
                    [*dying_with_us(), _binary("postgres"), "-D", self.data, "-k", self.home, "-p", str(self.port),
                     "-clisten_addresses=127.0.0.1", *settings],
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

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT: sessions are ended; SIGQUIT: at once, as after a crash."""
        assert self._process is not None
        unwatch(self._process)
        self._process.send_signal(how)
        self._process.wait(_START_S_MAX)
        self._process = None

    def signal_all(self, which: signal.Signals) -> None:
        """To the server and each of its sessions."""
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

    # What is in it

    def url(self, database: str, user: str = "postgres", password: str = "") -> str:
        who = f"{user}:{password}" if password else user
        return f"postgresql://{who}@127.0.0.1:{self.port}/{database}"

    def database(self) -> str:
        """A new one; its name."""
        name = f"d{next(_counter)}_{os.getpid()}"
        self.execute(f"CREATE DATABASE {name}")
        return name

    def drop(self, name: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            found = connection.execute(statement)
            return found.fetchall() if found.description else []

    def command(self, name: str, *words: str | Path) -> None:
        """One of PostgreSQL's programs."""
        done = subprocess.run(
            [_binary(name), *words], capture_output=True, text=True, check=False, cwd=self.home, **self._as
        )
        assert done.returncode == 0, f"{name}: {done.stdout}\n{done.stderr}"

    def dump(self, database: str) -> Path:
        """All that the database holds, as of one moment."""
        path = self.home / f"{database}-{next(_counter)}.dump"
        self.command("pg_dump", "-Fc", "-f", path, self.url(database))
        return path

    def restore(self, database: str, dump: Path) -> None:
        """Restore in one transaction, beside the sessions that are open. PostgreSQL may end a deadlock with one of them
        by ending the restore; only then is it run again.
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
                if not left or "deadlock detected" not in str(error):
                    raise
            else:
                return


@functools.cache
def _binary(name: str) -> str:
    found = debian.find(name, debian.POSTGRES_FOLDERS)
    assert found is not None, f"there is no {name}: make setup-test"
    return found


@functools.cache
def shared_server() -> PostgresServer:
    """The one of this process."""
    server = PostgresServer()
    atexit.register(server.close)
    server.start()
    return server
