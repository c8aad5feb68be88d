"""The place of one answer in the order of answers."""

from __future__ import annotations

from headrace.wire.frames import Header

__all__ = ["Slot"]


class Slot:
    """``parts`` is the answer as bytes, once there is one."""

    __slots__ = ("api", "correlation_id", "parts", "version")

    def __init__(self, header: Header) -> None:
        assert header.api is not None
        self.api = header.api
        self.version = header.version
        self.correlation_id = header.correlation_id
        self.parts: list[bytearray | memoryview] | None = None
