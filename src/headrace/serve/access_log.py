"""One line of JSON per request: what was asked for by its route, never by its text.

Paths hold keys, and queries hold values; whoever pastes a token into either must not find it in a log. So a line has
the route, and the view or topic that it is about.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from headrace.private import make_private_dir, private
from headrace.serve.position_json import time_json

__all__ = ["AccessLog", "LogFile"]


class LogFile:
    """Lines in a file that only its owner can read. Past ``bytes_max`` it becomes ``<name>.1``, in place of the one
    before, and a new one begins: so both together have at most twice as many bytes. In one thread.
    """

    def __init__(self, path: Path, bytes_max: int) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._file: BinaryIO | None = None
        self._bytes = 0

    def write(self, line: str) -> None:
        raw = line.encode() + b"\n"
        if self._file is not None and self._bytes and self._bytes + len(raw) > self._bytes_max:
            self.close()
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        if self._file is None:
            make_private_dir(self._path.parent)
            self._file = open(self._path, "ab", buffering=0, opener=private)  # noqa: SIM115  until it is closed
            self._bytes = os.fstat(self._file.fileno()).st_size
        self._file.write(raw)
        self._bytes += len(raw)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class AccessLog:
    """``write`` takes a line; None for no log."""

    def __init__(self, write: Callable[[str], None] | None) -> None:
        self._write = write

    def note(
        self,
        *,
        now_ms: int,
        request_id: str,
        method: str,
        route: str,
        names: Mapping[str, str],
        caller: str,
        peer: str,
        status: int,
        code: str,
        took_s: float,
        sent_bytes: int,
    ) -> None:
        if self._write is None:
            return
        told: dict[str, Any] = {
            "time": time_json(now_ms),
            "request": request_id,
            "method": method,
            "route": route,
            **{name: text[:249] for name, text in names.items() if name in ("view", "topic")},
            "token": caller,
            "peer": peer,
            "status": status,
            **({"code": code} if code else {}),
            "ms": round(took_s * 1_000, 3),
            "bytes": sent_bytes,
        }
        self._write(msgspec.json.encode(told).decode())
