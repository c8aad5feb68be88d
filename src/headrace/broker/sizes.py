"""How much memory texts take that clients send."""

from __future__ import annotations

__all__ = ["text_bytes"]


def text_bytes(text: str | None) -> int:
    """At most what the text takes in memory, and no less than what it takes in a message: one character that is not
    ASCII can make all of them four bytes wide.
    """
    return 0 if text is None else len(text) if text.isascii() else 4 * len(text)
