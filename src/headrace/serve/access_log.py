"""One line of JSON per request: what was asked for by its route, never by its text.

Paths hold keys, and queries hold values; whoever pastes a token into either must not find it in a log. So a line has
the route, and the view or topic that it is about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from headrace.serve.position_json import time_json

__all__ = ["AccessLog", "line_writer"]


def line_writer(path: Path | None, other: Callable[[str], None] | None) -> Callable[[str], None] | None:
    """To the file, if one is named."""
    if path is None:
        return other
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a", encoding="utf-8", buffering=1)

    def write(line: str) -> None:
        file.write(line + "\n")

    return write


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
