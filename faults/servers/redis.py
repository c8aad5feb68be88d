"""A Redis server for tests. Its Unix socket is in a folder with a short path, because the system limits the length."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from faults.servers.fork_server import parent_death_prefix
from faults.servers.server import spawn
from faults.wait import until, unwatch, watch_process

__all__ = ["RedisServer", "fresh_database", "running", "shared"]

_DATABASES = 4_096


class RedisServer:
    """Its files remain between starts, until ``close``."""

    def __init__(self, *options: str) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="hr-redis-"))
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"unix://{self.home}/socket"

    def start(self, options: Sequence[str] = ()) -> None:
        command = [
            "redis-server",
            "--port",
            "0",
            "--unixsocket",
            f"{self.home}/socket",
            "--dir",
            f"{self.home}",
        ]
        command += ["--save", "", "--databases", f"{_DATABASES}", *self._options, *options]
        log = self.home / "server.log"
        process = self._process = spawn([*parent_death_prefix(), *command], log)
        watch_process(process, "redis-server", log)
        until(self._answers, f"{command} responds; see {self.home}/server.log")

    def _answers(self) -> bool:
        try:
            return bool(self.client().ping())
        except (redis.AuthenticationError, redis.exceptions.NoPermissionError):
            return True
        except redis.ConnectionError:
            return False

    def client(self, database: int = 0) -> Any:
        return redis.Redis.from_url(self.url, db=database, retry=Retry(NoBackoff(), 0), socket_timeout=60)

    def end(self, sent_signal: signal.Signals = signal.SIGKILL) -> None:
        assert self._process is not None
        if sent_signal in (signal.SIGKILL, signal.SIGTERM):
            unwatch(self._process)
        self._process.send_signal(sent_signal)
        if sent_signal in (signal.SIGKILL, signal.SIGTERM):
            self._process.wait()

    def delete_append_only_files(self) -> None:
        """Delete the append-only files: a folder in Redis 7, a file in Redis 6."""
        for path in self.home.glob("appendonly*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def close(self) -> None:
        self.end()
        shutil.rmtree(self.home)


@contextlib.contextmanager
def running(*options: str) -> Iterator[RedisServer]:
    with contextlib.closing(RedisServer(*options)) as server:
        yield server


@functools.cache
def shared() -> RedisServer:
    """Return one server for all tests of this process that do not stop or damage it."""
    server = RedisServer()
    atexit.register(server.close)
    return server


_numbers = itertools.count(1)


def fresh_database() -> int:
    """Return a database number of the shared server. The caller empties the database."""
    return next(_numbers) % (_DATABASES - 1) + 1
