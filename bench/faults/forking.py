"""Starting brokers without paying for Python's imports each time.

A server process imports the product once and forks a broker for every request. The broker is then a process like any
other, with its own session, files and sockets; only the half second before its first own line is saved, so that more
kills fit into a run. A forked broker dies with the server, and the server with the one who asked for it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["ROOT", "ForkServer", "Forked", "die_with_parent", "dying_with_us", "fork_server"]

_PR_SET_PDEATHSIG = 1
ROOT = Path(__file__).parents[2]


def dying_with_us() -> list[str]:
    """What to put before a command so that it ends when this process does."""
    command = shutil.which("setpriv")
    return [command, "--pdeathsig", "KILL"] if command else []


def die_with_parent() -> None:
    """From now on this process ends when the thread that started it does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Forked:
    """A broker that the server forked; the part of ``subprocess.Popen`` that is used here."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server
        self._watch = os.pidfd_open(pid)
        self._code: int | None = None

    def poll(self) -> int | None:
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("broker", timeout or 0)
        return code

    def _wait(self, timeout: float | None) -> int | None:
        if self._code is None and self._has_ended(timeout):
            os.close(self._watch)
            self._code = int(self._server.ask({"wait": self.pid}))
        return self._code

    def _has_ended(self, timeout: float | None) -> bool:
        """By poll, which unlike select knows of descriptors past the 1,024th."""
        watch = select.poll()
        watch.register(self._watch, select.POLLIN)
        return bool(watch.poll(None if timeout is None else timeout * 1_000))


class ForkServer:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [*dying_with_us(), sys.executable, "-m", "bench.faults.forking"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            start_new_session=True,
        )

    def fork(self, words: Sequence[str], log: Path) -> Forked:
        """``words`` are the starter's."""
        return Forked(self, int(self.ask({"fork": list(words), "log": str(log)})))

    def ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()


_servers: list[ForkServer] = []


def fork_server() -> ForkServer:
    """The one of this process, started when it is first wanted."""
    if not _servers:
        server = ForkServer()
        atexit.register(server.close)
        _servers.append(server)
    return _servers[0]


# The server's own side


def _serve() -> None:
    import headrace.broker.main
    import headrace.cli.broker_line  # noqa: F401

    own = os.getpid()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            if "serve" in request["fork"]:
                _import_server()
            answer = os.fork()
            if answer == 0:
                _become_broker(request["fork"], Path(request["log"]), own)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


def _import_server() -> None:
    """Once: the server of views has more to import than the broker, and not every run needs it."""
    import headrace.serve.connection
    import headrace.serve.subscriptions.socket_connection
    import headrace.serve.web  # noqa: F401


def _become_broker(words: list[str], log: Path, parent: int) -> NoReturn:
    code = 1
    try:
        os.setsid()
        die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for old, new in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(old, new)
        os.close(output)
        os.close(nothing)
        from bench.faults.starter import main

        code = main(words)
    except SystemExit as ended:
        # As Python itself ends: a number, or nothing for a success.
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
