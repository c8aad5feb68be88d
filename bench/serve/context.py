"""What every part of ``bench.serve`` receives: a plan, a broker, a folder, and the figures."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.serve.app import VARIABLE
from bench.session import Figures
from faults.serve.local_server import Process
from faults.servers.server import Server
from headrace.client.cluster import Cluster

__all__ = ["ServeContext", "ServePlan", "run_program"]


@dataclass(frozen=True, slots=True)
class ServePlan:
    rounds: int
    rows: int
    """Number of rows in a view that is read by key."""
    lake_rows: int
    """As ``rows``, for the view in Delta, where each read scans all rows."""
    connections: int
    warm_s: float
    seconds: float
    """Seconds during which rows are read and counted."""
    crowds: tuple[int, int, int]
    """Numbers of subscribers: few, more, and as many as the server accepts."""
    changes: int
    """Changes per second of the view that the subscribers follow."""
    crowd_s: float
    """Seconds during which the frames of the subscribers are counted."""
    writers: int
    """Concurrent clients that read their own writes."""
    own_s: float
    """Seconds during which clients read their own writes."""
    is_quick: bool = False

    @classmethod
    def quick(cls) -> ServePlan:
        """A plan for a smoke test."""
        return cls(
            rounds=1,
            rows=200,
            lake_rows=200,
            connections=2,
            warm_s=0.1,
            seconds=0.4,
            crowds=(2, 4, 8),
            changes=50,
            crowd_s=0.8,
            writers=2,
            own_s=1.0,
            is_quick=True,
        )

    @classmethod
    def full(cls, rounds: int, scale: float) -> ServePlan:
        return cls(
            rounds=rounds,
            rows=max(1_000, round(100_000 * scale)),
            lake_rows=max(1_000, round(10_000 * scale)),
            connections=8,
            warm_s=max(0.5, 2.0 * scale),
            seconds=max(1.0, 6.0 * scale),
            crowds=(10, 100, 1_000),
            changes=100,
            crowd_s=max(3.0, 20.0 * scale),
            writers=4,
            own_s=max(5.0, 60.0 * scale),
        )


_PROGRAM_TIMEOUT_S = 600.0


class ServeContext:
    def __init__(self, plan: ServePlan, server: Server, home: Path) -> None:
        self.plan = plan
        self.server = server
        self.cluster = Cluster(server.bootstrap)
        self.home = home
        self.figures = Figures()
        self._folders = 0

    def folder(self, name: str) -> Path:
        """Create a folder whose name ends with ``name``."""
        self._folders += 1
        folder = self.home / f"{self._folders}-{name}"
        folder.mkdir()
        return folder

    @contextlib.contextmanager
    def serving(self, app: str, data: Path) -> Iterator[Process]:
        """Run ``headrace serve`` as users start it: one process, with its access log."""
        process = Process("bench.serve.app:app", self.server.bootstrap, data, environment={VARIABLE: app})
        try:
            yield process
        finally:
            process.stop()


def run_program(module: str, **task: Any) -> Any:
    """Run a program of this package, and return the JSON that it prints at its end."""
    command = [sys.executable, "-m", f"bench.serve.{module}", json.dumps(task, default=str)]
    run = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=_PROGRAM_TIMEOUT_S)
    return json.loads(run.stdout)
