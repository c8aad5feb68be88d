"""What ends a subscription, or keeps it from beginning; see ``headrace.serve.errors`` for the rest.

├── FirstMessageLate    408   a WebSocket was opened, and nothing was asked for
├── CursorOld           409   what came behind the cursor cannot be told any more: begin with a snapshot
│   └── TooMuchSince          because it is more than may be remembered
├── WindowLarge         422   the first rows of a query are more than is kept of them
├── ViewUnordered       422   nothing says which of two rows of a key is the later one
├── TooManySubscribers  429
└── SlowReader          503   changes came faster, for longer, than they were taken
"""

from __future__ import annotations

from headrace.serve.errors import ServeError

__all__ = [
    "CursorOld",
    "FirstMessageLate",
    "SlowReader",
    "TooManySubscribers",
    "TooMuchSince",
    "ViewUnordered",
    "WindowLarge",
]


class FirstMessageLate(ServeError):
    code, status = "HR-SERVE-FIRST-MESSAGE", 408
    retriable = True


class CursorOld(ServeError):
    code, status = "HR-SERVE-CURSOR-OLD", 409

    def __init__(self, why: str) -> None:
        super().__init__(
            f"the cursor cannot be gone on from: {why}",
            hint="subscribe without a cursor, and forget the rows: a snapshot comes first",
        )


class TooMuchSince(CursorOld):
    """Also for whoever comes with an older cursor, as long as no more room is made."""


class ViewUnordered(ServeError):
    code, status = "HR-SERVE-UNORDERED", 422


class WindowLarge(ServeError):
    code, status = "HR-SERVE-WINDOW", 422


class TooManySubscribers(ServeError):
    code, status = "HR-SERVE-SUBSCRIBERS", 429
    retriable = True


class SlowReader(ServeError):
    """Only ever told at the end of a subscription."""

    code, status = "HR-SERVE-SLOW-READER", 503
    retriable = True
