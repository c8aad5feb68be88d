"""The place of one answer in the order of answers."""

from __future__ import annotations

from headrace.wire.frames import Header

__all__ = ["Slot"]


class Slot:
    """``parts`` is the answer as bytes, once there is one; ``began`` when the request was there."""

    __slots__ = ("api", "began", "correlation_id", "parts", "version")

    def __init__(self, header: Header, began: float) -> None:
        assert header.api is not None
        self.api = header.api
        self.version = header.version
        self.began = began
        self.correlation_id = header.correlation_id
        self.parts: list[bytearray | memoryview] | None = None
