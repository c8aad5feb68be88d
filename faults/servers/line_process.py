"""A program of this package in its own process. A thread reads its output line by line. The process can be paused,
resumed and killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import IO

from faults.servers.fork_server import ROOT, parent_death_prefix

__all__ = ["LineProcess"]

_WAIT_S_MAX = 240.0


class LineProcess:
    def __init__(self, module: str, *arguments: str) -> None:
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [*parent_death_prefix(), sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def _read(self, output: IO[str]) -> None:
        for line in output:
            self.lines.append(line.strip())

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        # Give the reader time to read the output that the process wrote before.
        time.sleep(0.05)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL, and read the output to its end."""
        self._process.kill()
        self._end()

    def finish(self, within_s: float = _WAIT_S_MAX) -> bool:
        """Whether the process exits by itself in time."""
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        self._end()
        return True

    def _end(self) -> None:
        self._process.wait()
        self._reader.join(_WAIT_S_MAX)
        assert self._process.stdout is not None
        self._process.stdout.close()
