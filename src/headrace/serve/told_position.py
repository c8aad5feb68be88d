"""What an answer says of the position that it reflects: worked out once for as long as a view stands where it does."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from headrace.serve.position_json import digest, position_json
from headrace.serve.token import token_of
from headrace.views.position import Standing

__all__ = ["ToldPosition", "told_position"]

_KEPT = 64


@dataclass(frozen=True, slots=True)
class ToldPosition:
    standing: Standing
    headers: dict[str, str]
    json: msgspec.Raw


_kept: dict[int, ToldPosition] = {}


def told_position(standing: Standing) -> ToldPosition:
    """In one event loop. What is kept holds the standing itself, so no other one can have its id."""
    found = _kept.get(id(standing))
    if found is None:
        if len(_kept) >= _KEPT:
            _kept.clear()
        found = _kept[id(standing)] = _told(standing)
    return found


def _told(standing: Standing) -> ToldPosition:
    position = standing.position
    headers = {
        "Headrace-Position": token_of(position).tell(),
        "ETag": f'W/"{digest(position, standing.shape)}"',
        "Cache-Control": "private, no-cache",
    }
    return ToldPosition(standing, headers, msgspec.Raw(msgspec.json.encode(position_json(position))))
