"""The embedded broker as users start it, with the ``headrace broker`` command in its own process."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from faults.servers.server import Server, spawn

__all__ = ["start_headrace"]

COMMAND = Path(sys.executable).parent / "headrace"


def start_headrace(directory: Path, options: Sequence[str] = (), port: int = 0) -> Server:
    """Start on a free port, which the ready line names, and wait until the broker responds."""
    directory.mkdir(parents=True, exist_ok=True)
    log, data = directory / "server.log", directory / "data"
    command: list[str | Path] = [COMMAND, "broker", "--listen", f"127.0.0.1:{port}", "--data", data, *options]
    process = spawn(command, log)
    deadline = time.monotonic() + 30
    while not (ready := re.search(r"ready on 127\.0\.0\.1:([1-9]\d*)", log.read_text())):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(f"headrace did not start; it printed:\n{log.read_text()[-4000:]}")
        time.sleep(0.01)
    server = Server("headrace", int(ready[1]), process, log, data)
    server.wait_until_it_answers()
    return server
