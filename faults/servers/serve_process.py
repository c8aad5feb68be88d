"""``headrace serve`` as a process that can be restarted. It dies with the process that started it.

It is forked from a process that has already imported the server, and runs in ``home``, where its settings are.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from faults.servers.fork_server import Forked, fork_server
from faults.servers.process_tree import rss_mb

__all__ = ["ServeProcess"]

_READY = re.compile(rb"serving \S+ at http://127\.0\.0\.1:(\d+)\s")
_PG_READY = re.compile(r"PostgreSQL protocol at 127\.0\.0\.1:(\d+)\s")
_START_S_MAX = 240.0
_STOP_S_MAX = 120.0


class ServeProcess:
    """``app`` is a module and a name in it. ``without`` names a protection in ``faults.unprotected.registry`` to
    remove.
    """

    def __init__(
        self, home: Path, app: str, bootstrap: str, settings: Mapping[str, int | str], *, without: str = ""
    ) -> None:
        """``settings`` are those of ``[serve]``, written as TOML."""
        home.mkdir(parents=True, exist_ok=True)
        self.data = home
        self.log = home / "serve.log"
        self.port = 0
        self._process: Forked | None = None
        table = {"access_log": "'requests.log'", **settings}
        lines = ["[serve]", *(f"{name} = {value}" for name, value in table.items())]
        (home / "headrace.toml").write_text("\n".join(lines) + "\n")
        arguments = ["serve", app, "-b", bootstrap, "--data", str(home), "--listen", "127.0.0.1:0"]
        starter_options = ["--without", without] if without else []
        self._arguments = ["--chdir", str(home), *starter_options, "--", *arguments]

    def start(self) -> None:
        """Start, and wait until the server responds. The port differs after each start."""
        output_start = self.log.stat().st_size if self.log.exists() else 0
        self._process = fork_server().fork(self._arguments, self.log)
        deadline = time.monotonic() + _START_S_MAX
        while True:
            output = self.log.read_bytes()[output_start:] if self.log.exists() else b""
            match = _READY.search(output)
            if match is not None:
                self.port = int(match[1])
                return
            exit_code = self._process.poll()
            if exit_code is not None or time.monotonic() > deadline:
                raise AssertionError(f"the server did not start ({exit_code}):\n{output.decode()[-4_000:]}")
            time.sleep(0.005)

    @property
    def pg_port(self) -> int:
        """The port of PostgreSQL's protocol since the last start. Its log line follows the ready line."""
        deadline = time.monotonic() + _START_S_MAX
        while not (ports := _PG_READY.findall(self.log.read_text(errors="replace"))):
            assert time.monotonic() < deadline, "the server does not respond in PostgreSQL's protocol"
            time.sleep(0.005)
        return int(ports[-1])

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process has ended."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._process.wait(_STOP_S_MAX)
            self._process = None

    def stop(self) -> int:
        """Stop the server as an operator does, and return the exit code."""
        assert self._process is not None
        os.kill(self.pid, signal.SIGTERM)
        code = self._process.wait(_STOP_S_MAX)
        self._process = None
        return code

    def rss_mb(self, field: str = "VmRSS") -> float:
        return rss_mb(self.pid, field)

    def reset_peak_mb(self) -> float:
        """Reset the peak, so that earlier use does not hide later growth. Return the current memory in MB."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        return self.rss_mb("VmHWM")

    def files(self) -> int:
        """The number of open file descriptors."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def unexpected_exceptions(self) -> list[str]:
        """Return the unexpected exceptions of all starts."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        starts = [at for at, line in enumerate(lines) if line.startswith("Traceback")]
        return ["\n".join(lines[max(at - 2, 0) : at + 30]) for at in starts]
