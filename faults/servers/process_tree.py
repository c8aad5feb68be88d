"""CPU time and memory of a process and its descendants."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil

__all__ = ["cpu_s", "pss_mb", "rss_mb"]


def cpu_s(*pids: int) -> float:
    """Return the CPU time, including that of exited descendants that were waited for."""
    total = 0.0
    for process in _trees(pids):
        try:
            used = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += used.user + used.system + used.children_user + used.children_system
    return total


def pss_mb(*pids: int) -> float:
    """Return the proportional set size: memory that processes share is divided among them."""
    total_kb = 0
    for process in _trees(pids):
        try:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total_kb += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total_kb / 1024


def rss_mb(pid: int, field: str = "VmRSS") -> float:
    """``VmRSS`` is the current memory, ``VmHWM`` the peak. The result is 0 if the process has exited."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) / 1024
    return 0.0


def _trees(pids: tuple[int, ...]) -> Iterator[psutil.Process]:
    for pid in pids:
        try:
            root = psutil.Process(pid)
            yield from [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
