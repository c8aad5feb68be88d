"""``headrace serve`` as a process of its own, through all its restarts; it ends with whoever started it.

It is forked from a process that has the imports already, and runs in ``home``, where its settings are.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from bench.faults.forking import Forked, fork_server
from bench.process_tree import rss_mb

__all__ = ["ServeProcess"]

_READY = re.compile(rb"serving \S+ at http://127\.0\.0\.1:(\d+)\s")
_PG_READY = re.compile(r"PostgreSQL's protocol at 127\.0\.0\.1:(\d+)\s")
_START_S_MAX = 240.0
_STOP_S_MAX = 120.0


class ServeProcess:
    """``app`` is a module and a name in it; ``without`` is one of ``bench.faults.unprotected``."""

    def __init__(
        self, home: Path, app: str, bootstrap: str, settings: Mapping[str, int | str], *, without: str = ""
    ) -> None:
        """``settings`` are those of ``[serve]``, a text as TOML writes it."""
        home.mkdir(parents=True, exist_ok=True)
        self.data = home
        self.log = home / "serve.log"
        self.port = 0
        self._process: Forked | None = None
        told = {"access_log": "'requests.log'", **settings}
        lines = ["[serve]", *(f"{name} = {value}" for name, value in told.items())]
        (home / "headrace.toml").write_text("\n".join(lines) + "\n")
        words = ["serve", app, "-b", bootstrap, "--data", str(home), "--listen", "127.0.0.1:0"]
        leaving_out = ["--without", without] if without else []
        self._words = ["--chdir", str(home), *leaving_out, "--", *words]

    def start(self) -> None:
        """Waits until it answers; it has another port each time."""
        said_from = self.log.stat().st_size if self.log.exists() else 0
        self._process = fork_server().fork(self._words, self.log)
        deadline = time.monotonic() + _START_S_MAX
        while True:
            said = self.log.read_bytes()[said_from:] if self.log.exists() else b""
            found = _READY.search(said)
            if found is not None:
                self.port = int(found[1])
                return
            ended = self._process.poll()
            if ended is not None or time.monotonic() > deadline:
                raise AssertionError(f"the server has not begun ({ended}):\n{said.decode()[-4_000:]}")
            time.sleep(0.005)

    @property
    def pg_port(self) -> int:
        """Of PostgreSQL's protocol, in the last start; the line comes right behind the one that it answers."""
        deadline = time.monotonic() + _START_S_MAX
        while not (found := _PG_READY.findall(self.log.read_text(errors="replace"))):
            assert time.monotonic() < deadline, "the server does not answer in PostgreSQL's protocol"
            time.sleep(0.005)
        return int(found[-1])

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._process.wait(_STOP_S_MAX)
            self._process = None

    def stop(self) -> int:
        """As an operator does; returns the exit code."""
        assert self._process is not None
        os.kill(self.pid, signal.SIGTERM)
        code = self._process.wait(_STOP_S_MAX)
        self._process = None
        return code

    def rss_mb(self, field: str = "VmRSS") -> float:
        return rss_mb(self.pid, field)

    def forget_peak(self) -> float:
        """The peak begins anew, so that what was before hides nothing. Returns the memory of now, in MB."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        return self.rss_mb("VmHWM")

    def files(self) -> int:
        """How many it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def faults(self) -> list[str]:
        """What it did not foresee, in any of its starts."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        starts = [at for at, line in enumerate(lines) if line.startswith("Traceback")]
        return ["\n".join(lines[max(at - 2, 0) : at + 30]) for at in starts]
