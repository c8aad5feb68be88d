"""How far a store is beside the end of its topic, as JSON."""

from __future__ import annotations

from typing import Any

from headrace.ops.lag.lag import Lag
from headrace.views.position import Position

__all__ = ["behind_json"]


def behind_json(lag: Lag | None, position: Position | None) -> dict[str, Any]:
    """How far the store is, beside the end of its topic: as the log was looked at, some moments ago."""
    told: dict[str, Any] = {
        "behind_records": lag.records if lag else None,
        "behind_bytes": lag.est_bytes if lag else None,
        "behind_seconds": None if lag is None or lag.age_s is None else round(lag.age_s, 3),
        "behind_batches": lag.reader.batches if lag else None,
        "partitions": [],
    }
    if position is not None:
        ends = {number: end for (_, number), end in (lag.ends if lag else {}).items()}
        unread = {number: count for (_, number), count in (lag.places if lag else {}).items()}
        told["partitions"] = [
            _place(number, position.offsets.get(number, 0), ends.get(number), unread.get(number))
            for number in sorted({*position.offsets, *ends})
        ]
        told |= _since(lag, [one["behind"] for one in told["partitions"]])
    return told


def _since(lag: Lag | None, behind: list[int | None]) -> dict[str, Any]:
    """What the store has taken since the log was looked at is behind no more, in none of the numbers."""
    left = [count for count in behind if count is not None]
    if lag is None or not lag.records or not left or len(left) < len(behind) or sum(left) >= lag.records:
        return {}
    share = sum(left) / lag.records
    return {
        "behind_records": sum(left),
        "behind_bytes": None if lag.est_bytes is None else int(lag.est_bytes * share),
        **({} if any(left) else {"behind_seconds": 0.0}),
    }


def _place(number: int, at: int, end: int | None, behind: int | None) -> dict[str, int | None]:
    """The store was asked after the log: what it has is there, whatever the end was a moment before."""
    if end is not None and behind is not None:
        end = max(end, at)
        behind = min(behind, end - at)
    return {"partition": number, "at": at, "end": end, "behind": behind}
