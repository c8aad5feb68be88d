"""Errors of the client, with the server's code and hint.

RemoteError                    (the server's code, or HR-REMOTE-…)
├── Unreachable                no response: no server is at the address, or the connection was lost
│   └── OutcomeUnknown         no response to a write, which may have succeeded
├── InvalidResponse            the response is invalid, or not from a Headrace server
├── Closed                     this client was closed
├── InvalidRequest     4xx     the request is invalid
│   ├── NotLoggedIn    401
│   ├── NotAllowed     403
│   ├── NotFound       404     the view, topic or row does not exist
│   ├── Moved          409     the view's position changed between two pages
│   ├── Outdated       409     the topic, generation or cursor no longer exists
│   └── RecordsDeleted 410     the log has deleted the records
├── Busy               503     the server, or the store of the view, is overloaded or unavailable; also 408 and 429
├── Late               504     the view did not reach the position in time; ``position`` is its current position
└── ServerFault        5xx
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.errors import HeadraceError

__all__ = [
    "Busy",
    "Closed",
    "InvalidRequest",
    "InvalidResponse",
    "Late",
    "Moved",
    "NotAllowed",
    "NotFound",
    "NotLoggedIn",
    "OutcomeUnknown",
    "Outdated",
    "Position",
    "RecordsDeleted",
    "RemoteError",
    "ServerFault",
    "Unreachable",
    "error_of",
]

_TEXT_CHARS_MAX = 2_000
_NOT_OURS = "the response is not from a Headrace server: check the address, and any proxy in between"


class RemoteError(HeadraceError):
    """``members`` has the other fields of the server's error. ``position`` is the view's position if the server sent
    it.
    """

    code = "HR-REMOTE"

    def __init__(
        self,
        message: str,
        *,
        detail: str = "",
        hint: str = "",
        code: str = "",
        status: int = 0,
        members: dict[str, Any] | None = None,
        request_id: str = "",
        retry_after_s: float = 0.0,
    ) -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.code = code or type(self).code
        self.status = status
        self.members = members or {}
        self.request_id = request_id
        """The id of the request in the server's log."""
        self.retry_after_s = retry_after_s
        """The server's Retry-After in seconds, or 0."""

    @property
    def position(self) -> Position | None:
        try:
            return msgspec.convert(self.members.get("position"), Position)
        except msgspec.ValidationError:
            return None


class Unreachable(RemoteError):
    code = "HR-REMOTE-UNREACHABLE"
    retriable = True


class OutcomeUnknown(Unreachable):
    """``request`` is the Idempotency-Key of the write. It is safe to repeat the write with this key."""

    code = "HR-REMOTE-OUTCOME"

    def __init__(self, message: str, *, request: str, detail: str = "", hint: str = "") -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.request = request


class InvalidResponse(RemoteError):
    code = "HR-REMOTE-ANSWER"


class Closed(RemoteError):
    code = "HR-REMOTE-CLOSED"


class InvalidRequest(RemoteError):
    code = "HR-REMOTE-REFUSED"


class NotLoggedIn(InvalidRequest):
    pass


class NotAllowed(InvalidRequest):
    pass


class NotFound(InvalidRequest):
    pass


class Moved(InvalidRequest):
    retriable = True


class Outdated(InvalidRequest):
    pass


class RecordsDeleted(InvalidRequest):
    pass


class Busy(RemoteError):
    code = "HR-REMOTE-BUSY"
    retriable = True


class Late(RemoteError):
    code = "HR-REMOTE-LATE"
    retriable = True


class ServerFault(RemoteError):
    code = "HR-REMOTE-FAULT"
    retriable = True


_BY_CODE: dict[str, type[RemoteError]] = {"HR-SERVE-MOVED": Moved, "HR-SERVE-AFTER-OUTDATED": Outdated}
_BY_STATUS: dict[int, type[RemoteError]] = {
    401: NotLoggedIn,
    403: NotAllowed,
    404: NotFound,
    409: Outdated,
    410: RecordsDeleted,
    408: Busy,
    429: Busy,
    503: Busy,
    504: Late,
}


def error_of(status: int, problem: Any, request_id: str = "", retry_after_s: float = 0.0) -> RemoteError:
    """``problem`` is the body of the response. It can have any content, because a proxy can replace it."""
    body = problem if isinstance(problem, dict) else {}
    code = _text(body.get("code"))
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status) or (InvalidRequest if status < 500 else ServerFault)
    if code == "HR-SERVE-DERIVED":
        kind = InvalidRequest
    standard_members = {"type", "title", "status", "code", "detail", "next"}
    return kind(
        _text(body.get("detail")) or f"the server responded with {status}",
        hint=_text(body.get("next")) or ("" if code else _NOT_OURS),
        code=code,
        status=status,
        members={name: value for name, value in body.items() if name not in standard_members},
        request_id=_text(request_id),
        retry_after_s=retry_after_s,
    )


def _text(value: Any) -> str:
    return value[:_TEXT_CHARS_MAX] if isinstance(value, str) else ""


class Position(msgspec.Struct, frozen=True):
    """A position in a topic. It includes all records before these offsets."""

    token: str
    """Pass it as ``after``: the read then reflects at least this position."""
    topic: str = ""
    offsets: dict[str, int] = {}
    """Offsets by partition."""
    generation: int | None = None
    batch: int | None = None
    stored: str | None = None
