"""What every part of ``bench.serve`` is given: a plan, a broker, a folder, and a book for figures."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.measured import Measured
from bench.serving.app import VARIABLE
from bench.serving.plan import ServePlan
from headrace.client.cluster import Cluster
from tests.serve.serving import Process
from tests.support.server import Server

__all__ = ["ServeStand", "called"]

_CALLED_S = 600.0


class ServeStand:
    def __init__(self, plan: ServePlan, server: Server, home: Path) -> None:
        self.plan = plan
        self.server = server
        self.cluster = Cluster(server.bootstrap)
        self.home = home
        self.measured = Measured()
        self._folders = 0

    def folder(self, name: str) -> Path:
        """A new one."""
        self._folders += 1
        made = self.home / f"{self._folders}-{name}"
        made.mkdir()
        return made

    @contextlib.contextmanager
    def serving(self, app: str, data: Path) -> Iterator[Process]:
        """``headrace serve``, as it is: one process, with its access log."""
        process = Process("bench.serving.app:app", self.server.bootstrap, data, environment={VARIABLE: app})
        try:
            yield process
        finally:
            process.stop()


def called(module: str, **task: Any) -> Any:
    """What a program of this package says at its end, which is JSON."""
    command = [sys.executable, "-m", f"bench.serving.{module}", json.dumps(task, default=str)]
    run = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=_CALLED_S)
    return json.loads(run.stdout)
