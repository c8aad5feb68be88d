"""Waiting for a descriptor: poll, since select refuses those above 1,023, which a busy process has."""

from __future__ import annotations

import select

__all__ = ["readable"]


def readable(descriptor: int, timeout_s: float) -> bool:
    """Whether there is something to read, or an end, within that time."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout_s * 1_000))
