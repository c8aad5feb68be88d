"""Forks brokers, so that a start does not repeat Python's imports.

A server process imports the product once and forks a broker for each request. The broker is then a normal process, with
its own session, files and sockets. Forking saves the half second before its first line, so that more kills fit into a
run. A forked broker dies with the server, and the server dies with the process that started it.
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

__all__ = ["ROOT", "ForkServer", "Forked", "die_with_parent", "fork_server", "parent_death_prefix"]

_PR_SET_PDEATHSIG = 1
ROOT = Path(__file__).parents[2]


def parent_death_prefix() -> list[str]:
    """Return a command prefix that makes a program exit when this process does."""
    command = shutil.which("setpriv")
    return [command, "--pdeathsig", "KILL"] if command else []


def die_with_parent() -> None:
    """Make this process exit when the thread that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Forked:
    """A forked broker, with the part of ``subprocess.Popen`` that fault runs use."""

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
            self._code = int(self._server.call({"wait": self.pid}))
        return self._code

    def _has_ended(self, timeout: float | None) -> bool:
        """Wait with poll, because select cannot watch descriptors above 1,023."""
        watch = select.poll()
        watch.register(self._watch, select.POLLIN)
        return bool(watch.poll(None if timeout is None else timeout * 1_000))


class ForkServer:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [*parent_death_prefix(), sys.executable, "-m", "faults.servers.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            start_new_session=True,
        )

    def fork(self, arguments: Sequence[str], log: Path) -> Forked:
        """``words`` are the arguments of ``broker_starter``."""
        return Forked(self, int(self.call({"fork": list(arguments), "log": str(log)})))

    def call(self, request: dict[str, Any]) -> Any:
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
    """Return the fork server of this process, which the first call starts."""
    if not _servers:
        server = ForkServer()
        atexit.register(server.close)
        _servers.append(server)
    return _servers[0]


# Code of the server process


def _serve() -> None:
    import headrace.broker.main
    import headrace.cli.broker_args  # noqa: F401

    own_pid = os.getpid()
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
                _become_broker(request["fork"], Path(request["log"]), own_pid)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


def _import_server() -> None:
    """Import ``headrace serve`` when it is first needed: it has more imports than the broker."""
    import headrace.serve.http.application
    import headrace.serve.http.connection
    import headrace.serve.subscribe.web_socket_connection  # noqa: F401


def _become_broker(arguments: list[str], log: Path, parent: int) -> NoReturn:
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
        from faults.servers.broker_starter import main

        code = main(arguments)
    except SystemExit as ended:
        # As Python does: an exit code, or 0 for None.
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
