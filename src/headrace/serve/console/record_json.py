"""A record as the console tells it: text as it is, other bytes in base64, each with its size."""

from __future__ import annotations

import base64
from typing import Any

__all__ = ["record_json"]


def record_json(message: Any, bytes_max: int | None = None) -> dict[str, Any]:
    """Of each part not more than ``bytes_max``; what was left out is told by ``cut``."""
    kind, stamp = message.timestamp()
    return {
        "partition": message.partition(),
        "offset": message.offset(),
        "at_ms": stamp if kind else None,
        "key": _told(message.key(), bytes_max),
        "value": _told(message.value(), bytes_max),
        "headers": [{"name": name, **(_told(raw, bytes_max) or {})} for name, raw in message.headers() or ()],
    }


def _told(raw: bytes | str | None, bytes_max: int | None) -> dict[str, Any] | None:
    if raw is None:
        return None
    data = raw.encode() if isinstance(raw, str) else raw
    told: dict[str, Any] = {"size": len(data)}
    if bytes_max is not None and len(data) > bytes_max:
        told["cut"] = True
        # Not in the middle of a character.
        data = data[:bytes_max]
        for back in range(1, min(4, len(data))):
            if data[-back] & 0b1100_0000 != 0b1000_0000:
                data = data[:-back] if data[-back] >= 0b1100_0000 else data
                break
    try:
        return told | {"text": data.decode()}
    except UnicodeDecodeError:
        return told | {"base64": base64.b64encode(data).decode()}
