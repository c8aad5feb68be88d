"""What is raised when bytes are not the message they claim to be, or a message has no such bytes."""

from __future__ import annotations

from headrace.errors import HeadraceError

__all__ = ["WireError"]


class WireError(HeadraceError):
    """A frame that cannot be read, or a message that a version cannot carry.

    Whatever a peer sends, reading it ends in a message or in this error, and in nothing else: a server may
    close the connection on it without looking further.
    """

    code = "HR-WIRE-MALFORMED"
