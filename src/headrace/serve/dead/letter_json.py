"""A dead letter in an answer: text as it is, other bytes in base64, and of long ones the beginning."""

from __future__ import annotations

import base64
from typing import Any

from headrace.ops.dead.letter import Letter, Origin
from headrace.ops.dead.mark import Mark
from headrace.serve.position_json import time_json

__all__ = ["letter_json"]

_SHOWN_BYTES_MAX = 16 * 1024
_HEADERS_MAX = 100


def letter_json(letter: Letter, mark: Mark | None, cannot: str) -> dict[str, Any]:
    return {
        "partition": letter.place.partition,
        "offset": letter.place.offset,
        "time": time_json(max(0, letter.at_ms)),
        "reason": letter.reason,
        "exception": letter.exception,
        "writer": letter.writer,
        "origin": _origin(letter.origin),
        **_shown("key", letter.key),
        **_shown("value", letter.value),
        "headers": [{"name": name, **_shown("value", data)} for name, data in letter.headers[:_HEADERS_MAX]],
        "replayed": None if mark is None else {"to": mark.to, "at": time_json(mark.at_ms)},
        "cannot": cannot,
    }


def _origin(origin: Origin | None) -> dict[str, Any] | None:
    if origin is None:
        return None
    return {"topic": origin.topic, "partition": origin.partition, "offset": origin.offset}


def _shown(name: str, data: bytes | None) -> dict[str, Any]:
    if data is None:
        return {name: None, f"{name}_bytes": None}
    told: dict[str, Any] = {f"{name}_bytes": len(data)}
    if len(data) > _SHOWN_BYTES_MAX:
        told[f"{name}_cut"] = True
    shown = data[:_SHOWN_BYTES_MAX]
    try:
        return {name: _text(shown, cut=len(data) > len(shown)), **told}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(shown).decode(), **told}


def _text(shown: bytes, *, cut: bool) -> str:
    """A cut may go through the middle of a character."""
    for less in range(4 if cut else 1):
        try:
            return shown[: len(shown) - less].decode()
        except UnicodeDecodeError:
            if less == 3 or not cut:
                raise
    raise AssertionError
