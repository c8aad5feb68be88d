"""A Redis server of the tests' own: on a socket in a short folder, since the system's limit for its path is low."""

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

from bench.faults.forking import dying_with_us
from tests.support.server import spawn
from tests.support.waiting import until, unwatch, watch_process

__all__ = ["RedisServer", "fresh_database", "running", "shared"]

_DATABASES = 4_096


class RedisServer:
    """What it has on disk stays between starts, until ``close``."""

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
        process = self._process = spawn([*dying_with_us(), *command], log)
        watch_process(process, "redis-server", log)
        until(self._answers, f"{command} to answer; see {self.home}/server.log")

    def _answers(self) -> bool:
        try:
            return bool(self.client().ping())
        except (redis.AuthenticationError, redis.exceptions.NoPermissionError):
            return True
        except redis.ConnectionError:
            return False

    def client(self, database: int = 0) -> Any:
        return redis.Redis.from_url(self.url, db=database, retry=Retry(NoBackoff(), 0), socket_timeout=60)

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        assert self._process is not None
        if how in (signal.SIGKILL, signal.SIGTERM):
            unwatch(self._process)
        self._process.send_signal(how)
        if how in (signal.SIGKILL, signal.SIGTERM):
            self._process.wait()

    def forget(self) -> None:
        """What it has on disk; Redis 7 has a folder for that, and Redis 6 a file."""
        for one in self.home.glob("appendonly*"):
            shutil.rmtree(one) if one.is_dir() else one.unlink()

    def close(self) -> None:
        self.end()
        shutil.rmtree(self.home)


@contextlib.contextmanager
def running(*options: str) -> Iterator[RedisServer]:
    with contextlib.closing(RedisServer(*options)) as server:
        yield server


@functools.cache
def shared() -> RedisServer:
    """One for all tests of this process that do not harm it."""
    server = RedisServer()
    atexit.register(server.close)
    return server


_numbers = itertools.count(1)


def fresh_database() -> int:
    """Of the shared server; whoever takes one empties it."""
    return next(_numbers) % (_DATABASES - 1) + 1
