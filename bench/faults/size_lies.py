"""A lie about a size, as bytes to send, and what may be answered to it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CLOSED", "SizeLie"]

CLOSED = ""
"""The connection ends without an answer."""


@dataclass(frozen=True, slots=True)
class SizeLie:
    """``expected`` are the codes that may be answered before the connection ends: a status of HTTP, the code of a
    WebSocket's close frame, a state of PostgreSQL; or that there is none.
    """

    name: str
    raw: bytes
    expected: tuple[str, ...]
    waits: bool = False
    """Whether the claim is within the limits: then the bytes are awaited until the deadline for receiving them."""
    greeting: bytes = b""
    """What is sent before it, and answered."""
