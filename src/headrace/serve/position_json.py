"""A position in an answer: for people, for programs, and as a token for the next question."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec

from headrace.model.texts import time_text
from headrace.serve.token import token_of
from headrace.views.position import Position, Shape

__all__ = ["digest", "position_json", "time_json"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS_KEPT = 64


def position_json(position: Position) -> dict[str, Any]:
    of_flow = {"generation": position.generation, "batch": position.batch} if position.generation else {}
    return {
        "token": token_of(position).tell(),
        "topic": position.topic,
        **of_flow,
        "offsets": {str(number): at for number, at in sorted(position.offsets.items())},
        "stored": time_json(position.stored_ms),
    }


def digest(position: Position, shape: Shape) -> str:
    """Equal for positions at which a view has the same rows."""
    told = msgspec.json.encode(
        [
            *(position.topic, position.topic_id, position.generation, position.batch, position.progress_id),
            sorted(position.offsets.items()),
            shape.tell(),
        ]
    )
    return hashlib.sha256(told).hexdigest()[:24]


def time_json(ms: int) -> str:
    """Every request has one, and those of a second share most of it."""
    second, rest = divmod(ms, 1_000)
    try:
        return f"{_second_text(second)}.{rest:03}000Z"
    except OverflowError:
        return time_text(datetime.max.replace(tzinfo=UTC))


@lru_cache(_SECONDS_KEPT)
def _second_text(second: int) -> str:
    return (_EPOCH + timedelta(seconds=second)).replace(tzinfo=None).isoformat()
