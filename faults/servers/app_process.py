"""A ``headrace`` command that runs an app in a process of its own, as a user starts it. It can be killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from faults.servers.fork_server import parent_death_prefix

__all__ = ["AppProcess"]

_COMMAND = Path(sys.executable).parent / "headrace"
_TAIL_CHARS = 4_000
_WAIT_S_MAX = 240.0


class AppProcess:
    """``folder`` has the module of the app. Output is added to ``log``."""

    def __init__(self, folder: Path, log: Path, *words: str) -> None:
        self._log = log
        self._words = " ".join(words)
        self._start = log.stat().st_size if log.exists() else 0
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                [*parent_death_prefix(), str(_COMMAND), *words],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        """What this process has printed."""
        return self._log.read_bytes()[self._start :].decode(errors="replace")

    @property
    def code(self) -> int | None:
        """The exit code; None while the process runs."""
        return self._process.poll()

    def wait_for(self, pattern: str, within_s: float = _WAIT_S_MAX) -> re.Match[str]:
        """Wait until the process prints the pattern."""
        deadline = time.monotonic() + within_s
        while (found := re.search(pattern, self.output)) is None:
            if self.code is not None or time.monotonic() > deadline:
                raise AssertionError(
                    f"headrace {self._words} did not print {pattern!r} (exit code {self.code}):\n"
                    f"{self.output[-_TAIL_CHARS:]}"
                )
            time.sleep(0.02)
        return found

    def wait(self, within_s: float = _WAIT_S_MAX) -> int:
        """Return the exit code."""
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"headrace {self._words} did not end:\n{self.output[-_TAIL_CHARS:]}"
            ) from None

    def interrupt(self) -> int:
        """Press Ctrl-C, and return the exit code."""
        self._process.send_signal(signal.SIGINT)
        return self.wait()

    def kill(self) -> None:
        """Send SIGKILL, and wait until the broker and the JVM have ended too, which releases their files."""
        children = psutil.Process(self.pid).children(recursive=True) if self.code is None else []
        self._process.kill()
        self._process.wait()
        _, alive = psutil.wait_procs(children, timeout=_WAIT_S_MAX)
        assert not alive, f"these processes did not end with headrace {self._words}: {alive}"
