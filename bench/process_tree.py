"""What a process and all that it started have used of the processor."""

from __future__ import annotations

import psutil

__all__ = ["cpu_s"]


def cpu_s(pid: int) -> float:
    """Of those that are gone as well, as far as they were waited for."""
    total = 0.0
    try:
        whole = psutil.Process(pid)
        processes = [whole, *whole.children(recursive=True)]
    except psutil.NoSuchProcess:
        return total
    for process in processes:
        try:
            used = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += used.user + used.system + used.children_user + used.children_system
    return total
