"""Which input a flow's watermark waits for.

The watermark is the least of what the inputs promise: the latest time that each has shown, less its lateness. It is by
topic and not by partition, so a partition without records holds nothing back, and none can be named.
"""

from __future__ import annotations

from datetime import timedelta

from headrace.model.flow import Flow
from headrace.model.progress import Batch

__all__ = ["held_by"]


def held_by(flow: Flow, last: Batch | None) -> str | None:
    """None for a flow without event time."""
    timed = [topic for topic in flow.streams if topic.time is not None]
    if not timed or flow.is_realtime:
        return None
    seen = last.seen_us if last else {}
    silent = next((topic for topic in timed if topic.name not in seen), None)
    if silent is not None:
        return silent.name
    return min(timed, key=lambda topic: seen[topic.name] - topic.late // timedelta(microseconds=1)).name
