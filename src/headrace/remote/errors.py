"""What can go wrong between a program and a server, each with the server's code and its next step.

RemoteError                   (the code that the server gave, or HR-REMOTE-…)
├── Unreachable               no answer came: nobody there, or the connection broke
│   └── OutcomeUnknown        no answer to a write: it may have been carried out or not
├── AnswerUnfit               an answer that no server of ours gives
├── Closed                    this client was closed
├── Unfit             4xx     the request cannot be answered as it is
│   ├── NotLoggedIn   401
│   ├── NotAllowed    403
│   ├── NotThere      404     no such view, topic or row
│   ├── Moved         409     the view moved on between two pages
│   ├── Outdated      409     what was asked for is of a topic, a generation or a cursor that is gone
│   └── Gone          410     the log has deleted what was asked for
├── Busy              503     the server, or the store of the view, cannot answer now; also 408 and 429
├── Late              504     the view has not come as far as was waited for; ``position`` says how far
└── ServerFault       5xx
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.errors import HeadraceError
from headrace.remote.position import Position

__all__ = [
    "AnswerUnfit",
    "Busy",
    "Closed",
    "Gone",
    "Late",
    "Moved",
    "NotAllowed",
    "NotLoggedIn",
    "NotThere",
    "OutcomeUnknown",
    "Outdated",
    "RemoteError",
    "ServerFault",
    "Unfit",
    "Unreachable",
    "error_of",
]

_TEXT_CHARS_MAX = 2_000
_NOT_OURS = "what answered is no server of Headrace, or stands in front of one: look there"


class RemoteError(HeadraceError):
    """``members`` has all that the server told, ``position`` where the view is, if it told that."""

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
        """By which the server's log has it."""
        self.retry_after_s = retry_after_s
        """How long the server asks to be left alone; 0 if it does not say."""

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
    """``request`` is the Idempotency-Key: with it the same write may be sent again, and counts once."""

    code = "HR-REMOTE-OUTCOME"

    def __init__(self, message: str, *, request: str, detail: str = "", hint: str = "") -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.request = request


class AnswerUnfit(RemoteError):
    code = "HR-REMOTE-ANSWER"


class Closed(RemoteError):
    code = "HR-REMOTE-CLOSED"


class Unfit(RemoteError):
    code = "HR-REMOTE-REFUSED"


class NotLoggedIn(Unfit):
    pass


class NotAllowed(Unfit):
    pass


class NotThere(Unfit):
    pass


class Moved(Unfit):
    retriable = True


class Outdated(Unfit):
    pass


class Gone(Unfit):
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
    404: NotThere,
    409: Outdated,
    410: Gone,
    408: Busy,
    429: Busy,
    503: Busy,
    504: Late,
}


def error_of(status: int, problem: Any, request_id: str = "", retry_after_s: float = 0.0) -> RemoteError:
    """``problem`` is the body of the answer; something in between may have answered with anything."""
    told = problem if isinstance(problem, dict) else {}
    code = _text(told.get("code"))
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status) or (Unfit if status < 500 else ServerFault)
    if code == "HR-SERVE-DERIVED":
        kind = Unfit
    known = {"type", "title", "status", "code", "detail", "next"}
    return kind(
        _text(told.get("detail")) or f"the server answered with {status}",
        hint=_text(told.get("next")) or ("" if code else _NOT_OURS),
        code=code,
        status=status,
        members={name: one for name, one in told.items() if name not in known},
        request_id=_text(request_id),
        retry_after_s=retry_after_s,
    )


def _text(value: Any) -> str:
    return value[:_TEXT_CHARS_MAX] if isinstance(value, str) else ""
