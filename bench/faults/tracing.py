"""Making single system calls of a broker fail, with strace around it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

__all__ = ["failing", "injected_at"]

_INJECTED = re.compile(rb"^\d+\s+(\d+\.\d+) .*\(INJECTED\)", re.MULTILINE)


def failing(trace: Path, call: str, when: int, paths: Sequence[Path] = ()) -> list[str]:
    """The command to run a broker with: each of its threads has its ``when``-th ``call`` fail with EIO, counting only
    calls on ``paths`` if there are any.
    """
    command = ["strace", "-f", "-qq", "-ttt", "--seccomp-bpf", "-e", "signal=none", "-o", str(trace)]
    for path in paths:
        command += ["-P", str(path)]
    return [*command, "-e", f"trace={call}", "-e", f"inject={call}:error=EIO:when={when}", "--"]


def injected_at(trace: Path) -> list[float]:
    """When calls were made to fail, by the wall clock."""
    if not trace.exists():
        return []
    return [float(found) for found in _INJECTED.findall(trace.read_bytes())]
